"""One short HTTP question, where no answer is also an answer.

Tested by tests/doctor/test_faults.py.
"""

from __future__ import annotations

import json
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

from transformer_serving.desk import http

_TIMEOUT_S = 4.0
_MOST = 1 << 20


@dataclass(frozen=True)
class Answer:
    """`status` 0 when nothing answered, then `error` says why. `asked_at` is Unix time.

    `unresolved` where the host's name has no address, `distrusted` where TLS failed.
    """

    status: int
    body: bytes
    headers: Mapping[str, str]
    error: str
    asked_at: float
    unresolved: bool = False
    distrusted: bool = False

    def json(self) -> dict[str, Any]:
        """The JSON object of the body; empty when it is none."""
        try:
            values = json.loads(self.body)
        except ValueError:
            return {}
        return values if isinstance(values, dict) else {}

    def clock_ahead_s(self) -> float | None:
        """How far the server's Date is ahead of this machine's clock, in seconds."""
        date = self.headers.get("Date") or self.headers.get("date")
        try:
            return parsedate_to_datetime(date).timestamp() - self.asked_at if date else None
        except ValueError:
            return None


def ask(url: str, headers: Mapping[str, str] | None = None) -> Answer:
    """GET an http(s) URL. Never raises."""
    if not url.startswith(("http://", "https://")):
        return _silent("it is no http:// or https:// address")
    if http.has_login(url):
        return _silent(http.LOGIN)
    return _answer(lambda: http.ask(url, headers=headers, timeout_s=_TIMEOUT_S, most=_MOST))


def ask_at(address: str, path: str) -> Answer:
    """GET at host:port or unix:/path. Never raises."""
    return _answer(lambda: http.ask_at(address, path, timeout_s=_TIMEOUT_S))


def _answer(question: Callable[[], http.HttpAnswer]) -> Answer:
    try:
        said = question()
    except http.NoAnswer as error:
        return _silent(
            _reason(error.cause),
            unresolved=isinstance(error.cause, socket.gaierror),
            distrusted=isinstance(error.cause, ssl.SSLError),
        )
    return Answer(said.status, said.body, dict(said.headers.items()), "", time.time())


def _silent(error: str, *, unresolved: bool = False, distrusted: bool = False) -> Answer:
    return Answer(0, b"", {}, error, time.time(), unresolved, distrusted)


def _reason(error: object) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {_TIMEOUT_S:.0f} s"
    text = error.strerror if isinstance(error, OSError) else None
    return (text or str(error) or type(error).__name__).lower()
