"""What a state holds is loaded by the keys and rules of now, not by those of when it came."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engine.rounds import Rounds
from tests.engine.text_models import write_onnx
from tests.stack.small_bundles import write_small
from transformer_serving.contract.gate.refusals import RULES
from transformer_serving.contract.gate.server_facts import COMPATIBLE_VARIABLE
from transformer_serving.contract.signatures import TRUSTED_KEYS_VARIABLE
from transformer_serving.desk.bundle.signing import SigningKey, new_key, sign_bundle
from transformer_serving.engine.controller.first_loads import UNTRUSTED
from transformer_serving.engine.errors import EngineError

Trusted = Callable[..., None]


@pytest.fixture
def mine(tmp_path: Path) -> SigningKey:
    return new_key("mine", tmp_path)[1]


@pytest.fixture
def other(tmp_path: Path) -> SigningKey:
    return new_key("other", tmp_path)[1]


@pytest.fixture
def one(tmp_path: Path) -> Rounds:
    return Rounds(tmp_path / "controller")


@pytest.fixture
def trust(one: Rounds, monkeypatch: pytest.MonkeyPatch) -> Trusted:
    """The controller goes, and comes back with these keys."""

    def restart(*keys: SigningKey) -> None:
        monkeypatch.setenv(TRUSTED_KEYS_VARIABLE, " ".join(key.public for key in keys))
        one.restart()

    return restart


def serve_signed(one: Rounds, folder: Path, key: SigningKey) -> None:
    bundle = write_small(folder / "bundle").folder
    sign_bundle(bundle, key)
    one.plane.add("m", bundle / "model", (bundle / "preprocess.py").read_text())
    served(one)


def served(one: Rounds) -> None:
    one.until(lambda: one.row("m").get("ready") and not one.service._jobs)


def lose(one: Rounds) -> None:
    """As when the machine, or Triton, was started again."""
    one.triton.ready.clear()
    one.triton.loads.clear()


def change_state(one: Rounds, change: Callable[[dict[str, Any]], None]) -> None:
    state = one.state()
    change(state["models"]["m"])
    one.path.write_text(json.dumps(state))


def kept(one: Rounds) -> list[dict[str, Any]]:
    return list(one.state()["models"]["m"]["versions"])


def out_of_reach(one: Rounds) -> None:
    one.plane.error = EngineError("no answer from the ClearML server")


@pytest.mark.parametrize("lost", [True, False])
def test_an_unsigned_model_is_not_loaded_once_keys_are_trusted(
    one: Rounds, tmp_path: Path, mine: SigningKey, trust: Trusted, lost: bool
) -> None:
    one.plane.add("m", write_onnx(tmp_path / "m"))
    served(one)
    if lost:
        lose(one)
    loads = list(one.triton.loads)
    trust(mine)
    one.until(lambda: "so nobody signed it" in (one.row("m")["reason"] or ""))
    assert not one.row("m")["ready"]
    assert (one.triton.loads, one.triton.ready) == (loads, {})


def test_a_key_beside_that_which_signed_it_asks_nobody_for_it_again(
    one: Rounds, tmp_path: Path, mine: SigningKey, other: SigningKey, trust: Trusted
) -> None:
    trust(mine)
    serve_signed(one, tmp_path, mine)
    out_of_reach(one)
    trust(mine, other)
    for _ in range(5):
        one.service.round()
    assert one.row("m")["ready"]
    assert one.triton.loads == ["m"]
    lose(one)
    trust(other, mine)
    served(one)
    # Where nobody is trusted, nobody is asked either.
    lose(one)
    trust()
    served(one)


def test_a_key_that_is_taken_away_takes_what_it_signed_along(
    one: Rounds, tmp_path: Path, mine: SigningKey, other: SigningKey, trust: Trusted
) -> None:
    trust(mine, other)
    serve_signed(one, tmp_path, mine)
    lose(one)
    trust(other)
    one.until(lambda: "signed by 'mine', whose key is not in" in (one.row("m")["reason"] or ""))
    # Another key of its name is another key.
    (tmp_path / "new").mkdir()
    trust(new_key("mine", tmp_path / "new")[1])
    one.until(lambda: "another key of that name" in (one.row("m")["reason"] or ""))
    assert one.triton.loads == []
    out_of_reach(one)
    trust(mine)
    served(one)
    assert one.triton.loads == ["m"]


def test_what_was_taken_without_keys_is_checked_before_it_is_loaded(
    one: Rounds, tmp_path: Path, mine: SigningKey, trust: Trusted
) -> None:
    """Also of a kit before this one, whose records do not say who signed."""
    serve_signed(one, tmp_path, mine)
    lose(one)
    with one.downloads_held() as asked:
        trust(mine)
        one.until(lambda: one.row("m")["reason"] == UNTRUSTED and asked.is_set())
        assert one.triton.loads == []
    served(one)
    assert kept(one)[0]["signed_by"] == mine.public


def test_keys_that_cannot_be_read_let_nothing_in(
    one: Rounds, tmp_path: Path, mine: SigningKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve_signed(one, tmp_path, mine)
    lose(one)
    monkeypatch.setenv(TRUSTED_KEYS_VARIABLE, "no key at all")
    one.restart()
    one.until(lambda: "entry 1 is no NAME:KEY" in (one.row("m")["reason"] or ""))
    assert one.triton.loads == []


def test_an_older_version_of_a_key_that_is_gone_is_dropped(
    one: Rounds, tmp_path: Path, mine: SigningKey, other: SigningKey, trust: Trusted
) -> None:
    trust(mine)
    serve_signed(one, tmp_path, mine)

    def add_older(record: dict[str, Any]) -> None:
        older = {"number": 7, "signed_by": other.public, "drop_at": time.time() + 1000}
        record["versions"].append({**record["versions"][0], **older})

    change_state(one, add_older)
    trust(mine)
    one.until(lambda: len(kept(one)) == 1)
    served(one)
    assert kept(one)[0]["signed_by"] == mine.public


def of_an_earlier_kit(record: dict[str, Any]) -> None:
    for version in record["versions"]:
        del version["rules"], version["signed_by"]


def test_an_upgrade_without_keys_loads_what_lies_here_after_a_look_at_it(
    one: Rounds, tmp_path: Path, mine: SigningKey, trust: Trusted
) -> None:
    serve_signed(one, tmp_path, mine)
    change_state(one, of_an_earlier_kit)
    lose(one)
    out_of_reach(one)
    trust()
    served(one)
    assert kept(one)[0]["rules"] == RULES
    # Once is enough.
    for _ in range(5):
        one.service.round()
    assert one.triton.loads == ["m"]


def test_an_upgrade_keeps_the_version_in_grace(
    one: Rounds, tmp_path: Path, mine: SigningKey, trust: Trusted
) -> None:
    """Workers that do not know of the newest yet ask for it."""
    serve_signed(one, tmp_path, mine)

    def of_an_earlier_kit_in_grace(record: dict[str, Any]) -> None:
        older = {"number": 7, "drop_at": time.time() + 1000}
        record["versions"].append({**record["versions"][0], **older})
        of_an_earlier_kit(record)

    change_state(one, of_an_earlier_kit_in_grace)
    lose(one)
    trust()
    one.until(lambda: all(row.get("rules") == RULES for row in kept(one)))
    assert [row["number"] == 7 for row in kept(one)] == [False, True]


def test_a_bundle_that_an_earlier_kit_took_is_read_by_the_gate(
    one: Rounds, tmp_path: Path, mine: SigningKey, trust: Trusted
) -> None:
    serve_signed(one, tmp_path, mine)
    change_state(one, of_an_earlier_kit)
    files = one.folder / "models" / ".versions" / "m" / kept(one)[0]["token"]
    (files / "libtriton_onnxruntime.so").write_bytes(b"")
    lose(one)
    out_of_reach(one)
    trust()
    one.until(
        lambda: "libtriton_onnxruntime.so' is not in the manifest" in (one.row("m")["reason"] or "")
    )
    assert one.triton.loads == []


@pytest.mark.parametrize("lost", [True, False])
def test_what_an_earlier_kit_took_and_this_one_refuses_is_not_loaded(
    one: Rounds, tmp_path: Path, trust: Trusted, lost: bool
) -> None:
    one.plane.add("m", write_onnx(tmp_path / "m"))
    served(one)

    def name_a_command(record: dict[str, Any]) -> None:
        of_an_earlier_kit(record)
        current = record["versions"][0]
        current["config"] = current["config"].replace(
            "instance_group {", 'instance_group { name: "x; touch y;"'
        )

    change_state(one, name_a_command)
    if lost:
        lose(one)
    loads = list(one.triton.loads)
    out_of_reach(one)
    trust()
    one.until(lambda: "'instance_group.0.name' must have only" in (one.row("m")["reason"] or ""))
    assert (one.triton.loads, one.triton.ready) == (loads, {})


@pytest.mark.parametrize("lost", [True, False])
def test_a_plan_that_nobody_signed_is_not_loaded_once_triton_runs_the_code_of_plans(
    one: Rounds,
    tmp_path: Path,
    mine: SigningKey,
    trust: Trusted,
    monkeypatch: pytest.MonkeyPatch,
    lost: bool,
) -> None:
    """Also where this kit took it, by the rules of now."""
    serve_signed(one, tmp_path, mine)
    change_state(one, lambda record: record["versions"][0].update(backend="tensorrt"))
    assert kept(one)[0]["rules"] == RULES
    if lost:
        lose(one)
    loads = list(one.triton.loads)
    out_of_reach(one)
    monkeypatch.setenv(COMPATIBLE_VARIABLE, "1")
    trust()
    one.until(lambda: f"unset {COMPATIBLE_VARIABLE}" in (one.row("m")["reason"] or ""))
    assert (one.triton.loads, one.triton.ready) == (loads, {})
    monkeypatch.delenv(COMPATIBLE_VARIABLE)
    trust()
    served(one)
    monkeypatch.setenv(COMPATIBLE_VARIABLE, "1")
    one.plane.error = None
    trust(mine)
    served(one)
    assert kept(one)[0]["signed_by"] == mine.public


def test_an_older_plan_that_nobody_signed_is_dropped(
    one: Rounds, tmp_path: Path, trust: Trusted, monkeypatch: pytest.MonkeyPatch
) -> None:
    one.plane.add("m", write_onnx(tmp_path / "m"))
    served(one)

    def add_older(record: dict[str, Any]) -> None:
        older = {"number": 7, "backend": "tensorrt", "drop_at": time.time() + 1000}
        record["versions"].append({**record["versions"][0], **older})

    change_state(one, add_older)
    monkeypatch.setenv(COMPATIBLE_VARIABLE, "1")
    trust()
    one.until(lambda: len(kept(one)) == 1)
    served(one)
    assert kept(one)[0]["backend"] == "onnxruntime"
