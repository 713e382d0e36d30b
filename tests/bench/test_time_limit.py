"""What a load counts that has no answer when its time is up."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.bench.served import served
from transformer_serving.desk.bench import load, loops
from transformer_serving.desk.bench.connection import Address

PAYLOAD = load.Payload("one", b"{}")
HANGS = load.Payload("hangs", b"{}", 3)


class Hanging:
    """At /hang it answers nobody, at /hang-once not the second who asks, and counts whom it let
    wait."""

    def __init__(self) -> None:
        self.asked = self.hung = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        self.asked += 1
        if scope["path"] == "/hang" or (scope["path"] == "/hang-once" and self.asked == 2):
            self.hung += 1
            # Until the caller leaves.
            await receive()
            return
        await asyncio.sleep(0.05)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})


def test_what_is_not_answered_is_counted_and_not_sent_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other load goes on in the same event loop, in which more could be sent."""
    monkeypatch.setattr(loops, "_PATIENCE_S", 0.2)
    app = Hanging()
    with served(app) as port:
        base = f"http://127.0.0.1:{port}"
        found, other = load.run_together(
            [
                (Address.of(f"{base}/hang"), [HANGS], load.Open(50, 0.4, connections=1)),
                (Address.of(f"{base}/"), [PAYLOAD], load.Closed(1, 1.5)),
            ]
        )
    assert {(one.label, one.texts, one.status) for one in found.exchanges} == {("hangs", 3, 0)}
    assert len(found.exchanges) == len(load.arrivals(50, 0.4))
    assert all(one.due <= one.sent <= one.done for one in found.exchanges)
    assert {exchange.status for exchange in other.exchanges} == {200}
    assert app.hung == 1


def test_a_client_that_hangs_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "_PATIENCE_S", 0.2)
    app = Hanging()
    with served(app) as port:
        address = Address.of(f"http://127.0.0.1:{port}/hang")
        found = load.run(address, [HANGS], load.Closed(3, 0.2))
    assert [exchange.status for exchange in found.exchanges] == [load.NO_ANSWER] * 3
    assert app.hung == 3


@pytest.mark.parametrize("kind", [load.Closed(3, 0.2), load.Open(50, 0.2)])
def test_rates_are_not_divided_by_the_wait_for_one_that_hangs(
    kind: load.Closed | load.Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loops, "_PATIENCE_S", 2.0)
    app = Hanging()
    with served(app) as port:
        found = load.run(Address.of(f"http://127.0.0.1:{port}/hang-once"), [PAYLOAD], kind)
    answered = [exchange for exchange in found.exchanges if exchange.status == 200]
    assert (app.hung, len(found.exchanges)) == (1, len(answered) + 1)
    last = max(exchange.done for exchange in answered)
    assert last - min(exchange.due for exchange in answered) <= found.elapsed_s
    # All of which was waited for the one that hung, and more.
    assert found.elapsed_s < 0.9 * loops._PATIENCE_S


@contextmanager
def full_house(answered: int) -> Iterator[int]:
    """The port of a server that answers the first so many connections once, and then takes one more
    and lets all others wait to be connected."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(answered)

    def serve() -> None:
        taken = [listener.accept()[0] for _ in range(answered)]
        # Nobody accepts any more: the kernel takes one.
        listener.listen(0)
        for connection in taken:
            connection.recv(65_536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            connection.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        thread.join()
        listener.close()


def test_whoever_still_connects_when_time_is_up_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "_PATIENCE_S", 0.3)

    def statuses(answered: int, kind: load.Closed | load.Open) -> list[int]:
        with full_house(answered) as port:
            found = load.run(Address.of(f"http://127.0.0.1:{port}/"), [PAYLOAD], kind)
        return sorted(exchange.status for exchange in found.exchanges)

    # Each client asks again when it was answered.
    assert statuses(3, load.Closed(3, 0.7)) == [load.NO_ANSWER] * 3 + [200] * 3
    wanted = load.Open(50, 0.4, connections=3)
    assert statuses(0, wanted) == [load.NO_ANSWER] * len(load.arrivals(50, 0.4))
