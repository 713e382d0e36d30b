"""What deploy and rollback do by what the registry says; the whole way is in tests/stack."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.stack.small_bundles import Parts, write_small
from transformer_serving.desk.bundle.folder import Bundle
from transformer_serving.desk.deploy import endpoint, rollback
from transformer_serving.desk.deploy.golden import Refused, Reply
from transformer_serving.desk.deploy.registry import SERVED, WITHDRAWN, Registered, split
from transformer_serving.desk.failure import Failure


def row(number: int, *tags: str) -> Registered:
    return Registered(f"m{number}", number, "http://files/x.zip", tags)


def test_the_newest_older_one_that_was_served() -> None:
    rows = [row(5, SERVED), row(4, SERVED), row(3, WITHDRAWN), row(2), row(1, SERVED)]
    assert split(rows, "m4") == (rows[1], rows[4])
    assert split(rows, "m5") == (rows[0], rows[1])
    assert split(rows, "m1") == (rows[4], None)


def test_an_endpoint_added_by_hand_goes_to_the_newest_that_was_served() -> None:
    rows = [row(2), row(1, SERVED)]
    assert split(rows, "a model of somebody's own") == (None, rows[1])
    assert split([], "m1") == (None, None)


class Target:
    """An endpoint whose front door gives one bundle's golden answer, whatever is configured."""

    key = None
    triton = None

    def __init__(self, folder: Path, configured: str, **bundles: Bundle) -> None:
        self.lock = folder / "deploy.lock"
        self.cli = self
        self.configured = configured
        self.bundles_of = bundles
        self.tags = dict.fromkeys(bundles, SERVED)
        self.answering = bundles[configured]

    def url(self, name: str) -> str:
        return f"http://front/{name}"

    def ask(self, name: str, request: Any) -> Reply:
        manifest = self.answering.manifest
        return Reply(200, manifest.golden.answer, manifest.bundle_version)

    def run(self, *command: str) -> str:
        assert command == ("model", "list")
        rows = {"texts": {"model_id": self.configured}}
        return f"Endpoints:\n{json.dumps(rows)}\nModel Monitoring:\n"

    def refusals(self, model_id: str) -> Any:
        return SimpleNamespace(reason=lambda: None)

    def registry(self) -> Target:
        return self

    def bundles(self, name: str) -> list[Registered]:
        return [
            Registered(model, bundle.manifest.bundle_version, "", (self.tags[model],))
            for model, bundle in reversed(self.bundles_of.items())
        ]

    @contextmanager
    def fetched(self, row: Registered) -> Iterator[Bundle]:
        yield self.bundles_of[row.model_id]

    def mark_served(self, name: str, version: int) -> None:
        pass

    def mark_withdrawn(self, row: Registered) -> None:
        self.tags[row.model_id] = WITHDRAWN

    def add(self, target: Any, bundle: Bundle, name: str, model_id: str) -> None:
        self.configured = model_id


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Target:
    """B is configured, after A."""
    a, b = (write_small(tmp_path / name, Parts(revision=name)) for name in "ab")
    target = Target(tmp_path, "b", a=a, b=b)
    for module in (endpoint, rollback):
        monkeypatch.setattr(module, "refuse_in_rollout", lambda cli, name: None)
        monkeypatch.setattr(module, "add_and_look", target.add)
    monkeypatch.setattr(endpoint, "wait_for_golden", lambda *arguments: None)
    return target


def deployed(target: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> bool:
    def upload(target: Any, bundle: Bundle, endpoint: str) -> str:
        target.bundles_of["new"], target.tags["new"] = bundle, ""
        return "new"

    monkeypatch.setattr(endpoint, "upload", upload)
    bundle = target.bundles_of[name]
    return endpoint.deploy(target, bundle, "texts", timeout_s=60, report=lambda _: None).changed


def test_what_answers_and_is_not_configured_is_added_again(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A answers on where B was refused: a new worker or Triton would find B alone."""
    assert not deployed(target, "b", monkeypatch)
    target.answering = target.bundles_of["a"]
    assert deployed(target, "a", monkeypatch)
    assert target.configured == "new"


def test_a_rollback_that_fails_withdraws_nothing_and_says_how_to_go_on(
    target: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    reasons: list[str | None] = [Refused("it is not served"), "no answer"]
    monkeypatch.setattr(endpoint, "wait_for_golden", lambda *arguments: reasons.pop(0))
    number = target.bundles_of["b"].manifest.bundle_version
    how = f"bundle {number} is served again with 'transformer-serving deploy BUNDLE --endpoint"
    while reasons:
        target.configured = "b"
        with pytest.raises(Failure, match=how) as failed:
            rollback.rollback(target, "texts", timeout_s=60, report=lambda _: None)
        assert "transformer-serving rollback" not in str(failed.value)
        assert target.tags == {"a": SERVED, "b": SERVED}
    reasons.append(None)
    target.configured = "b"
    done = rollback.rollback(target, "texts", timeout_s=60, report=lambda _: None)
    assert (done.model_id, done.withdrawn_version) == ("a", number)
    assert target.tags == {"a": SERVED, "b": WITHDRAWN}
