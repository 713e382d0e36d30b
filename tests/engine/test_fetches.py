"""What has been fetched is taken, or deleted: nothing of it stays that nobody will ask for."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest

from tests.engine.triton_server import wait_until
from transformer_serving.engine.controller.control_plane.served import Served
from transformer_serving.engine.controller.fetches import Fetches
from transformer_serving.engine.controller.records import Version

NONE: Any = None
SERVED = Served("m", "m", "id", None, "onnxruntime", NONE, "first", "content")


def version(token: str) -> Version:
    return Version(1, token, "", "onnxruntime", None, False, "id", token, 0.0)


def test_what_another_one_overtook_is_deleted() -> None:
    """The second is asked for while the first is on its way, and both come before anybody looks."""
    go, discarded = threading.Event(), list[tuple[str, str]]()

    def fetch(served: Served, record: Any) -> Version:
        assert go.wait(60)
        return version(served.fingerprint)

    fetches = Fetches(fetch, lambda *named: discarded.append(named), lambda: None)
    second = replace(SERVED, fingerprint="second")
    fetches.start(SERVED, NONE)
    go.set()
    wait_until(lambda: not list(fetches.failed()) and not fetches.coming("m"), 20)
    assert fetches.take(second) is None
    fetches.start(second, NONE)
    wait_until(lambda: not list(fetches.failed()) and not fetches.coming("m"), 20)
    taken = fetches.take(second)
    assert taken is not None
    assert taken.token == "second"
    wait_until(lambda: discarded == [("m", "first")], 20)


def test_what_no_thread_could_be_had_for_is_not_fetched_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The pool keeps it: a round asks again, and each would have copied the model once more."""
    fetched: list[str] = []

    def fetch(served: Served, record: Any) -> Version:
        fetched.append(served.fingerprint)
        return version(served.fingerprint)

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    fetches = Fetches(fetch, lambda *named: None, lambda: None)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        for _ in range(3):
            with pytest.raises(RuntimeError):
                fetches.start(replace(SERVED, fingerprint="refused"), NONE)
            assert not fetches.coming("m")
    fetches.start(SERVED, NONE)
    wait_until(lambda: not list(fetches.failed()) and not fetches.coming("m"), 20)
    assert fetched == ["first"]
    assert fetches.take(SERVED) is not None
