"""What ClearML's API refuses is asked again after a pause, and said once.

The SDK asks again, at once and without end, where a login is refused and where the result is above
500: keys that were exchanged, or a balancer's 504, made each of its threads send hundreds of
requests a second and write as many tracebacks. Here such a thread waits, 1 s and then longer, up to
a minute, or until another thread had an answer. A thread that has somebody to tell is told instead.

Tested by tests/contract/test_sdk_patience.py and tests/engine/test_clearml_edge.py.
"""

from __future__ import annotations

import importlib
import logging
import re
import threading
import time
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

log = logging.getLogger("transformer_serving.clearml")
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0
# Who waits looks this often whether the process ends.
_LOOK_S = 0.5
_LAST_PROPER = 500
_KEYS = "check CLEARML_API_ACCESS_KEY and CLEARML_API_SECRET_KEY"
# Of a server that answers, but not as the API.
NO_API_FIX = (
    "set CLEARML_API_HOST to the API server: port 8008 or api.HOST, not the web server (8080, app.)"
)
# As the SDK words what came of a login; what it asked again in vain it words as urllib3 does.
_STATUS = re.compile(r"(?:\(error |too many )(\d+) (?:from |error responses)")
_ANOTHER = "*api_server* is misconfigured"
_OF_KEYS = ("401", "403")
_AWAY = ("ConnectionError", "Timeout")


class Refusal(NamedTuple):
    """Why the API gave no answer; `is_away` where it was not reached at all."""

    text: str
    is_away: bool = False


def login_refusal(host: str, error: BaseException) -> Refusal:
    """What the SDK's LoginError says, or another error of a call."""
    text = str(error)
    if any(name in f"{type(error).__name__} {text}" for name in _AWAY):
        return Refusal(f"no answer from {host}", is_away=True)
    status = _STATUS.search(text)
    if status is not None:
        # No other status speaks of keys.
        said = f"refused the login; {_KEYS}" if status[1] in _OF_KEYS else f"answers {status[1]}"
        return Refusal(f"{host} {said}")
    why = f"; {NO_API_FIX}" if _ANOTHER in text else f": {type(error).__name__}"
    return Refusal(f"{host} gives no answer of ClearML's API{why}")


class _RefusedError(BaseException):
    """No Exception: those the SDK's loop catches, to go on at once."""

    def __init__(self, refusal: Refusal, error: Exception | None, result: Any = None) -> None:
        super().__init__(refusal.text)
        self.refusal = refusal
        self.error = error
        self.result = result


class _Patience:
    """What the API said last, and those who wait until it says something else."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.refusal: Refusal | None = None
        self.here = threading.local()

    @property
    def leaving(self) -> bool:
        """Whether the process ends. Not told by atexit, which comes after the threads that Python
        waits for, and after what the SDK registered later and asks there."""
        return not threading.main_thread().is_alive()

    def answered(self) -> None:
        if self.refusal is None:
            return
        with self._changed:
            was_refused, self.refusal = self.refusal is not None, None
            self._changed.notify_all()
        if was_refused:
            log.info("ClearML answers again")

    def refused(self, refusal: Refusal) -> bool:
        """Whether that is new."""
        with self._changed:
            before, self.refusal = self.refusal, refusal
        return before != refusal

    def wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        with self._changed:
            while not self.leaving and self.refusal is not None:
                if (rest := end - time.monotonic()) <= 0:
                    return
                self._changed.wait(min(rest, _LOOK_S))


@cache
def _patience() -> _Patience:
    return _Patience()


def refusal() -> Refusal | None:
    """What the API said last, where that was no answer."""
    return _patience().refusal


def raise_here(error_of: Callable[[str], Exception]) -> None:
    """From now on this thread's calls raise that error of a refusal, and never wait for its end."""
    _patience().here.error_of = error_of


def wait_between_tries() -> None:
    """From now on the SDK's calls of this process pause; once is enough."""
    base: Any = importlib.import_module("clearml.backend_interface.base").InterfaceBase
    send = base._send.__func__
    if hasattr(send, "waits"):
        return

    def _send(
        cls: Any,
        session: Any,
        req: Any,
        ignore_errors: bool = False,
        raise_on_errors: bool = True,
        log: Any = None,
        async_enable: bool = False,
    ) -> Any:
        once = _Once(session, ignore_errors)
        pause = _FIRST_PAUSE_S
        while True:
            try:
                return send(cls, once, req, ignore_errors, raise_on_errors, log, async_enable)
            except _RefusedError as refused:
                if _is_over(refused, pause):
                    return _ended(refused, raise_on_errors)
                pause = _FIRST_PAUSE_S if refused.refusal.is_away else 2 * pause

    _send.waits = True  # type: ignore[attr-defined]
    base._send = classmethod(_send)


class _Once:
    """A session as the SDK's loop sees it: what it would ask again at once ends the loop."""

    def __init__(self, session: Any, ignore_errors: bool) -> None:
        self._session = session
        self._ignore_errors = ignore_errors

    def send(self, *arguments: Any, **named: Any) -> Any:
        try:
            result = self._session.send(*arguments, **named)
        except _by_the_sdk():
            # It took its tries, or is nobody's fault but the caller's.
            raise
        except Exception as error:
            raise _RefusedError(login_refusal(self._session.host, error), error) from error
        code = 0 if result is None else result.meta.result_code
        if code > _LAST_PROPER and not self._ignore_errors:
            raise _RefusedError(Refusal(f"{self._session.host} answers {code}"), None, result)
        _patience().answered()
        return result


@cache
def _by_the_sdk() -> tuple[type[BaseException], ...]:
    """What the SDK's loop has a clause for."""
    errors: Any = importlib.import_module("requests.exceptions")
    session: Any = importlib.import_module("clearml.backend_api.session.session")
    base: Any = importlib.import_module("clearml.backend_interface.base")
    reached = (errors.BaseHTTPError, errors.ConnectionError)
    return (*reached, session.MaxRequestSizeError, *base.InterfaceBase._JSON_EXCEPTION)


def _is_over(refused: _RefusedError, pause: float) -> bool:
    """Whether the call has ended without an answer; else it is time to ask again."""
    patience = _patience()
    is_new = patience.refused(refused.refusal)
    if (error_of := getattr(patience.here, "error_of", None)) and not refused.refusal.is_away:
        raise error_of(refused.refusal.text) from None
    if is_new and not patience.leaving:
        log.error(
            "ClearML: %s; asked again after growing pauses of up to %.0f s",
            refused.refusal.text, _LONGEST_PAUSE_S,
        )  # fmt: skip
    patience.wait(min(pause, _LONGEST_PAUSE_S))
    return patience.leaving


def _ended(refused: _RefusedError, raise_on_errors: bool) -> Any:
    """As the SDK's loop ends for a proper error."""
    if refused.error is not None:
        raise refused.error
    if raise_on_errors:
        session: Any = importlib.import_module("clearml.backend_interface.session")
        raise session.SendError(refused.result, refused.refusal.text)
    return refused.result
