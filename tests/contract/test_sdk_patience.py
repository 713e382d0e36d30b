"""How the SDK's own loop asks again: with its code, and a session that the test plays."""

from __future__ import annotations

import importlib
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests
from clearml.backend_api.session.session import LoginError
from clearml.backend_interface.session import SendError

from transformer_serving.contract.worker import sdk_patience

base: Any = importlib.import_module("clearml.backend_interface.base").InterfaceBase
REPO = Path(__file__).parents[2]
REFUSED = LoginError("Failed getting token (error 401 from http://api): unauthorized")
KEYS = "http://api refused the login; check CLEARML_API_ACCESS_KEY and CLEARML_API_SECRET_KEY"


class Session:
    """Gives or raises one after the other, then answers for ever."""

    host = "http://api"

    def __init__(self, *outcomes: Any) -> None:
        self.left = list(outcomes)
        self.asked = 0

    def send(self, request: Any, async_enable: bool = False) -> Any:
        self.asked += 1
        outcome = self.left.pop(0) if self.left else 200
        if isinstance(outcome, BaseException):
            raise outcome
        return SimpleNamespace(meta=SimpleNamespace(result_code=outcome))


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """The SDK as ours, and the pauses that nobody waits for."""
    waited: list[float] = []
    monkeypatch.setattr(base, "_send", vars(base)["_send"])
    monkeypatch.setattr(
        sdk_patience._Patience, "wait", lambda self, seconds: waited.append(seconds)
    )
    sdk_patience._patience.cache_clear()
    sdk_patience.wait_between_tries()
    yield waited
    sdk_patience._patience.cache_clear()


def send(session: Session, **options: Any) -> Any:
    return base._send(session, SimpleNamespace(to_dict=dict), **options)


@pytest.mark.parametrize(
    ("outcome", "text"),
    [
        (REFUSED, KEYS),
        (504, "http://api answers 504"),
        (LoginError("Failed getting token (error 504 from http://api): x"), "answers 504"),
        (
            LoginError("Unrecognized Authentication Error: (too many 503 error responses)"),
            "answers 503",
        ),
        (LoginError("Failed getting token (error 400 from http://api): x"), "answers 400"),
        (LoginError("Unrecognized Authentication Error: x"), "no answer of ClearML's API"),
        (ValueError("It seems *api_server* is misconfigured."), "set CLEARML_API_HOST"),
    ],
    ids=[
        "keys",
        "balancer",
        "login-at-balancer",
        "retries-at-balancer",
        "bad-login",
        "no-login",
        "another-server",
    ],  # fmt: skip
)
def test_what_is_refused_is_asked_again_after_growing_pauses(
    outcome: Any, text: str, pauses: list[float], caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    session = Session(*[outcome] * 9)
    with caplog.at_level(logging.INFO):
        assert send(session).meta.result_code == 200
    assert session.asked == 10
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    told, well = caplog.messages
    assert text in told
    assert "again" in well
    assert not capfd.readouterr().err, "no traceback each time"
    assert sdk_patience.refusal() is None


def test_what_was_not_reached_is_asked_as_soon_as_before(
    pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took the SDK's own tries; one that is there again is found at once."""
    away = LoginError("Unrecognized Authentication Error: <class 'ConnectionError'> refused")
    sdk_patience.raise_here(RuntimeError)
    session = Session(*[away] * 3, requests.exceptions.ConnectionError("refused"))
    assert send(session).meta.result_code == 200
    assert pauses == [1, 1, 1]


@pytest.mark.parametrize("outcome", [REFUSED, 502])
def test_a_thread_with_somebody_to_tell_waits_for_nothing(
    outcome: Any, pauses: list[float]
) -> None:
    sdk_patience.raise_here(RuntimeError)
    with pytest.raises(RuntimeError, match="http://api"):
        send(Session(outcome))
    refused = sdk_patience.refusal()
    assert refused is not None
    assert refused.text.startswith("http://api")
    # Other threads do wait.
    other = threading.Thread(target=send, args=(Session(outcome),))
    other.start()
    other.join(60)
    assert pauses == [1]


ENDING = """
import atexit, sys, threading
from tests.contract.test_sdk_patience import REFUSED, Session, sdk_patience, send

sdk_patience.wait_between_tries()
send(Session())

def told(who, outcome):
    try:
        send(Session(*[outcome] * 99))
    except Exception as error:
        print(who, type(error).__name__, flush=True)

def at_exit():
    told("the end", REFUSED)
    told("the end", 502)
    print(send(Session(502), raise_on_errors=False).meta.result_code)

# As the SDK does: after its first answers, by the main thread, which then joins others.
atexit.register(at_exit)
threading.Thread(target=told, args=("a thread", REFUSED)).start()
while sdk_patience.refusal() is None:
    pass
"""


def test_nobody_waits_while_the_process_ends() -> None:
    """Whoever registered first for its end, and whoever waited before."""
    ended = subprocess.run(
        [sys.executable, "-c", ENDING], cwd=REPO, timeout=50, check=True,
        capture_output=True, text=True,
    )  # fmt: skip
    assert ended.stdout.splitlines() == [
        "a thread LoginError", "the end LoginError", "the end SendError", "502",
    ]  # fmt: skip


def test_what_the_sdk_answers_itself_is_left_to_it(pauses: list[float]) -> None:
    with pytest.raises(SendError):
        send(Session(401))
    assert send(Session(500), raise_on_errors=False).meta.result_code == 500
    assert send(Session(504), ignore_errors=True).meta.result_code == 504
    assert not pauses


def test_an_answer_ends_the_pauses_of_all() -> None:
    patience = sdk_patience._Patience()
    patience.refused(sdk_patience.Refusal("played"))
    waiting = [threading.Thread(target=patience.wait, args=(600.0,)) for _ in range(3)]
    for thread in waiting:
        thread.start()
    patience.answered()
    for thread in waiting:
        thread.join(60)
        assert not thread.is_alive()


def test_done_twice_it_is_done_once(pauses: list[float]) -> None:
    done = base._send
    sdk_patience.wait_between_tries()
    assert base._send == done
