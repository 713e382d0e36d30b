"""One short HTTP question, where no answer is also an answer."""

from __future__ import annotations

import http.client
import json
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

from transformer_serving.desk.local import listener

_TIMEOUT_S = 4.0
_MOST = 1 << 20


@dataclass(frozen=True)
class Answer:
    """`status` 0 when nothing answered, then `error` says why. `asked_at` is Unix time."""

    status: int
    body: bytes
    headers: Mapping[str, str]
    error: str
    asked_at: float
    unresolved: bool = False

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
    try:
        request = urllib.request.Request(url, headers=dict(headers or {}))
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
            return _answer(answer.status, answer.headers, answer.read(_MOST))
    except urllib.error.HTTPError as error:
        return _answer(error.code, error.headers, error.read(_MOST))
    except urllib.error.URLError as error:
        return _silent(_reason(error.reason), unresolved=isinstance(error.reason, socket.gaierror))
    except (OSError, http.client.HTTPException, ValueError) as error:
        return _silent(_reason(error))


def ask_at(address: str, path: str) -> Answer:
    """GET at host:port or unix:/path. Never raises."""
    try:
        status, body = listener.ask(address, path, timeout_s=_TIMEOUT_S)
    except socket.gaierror as error:
        return _silent(_reason(error), unresolved=True)
    except (OSError, http.client.HTTPException, ValueError) as error:
        return _silent(_reason(error))
    return _answer(status, {}, body)


def _answer(status: int, headers: Any, body: bytes) -> Answer:
    return Answer(status, body, dict(headers.items()), "", time.time())


def _silent(error: str, *, unresolved: bool = False) -> Answer:
    return Answer(0, b"", {}, error, time.time(), unresolved)


def _reason(error: object) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {_TIMEOUT_S:.0f} s"
    text = error.strerror if isinstance(error, OSError) else None
    return (text or str(error) or type(error).__name__).lower()
