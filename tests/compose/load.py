"""Clients that ask until told to stop, without a pause or with one, and count what came back."""

from __future__ import annotations

import http.client
import json
import threading
from collections import Counter
from types import TracebackType

HEADERS = {"Content-Type": "application/json"}
MEAL = "The best meal I have had in years."
_TIMEOUT_S = 90.0


# Status or the error's name, the bundle's version, the label.
Row = tuple[int | str, str | None, str | None]


class Client(threading.Thread):
    """One client on a kept connection. `seen` counts (status or error, bundle version, label)."""

    def __init__(self, host: str, port: int, endpoint: str, text: str, pause_s: float) -> None:
        super().__init__(daemon=True)
        self.seen: Counter[Row] = Counter()
        self.stop = threading.Event()
        self._host, self._port, self._path = host, port, f"/serve/{endpoint}"
        self._pause_s = pause_s
        self._body = json.dumps({"text": text})

    def run(self) -> None:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=_TIMEOUT_S)
        while not self.stop.wait(self._pause_s):
            try:
                connection.request("POST", self._path, self._body, HEADERS)
                answer = connection.getresponse()
                body = json.loads(answer.read())
                row: Row = (answer.status, answer.headers["x-bundle-version"], body.get("label"))
            except (OSError, http.client.HTTPException, ValueError) as error:
                connection.close()
                row = (type(error).__name__, None, None)
            self.seen[row] += 1
        connection.close()


class Load:
    """Several clients while the block runs; then `sent`, `failed` and what was `seen`."""

    def __init__(
        self, port: int, endpoint: str, clients: int, text: str = MEAL, *,
        host: str = "127.0.0.1", pause_s: float = 0.0,
    ) -> None:  # fmt: skip
        rest = (host, port, endpoint, text, pause_s)
        self._clients = [Client(*rest) for _ in range(clients)]
        self.seen: Counter[Row] = Counter()

    def __enter__(self) -> Load:
        for client in self._clients:
            client.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for client in self._clients:
            client.stop.set()
        for client in self._clients:
            client.join(2 * _TIMEOUT_S)
            self.seen += client.seen

    @property
    def answered(self) -> int:
        """Answers so far, also while it runs."""
        return sum(sum(client.seen.values()) for client in self._clients)

    @property
    def sent(self) -> int:
        return sum(self.seen.values())

    @property
    def failed(self) -> int:
        return sum(count for (status, _, _), count in self.seen.items() if status != 200)
