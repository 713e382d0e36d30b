"""What deploy and rollback do by what the registry says; the whole way is in tests/stack."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.deploy.played import NAME, Target
from tests.stack.small_bundles import Parts, write_small
from transformer_serving.desk.bundle.folder import Bundle
from transformer_serving.desk.clearml_tools.api import ClearmlApi
from transformer_serving.desk.deploy import endpoint, present, rollback
from transformer_serving.desk.deploy.endpoint import Deployed, Undone, add_and_look
from transformer_serving.desk.deploy.golden import Differs, Refused
from transformer_serving.desk.deploy.registry import (
    GOAL,
    LEAVING,
    SERVED,
    WITHDRAWN,
    WRONG,
    ModelRegistry,
    Registered,
    registry_folder,
    split,
)
from transformer_serving.desk.deploy.rollback import RolledBack
from transformer_serving.desk.deploy.upload import upload
from transformer_serving.desk.failure import Failure


def row(number: int, *tags: str, version: int | None = None) -> Registered:
    return Registered(f"m{number}", version or number, "http://files/x.zip", tags)


def test_the_newest_older_one_that_was_served() -> None:
    rows = [row(5, SERVED), row(4, SERVED), row(3, WITHDRAWN), row(2), row(1, SERVED)]
    assert split(rows, "m4") == (rows[1], rows[4])
    assert split(rows, "m5") == (rows[0], rows[1])
    assert split(rows, "m1") == (rows[4], None)


def test_one_of_the_same_bundle_is_none_to_go_back_to() -> None:
    again = [row(3, SERVED, version=2), row(2, SERVED)]
    assert split(again, "m3") == (again[0], None)
    rows = [*again, row(1, SERVED)]
    assert split(rows, "m3") == (rows[0], rows[2])


def test_an_endpoint_added_by_hand_goes_to_the_newest_that_was_served() -> None:
    rows = [row(2), row(1, SERVED)]
    assert split(rows, "a model of somebody's own") == (None, rows[1])
    assert split([], "m1") == (None, None)


def test_a_bundle_is_fetched_from_any_store_that_clearml_reads(tmp_path: Path) -> None:
    """As a service with CLEARML_FILES_HOST on S3, or here a folder, has them; where it is gone,
    the way on is named."""
    bundle = write_small(tmp_path / "bundle")
    with registry_folder(bundle) as folder:
        shutil.make_archive(str(tmp_path / "model"), "zip", folder)
    number = bundle.manifest.bundle_version
    stored = Registered("m", number, f"file://{tmp_path}/model.zip", (SERVED,))
    registry = ModelRegistry(ClearmlApi({"CLEARML_CONFIG_FILE": str(tmp_path / "none")}), "0" * 32)
    with rollback._fetched(registry, stored, f"deploy BUNDLE --endpoint {NAME}") as found:
        assert found.manifest == bundle.manifest
        assert found.preprocess.read_bytes() == bundle.preprocess.read_bytes()
    # A folder's file is the user's own.
    (tmp_path / "model.zip").unlink()
    way_on = f"not there, .* serve bundle {number}, or another one, .* deploy BUNDLE --endpoint"
    with (
        pytest.raises(Failure, match=way_on),
        rollback._fetched(registry, stored, f"deploy BUNDLE --endpoint {NAME}"),
    ):
        pass


@pytest.fixture
def bundles(tmp_path: Path) -> dict[str, Bundle]:
    return {name: write_small(tmp_path / name, Parts(revision=name)) for name in "abcd"}


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Commands of a target are the desk's own, but for what needs a stack."""

    def begin(target: Target) -> Target:
        for module in (endpoint, rollback):
            monkeypatch.setattr(module, "refuse_in_rollout", lambda cli, name: None)
            monkeypatch.setattr(module, "add_and_look", target.add)
        monkeypatch.setattr(present, "has_code", lambda *entry: target.whole)
        monkeypatch.setattr(endpoint, "upload", target.upload)
        monkeypatch.setattr(endpoint, "wait_for_golden", lambda *arguments: None)
        return target

    return begin


@pytest.fixture
def target(tmp_path: Path, bundles: dict[str, Bundle], play: Any) -> Target:
    """B is configured, after A."""
    played: Target = play(Target(tmp_path, "b", a=bundles["a"], b=bundles["b"]))
    return played


def deploy(target: Any, bundle: Bundle) -> Deployed:
    return endpoint.deploy(target, bundle, NAME, timeout_s=60, report=lambda _: None)


def go_back(target: Any) -> RolledBack:
    return rollback.rollback(target, NAME, timeout_s=60, report=lambda _: None)


def test_who_runs_out_of_time_with_the_lock_blames_no_other_deploy(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(*_: object) -> None:
        signal.raise_signal(signal.SIGALRM)

    monkeypatch.setattr(rollback, "refuse_in_rollout", slow)
    with pytest.raises(Failure, match=f"; it was asking whether {NAME} is in a rollout; "):
        go_back(target)


def test_what_answers_and_is_not_configured_is_added_again(target: Target) -> None:
    """A answers on where B was refused: a new worker or Triton would find B alone."""
    assert not deploy(target, target.bundle("b")).changed
    target.answering = target.bundle("a")
    assert deploy(target, target.bundle("a")).changed
    assert target.configured == "uploaded2"


def test_what_answers_and_has_another_bundles_code_is_added_again(target: Target) -> None:
    """Also where the registry cannot be told from before: a deploy of C ended half-way."""
    target.whole = False
    assert deploy(target, target.bundle("b")).changed
    assert (target.configured, target.whole) == ("uploaded2", True)
    assert not deploy(target, target.bundle("b")).changed


def test_already_served_is_said_of_every_worker(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first answer came from one that has it; nothing is uploaded for the others."""
    monkeypatch.setattr(endpoint, "wait_for_golden", lambda *arguments: "status 404")
    with pytest.raises(Failure, match="did not answer within 60 s: status 404"):
        deploy(target, target.bundle("b"))
    assert target.tags == {"a": SERVED, "b": SERVED}


def test_an_upload_without_its_address_is_made_again(tmp_path: Path) -> None:
    """clearml-serving may lose it: what is registered then is no bundle that could be fetched."""
    target, bundle = Target(tmp_path), write_small(tmp_path / "bundle")
    uris = iter(["", "http://files/uploading_file", "http://files/bundle.zip"])

    def upload_model(*_: object, timeout_s: float) -> str:
        model_id = target.upload(target, bundle, NAME, None)
        target.kept.models.rows[0]["uri"] = next(uris)
        return model_id

    cli = SimpleNamespace(upload_model=upload_model)
    asked: Any = SimpleNamespace(cli=cli, files_host="http://files", registry=target.registry)
    limit: Any = SimpleNamespace(after_alarm=lambda: 60.0)
    assert upload(asked, bundle, NAME, limit) == "uploaded0"
    assert next(uris, None) is None
    assert set(target.tags) == {"uploaded0"}
    assert not target.registry().has_address("m of nobody")


@pytest.mark.parametrize(
    ("models", "codes", "adds"),
    [
        (["m"], [True], 1),
        # Nothing says which code it has.
        (["m"], [None], 1),
        (["other", None, "m"], [True], 3),
        (["m", "m"], [False, True], 2),
    ],
    ids=["at once", "unsaid", "another model", "another code"],
)
def test_an_endpoint_is_added_until_it_has_the_bundles_model_and_its_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    models: list[str | None], codes: list[bool | None], adds: int,
) -> None:  # fmt: skip
    """Another writer may have undone either; both are what is there after each try."""
    commands: list[tuple[str, ...]] = []
    found, have = iter(models), iter(codes)

    def run(*command: str) -> str:
        commands.append(command)
        model = next(found) if command == ("model", "list") else None
        rows = {} if model is None else {NAME: {"model_id": model}}
        return f"Endpoints:\n{json.dumps(rows)}\nModel Monitoring:\n"

    monkeypatch.setattr(endpoint, "has_code", lambda *_: next(have))
    asked: Any = SimpleNamespace(cli=SimpleNamespace(run=run))
    add_and_look(asked, write_small(tmp_path / "bundle"), NAME, "m")
    assert sum(command[:2] == ("model", "add") for command in commands) == adds


def test_what_others_undid_stays_registered(
    target: Target, bundles: dict[str, Bundle], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though nothing names it now: their older copy may yet bring back the entry that does."""

    def add(*_: object) -> None:
        raise Undone("every time somebody else's change undid it")

    monkeypatch.setattr(endpoint, "add_and_look", add)
    with pytest.raises(Failure, match="undid it"):
        deploy(target, bundles["c"])
    assert (target.configured, set(target.tags)) == ("b", {"a", "b", "uploaded2"})


@pytest.mark.parametrize("configured", [False, True])
def test_a_failed_add_leaves_no_upload_but_what_is_served(
    target: Target, bundles: dict[str, Bundle], monkeypatch: pytest.MonkeyPatch, configured: bool
) -> None:
    """And says that the endpoint may be half changed, and what heals it."""

    def add(*arguments: Any) -> None:
        if configured:
            target.add(*arguments)
        raise Failure("its answer was lost", exit_code=2)

    monkeypatch.setattr(endpoint, "add_and_look", add)
    how = f"lost; {NAME} may have the code of one bundle .* transformer-serving deploy BUNDLE"
    with pytest.raises(Failure, match=how) as failed:
        deploy(target, bundles["c"])
    assert failed.value.exit_code == 2
    assert set(target.tags) == {"a", "b", *(["uploaded2"] if configured else [])}


def test_an_interrupted_add_says_what_it_may_have_left(
    target: Target, bundles: dict[str, Bundle], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "add_and_look", interrupted)
    with pytest.raises(Failure, match="goes on with it; texts may have the code of one bundle"):
        deploy(target, bundles["c"])
    monkeypatch.setattr(endpoint, "add_and_look", target.add)
    monkeypatch.setattr(endpoint, "wait_for_golden", interrupted)
    with pytest.raises(KeyboardInterrupt):
        deploy(target, bundles["c"])


def test_a_rollback_that_goes_on_mends_what_a_deploy_left_since(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(target, monkeypatch)
    target.whole = False
    assert go_back(target).model_id == "a"
    assert target.whole


def test_a_bundle_that_was_deployed_again_is_left_whole(target: Target) -> None:
    """It is registered twice, where the endpoint did not answer for a moment, and goes as one."""
    target.answering = None
    again = deploy(target, target.bundle("b"))
    assert (again.changed, target.tags) == (True, {"a": SERVED, "b": SERVED, "uploaded2": SERVED})
    done = go_back(target)
    assert done.model_id == "a"
    assert (done.bundle_version, done.withdrawn_version) == (
        target.bundle("a").manifest.bundle_version,
        target.bundle("b").manifest.bundle_version,
    )
    assert target.tags == {"a": SERVED, "b": WITHDRAWN, "uploaded2": WITHDRAWN}
    target.answering = target.bundle("a")
    deploy(target, write_small(target.lock.parent / "next", Parts(revision="next")))
    assert go_back(target).model_id == "a"


def test_the_only_bundle_there_ever_was_has_none_before_it(
    tmp_path: Path, bundles: dict[str, Bundle], play: Any
) -> None:
    target = play(Target(tmp_path, "b", b=bundles["b"]))
    target.answering = None
    deploy(target, bundles["b"])
    with pytest.raises(Failure, match="served no other bundle before this one; deploy") as refused:
        go_back(target)
    assert refused.value.exit_code == 2


def test_what_came_to_answer_after_its_deploy_gave_up_is_gone_back_to(
    target: Target, bundles: dict[str, Bundle]
) -> None:
    target.kept.models.rows[0]["tags"] = []
    deploy(target, bundles["c"])
    assert target.tags == {"a": SERVED, "b": SERVED, "uploaded2": SERVED}
    assert go_back(target).model_id == "b"


def test_what_answered_wrong_is_not_gone_back_to_though_it_answers(
    target: Target, bundles: dict[str, Bundle], monkeypatch: pytest.MonkeyPatch
) -> None:
    differs = Differs("its numbers by 1")
    with monkeypatch.context() as patch:
        patch.setattr(endpoint, "wait_for_golden", lambda *arguments: differs)
        with pytest.raises(Failure, match="does not answer as it must"):
            deploy(target, bundles["c"])
    assert target.tags == {"a": SERVED, "b": SERVED, "uploaded2": WRONG}
    target.answering = bundles["c"]
    deploy(target, bundles["d"])
    assert target.tags == {"a": SERVED, "b": SERVED, "uploaded2": WRONG, "uploaded3": SERVED}
    assert go_back(target).model_id == "b"


@pytest.mark.parametrize("answering", ["a", None])
def test_what_never_answered_is_not(
    target: Target, bundles: dict[str, Bundle], answering: str | None
) -> None:
    """Also where the one before B answers on."""
    target.kept.models.rows[0]["tags"] = []
    target.answering = bundles[answering] if answering else None
    deploy(target, bundles["c"])
    assert go_back(target).model_id == "a"


def test_a_withdrawn_bundle_that_a_worker_still_answers_from_stays_withdrawn(
    target: Target, bundles: dict[str, Bundle]
) -> None:
    target.answering = bundles["b"]
    go_back(target)
    deploy(target, bundles["c"])
    assert target.tags == {"a": SERVED, "b": WITHDRAWN, "uploaded2": SERVED}


@pytest.mark.parametrize("reason", [Differs("its numbers by 1"), "nothing answers"])
def test_a_deploy_that_fails_names_a_rollback_where_there_is_one(
    target: Target, bundles: dict[str, Bundle], play: Any, monkeypatch: pytest.MonkeyPatch,
    reason: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(endpoint, "wait_for_golden", lambda *arguments: reason)
    back = f"the bundle before comes back with 'transformer-serving rollback {NAME}'"
    with pytest.raises(Failure, match=f"{reason}; look: its state; {back}$"):
        deploy(target, bundles["c"])
    first = play(Target(target.lock.parent))
    monkeypatch.setattr(endpoint, "wait_for_golden", lambda *arguments: reason)
    for _ in range(2):
        with pytest.raises(Failure, match=f"{reason}; look: its state") as failed:
            deploy(first, bundles["c"])
        assert "rollback" not in str(failed.value)
        longer = str(failed.value).endswith("; try again with a longer --timeout")
        assert longer == (not isinstance(reason, Differs))


def look_first(version: int) -> str:
    """Who is told that time was too short asks again, and that leaves a bundle that was to come."""
    return (
        f"; bundle {version} may come yet: see first whether http://front/{NAME} answers from it "
        "(header x-bundle-version), as another rollback goes past it; "
    )


def test_a_rollback_that_fails_withdraws_nothing_and_says_how_to_go_on(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    reasons: list[str | None] = [Refused("it is not served"), "no answer"]
    monkeypatch.setattr(endpoint, "wait_for_golden", lambda *arguments: reasons.pop(0))
    number = target.bundle("b").manifest.bundle_version
    how = f"bundle {number} is served again with 'transformer-serving deploy BUNDLE --endpoint"
    while reasons:
        target.configured = "b"
        with pytest.raises(Failure, match=how) as failed:
            go_back(target)
        assert "transformer-serving rollback" not in str(failed.value)
        passed = target.bundle("a").manifest.bundle_version
        late = "no answer" in str(failed.value)
        assert (look_first(passed) in str(failed.value)) == late
        past = f"; another rollback goes past bundle {passed}"
        assert str(failed.value).endswith(past) != late
        assert target.tags == {"a": SERVED, "b": f"{SERVED} {LEAVING}"}
    reasons.append(None)
    target.configured = "b"
    done = go_back(target)
    assert (done.model_id, done.withdrawn_version) == ("a", number)
    assert target.tags == {"a": SERVED, "b": WITHDRAWN}


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def interrupt(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rollback, while it waits."""
    with monkeypatch.context() as patch:
        patch.setattr(endpoint, "wait_for_golden", interrupted)
        with pytest.raises(Failure, match="the same command goes on with it"):
            go_back(target)


@pytest.mark.parametrize("tag", [SERVED, ""])
def test_a_rollback_that_was_interrupted_is_ended_by_the_next_one(
    target: Target, bundles: dict[str, Bundle], monkeypatch: pytest.MonkeyPatch, tag: str
) -> None:
    """It goes no further, also where the bundle that it leaves has never answered."""
    deploy(target, bundles["c"])
    target.kept.models.rows[0]["tags"] = [tag] if tag else []
    number = bundles["c"].manifest.bundle_version
    with monkeypatch.context() as patch:
        patch.setattr(endpoint, "wait_for_golden", interrupted)
        with pytest.raises(Failure, match="the same command goes on with it") as ended:
            go_back(target)
    assert f"bundle {number} is served again with" in str(ended.value)
    assert "another rollback goes past" not in str(ended.value)
    assert target.configured == "b"
    done = go_back(target)
    assert (done.model_id, done.withdrawn_version) == ("b", number)
    assert target.configured == "b"
    assert target.tags == {"a": SERVED, "b": SERVED, "uploaded2": WITHDRAWN}
    assert go_back(target).model_id == "a"


def test_what_was_rolled_back_is_named_where_there_is_nothing_else_to_go_back_to(
    target: Target,
) -> None:
    number = target.bundle("b").manifest.bundle_version
    assert go_back(target).withdrawn_version == number
    target.answering = target.bundle("a")
    with pytest.raises(Failure) as refused:
        go_back(target)
    assert str(refused.value) == (
        f"'{NAME}' served no other bundle before this one but what was rolled back since "
        f"({number}), whose folders you may have; deploy the one you want: transformer-serving "
        f"deploy BUNDLE --endpoint {NAME}"
    )


def test_one_that_was_interrupted_before_it_added_anything_is_begun_anew(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(rollback, "add_and_look", interrupted)
        with pytest.raises(Failure, match="it was adding texts; the same command goes on"):
            go_back(target)
    assert target.configured == "b"
    assert go_back(target).model_id == "a"
    assert target.tags == {"a": SERVED, "b": WITHDRAWN}


def test_one_that_changed_nothing_is_only_interrupted(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollback, "refuse_in_rollout", interrupted)
    with pytest.raises(KeyboardInterrupt):
        go_back(target)


def test_a_deploy_sees_that_an_interrupted_rollback_came_to_its_end(
    target: Target, bundles: dict[str, Bundle], monkeypatch: pytest.MonkeyPatch
) -> None:
    deploy(target, bundles["c"])
    interrupt(target, monkeypatch)
    target.answering = bundles["b"]
    deploy(target, bundles["d"])
    assert target.tags["uploaded2"] == WITHDRAWN
    assert go_back(target).model_id == "b"


@pytest.mark.parametrize("reason", ["no answer", Refused("it is not served"), Differs("by 1")])
def test_after_one_whose_bundle_does_not_come_the_next_goes_past_it(
    target: Target, bundles: dict[str, Bundle], monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    """And what the first one left is no way back any more."""
    deploy(target, bundles["c"])
    with monkeypatch.context() as patch:
        patch.setattr(endpoint, "wait_for_golden", lambda *arguments: reason)
        with pytest.raises(Failure, match=reason):
            go_back(target)
    assert target.configured == "b"
    done = go_back(target)
    assert (done.model_id, done.withdrawn_version) == ("a", bundles["b"].manifest.bundle_version)
    assert target.tags == {"a": SERVED, "b": WITHDRAWN, "uploaded2": WITHDRAWN}
    target.answering = bundles["a"]
    deploy(target, bundles["d"])
    assert go_back(target).model_id == "a"


def test_an_alarm_while_one_waits_gives_its_bundle_up(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ring(*_: object) -> None:
        signal.raise_signal(signal.SIGALRM)

    monkeypatch.setattr(endpoint, "wait_for_golden", ring)
    with pytest.raises(Failure, match="did not end within 60 s") as failed:
        go_back(target)
    assert look_first(target.bundle("a").manifest.bundle_version) in str(failed.value)
    assert target.tags == {"a": SERVED, "b": f"{SERVED} {LEAVING}"}


def test_no_alarm_rings_while_a_bundle_is_given_up(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would end that, and the next rollback wait for the bundle again."""
    left: list[float] = []
    mark = target.kept.mark_given_up

    def mark_given_up(name: str, version: int) -> None:
        left.append(signal.getitimer(signal.ITIMER_REAL)[0])
        mark(name, version)

    monkeypatch.setattr(target.kept, "mark_given_up", mark_given_up)
    monkeypatch.setattr(endpoint, "wait_for_golden", lambda *arguments: "no answer")
    with pytest.raises(Failure, match="no answer"):
        go_back(target)
    assert left == [0.0]


@pytest.mark.parametrize(
    ("older", "newest", "after"),
    [
        # As an earlier mark was interrupted before its last step.
        ([SERVED, LEAVING], [SERVED], SERVED),
        ([SERVED, LEAVING], [], SERVED),
        ([], [], ""),
        ([WRONG], [], WRONG),
    ],
)
def test_of_a_bundle_that_is_registered_twice_the_newest_has_answered(
    tmp_path: Path, older: list[str], newest: list[str], after: str
) -> None:
    target, bundle = Target(tmp_path), cast("Any", SimpleNamespace())
    bundle.manifest = SimpleNamespace(bundle_version=7)
    target.kept.add("first", bundle, *older)
    target.kept.add("again", bundle, *newest)
    target.registry().mark_served(NAME, 7)
    assert target.tags == {"first": after, "again": SERVED}


def test_what_is_being_left_is_gone_past_in_each_of_its_registrations() -> None:
    rows = [row(4, SERVED, LEAVING, version=2), row(3, SERVED), row(2, SERVED), row(1, SERVED)]
    assert split(rows, "m3") == (rows[1], rows[3])


def test_one_that_goes_on_hears_a_refusal_from_before_it(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    def refusals(model_id: str, *, earlier: bool = False) -> Any:
        asked.append(earlier)
        return SimpleNamespace(reason=lambda: None)

    monkeypatch.setattr(target, "refusals", refusals)
    interrupt(target, monkeypatch)
    go_back(target)
    assert asked == [False, True]


def test_one_that_left_a_model_added_by_hand_is_gone_on_with(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    target.configured = "a model of somebody's own"
    interrupt(target, monkeypatch)
    assert target.tags == {"a": SERVED, "b": f"{SERVED} {GOAL}"}
    done = go_back(target)
    assert (done.model_id, done.withdrawn_version) == ("b", None)
    assert target.tags == {"a": SERVED, "b": SERVED}


@pytest.mark.parametrize("name", ["a", "b"])
def test_a_deploy_of_either_bundle_ends_one_that_was_interrupted(
    target: Target, bundles: dict[str, Bundle], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Of that which it went to, though nothing is changed; and of that which it left."""
    interrupt(target, monkeypatch)
    target.answering = bundles[name]
    assert deploy(target, bundles[name]).changed == (name == "b")
    if name == "a":
        assert target.tags == {"a": SERVED, "b": WITHDRAWN}
        with pytest.raises(Failure, match="served no other bundle before this one"):
            go_back(target)
    else:
        assert target.tags == {"a": SERVED, "b": SERVED, "uploaded2": SERVED}
        assert go_back(target).model_id == "a"


def test_the_next_one_ends_what_was_interrupted_before_the_last_deploy(
    target: Target, bundles: dict[str, Bundle], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bundle that it went to does not answer when that deploy begins."""
    interrupt(target, monkeypatch)
    target.answering = None
    with monkeypatch.context() as patch:
        patch.setattr(endpoint, "wait_for_golden", lambda *arguments: "no answer")
        with pytest.raises(Failure):
            deploy(target, bundles["c"])
    assert go_back(target).model_id == "a"
    assert target.tags == {"a": SERVED, "b": WITHDRAWN, "uploaded2": WITHDRAWN}


def test_a_deploy_ends_what_was_interrupted_before_it(
    target: Target, bundles: dict[str, Bundle], monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(target, monkeypatch)
    target.answering = None
    deploy(target, bundles["c"])
    assert target.tags == {"a": SERVED, "b": WITHDRAWN, "uploaded2": SERVED}
