"""Clients on kept connections that ask all the time, and what they saw."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

# Far above every deadline of the stack: what takes longer hangs.
HANG_S = 60.0
# Between an answer and the next request. Without it 16 clients take both cores of a small machine,
# and what happens under the load takes three times as long; `make reliability` is without.
PAUSE_S = 0.1
_PAUSE_AFTER_ERROR_S = 0.05
# The status of an exchange that ended without an answer; its text says how.
NO_ANSWER = 0


@dataclass(frozen=True)
class Seen:
    """One answer: status, the bundle that it names, and its text (short: label, code, or error)."""

    status: int
    version: int | None
    text: str


@dataclass
class Log:
    """Everything that all clients of a load saw."""

    counts: Counter[Seen] = field(default_factory=Counter)
    longest_s: float = 0.0
    hung: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, seen: Seen, took_s: float) -> None:
        with self.lock:
            self.counts[seen] += 1
            self.longest_s = max(self.longest_s, took_s)
            self.hung += took_s >= HANG_S

    def statuses(self) -> Counter[int]:
        found: Counter[int] = Counter()
        for seen, count in list(self.counts.items()):
            found[seen.status] += count
        return found

    def total(self) -> int:
        return sum(self.counts.values())

    def except_(self, *fine: Seen) -> dict[Seen, int]:
        return {seen: count for seen, count in list(self.counts.items()) if seen not in fine}


class Client:
    """One kept connection to the front door, with a key or none; connects anew after an error."""

    def __init__(self, port: int, key: str | None = None) -> None:
        self._port = port
        self._headers = {"Content-Type": "application/json"}
        if key is not None:
            self._headers["Authorization"] = f"Bearer {key}"
        self._connection: http.client.HTTPConnection | None = None

    def post(self, endpoint: str, body: Any) -> Seen:
        if self._connection is None:
            self._connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=HANG_S)
        try:
            self._connection.request("POST", f"/serve/{endpoint}", json.dumps(body), self._headers)
            answer = self._connection.getresponse()
            raw = answer.read()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            return Seen(NO_ANSWER, None, type(error).__name__)
        version = answer.headers["x-bundle-version"]
        return Seen(answer.status, int(version) if version else None, _short(raw))

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _short(raw: bytes) -> str:
    try:
        body = json.loads(raw)
    except ValueError:
        return raw[:80].decode("utf-8", "replace")
    if isinstance(body, dict) and "label" in body:
        return f"{body['label']} {body['score']:.2f}"
    if isinstance(body, dict):
        return str(body.get("code") or body.get("detail") or body)[:80]
    return str(body)[:80]


@contextmanager
def load(
    port: int, endpoint: str, body: Any, clients: int = 16, pause_s: float = PAUSE_S
) -> Iterator[Log]:
    """That many clients, each asking again `pause_s` after its answer, until the block ends.

    `body` is one, or a function that gives the next one.
    """
    log, stop = Log(), threading.Event()

    def ask() -> None:
        client = Client(port)
        while not stop.is_set():
            begun = time.monotonic()
            seen = client.post(endpoint, body() if callable(body) else body)
            log.add(seen, time.monotonic() - begun)
            stop.wait(pause_s if seen.status == 200 else max(pause_s, _PAUSE_AFTER_ERROR_S))
        client.close()

    threads = [threading.Thread(target=ask, daemon=True) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield log
    finally:
        stop.set()
        for thread in threads:
            thread.join(2 * HANG_S)


def ask_many(port: int, endpoint: str, bodies: Iterable[Any], clients: int = 8) -> Counter[Seen]:
    """Every body once, over a few connections."""
    waiting, found, lock = list(bodies), Counter[Seen](), threading.Lock()

    def ask() -> None:
        client = Client(port)
        while True:
            with lock:
                if not waiting:
                    break
                body = waiting.pop()
            seen = client.post(endpoint, body)
            with lock:
                found[seen] += 1
        client.close()

    threads = [threading.Thread(target=ask) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found
