"""Streams timed against a real web server that sends pieces at known moments."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from tests.bench.served import served
from tests.free_ports import free_port
from transformer_serving.desk.bench import load, streams
from transformer_serving.desk.bench.connection import Address
from transformer_serving.desk.bench.streams import measure_streams
from transformer_serving.desk.bench.timer import now
from transformer_serving.desk.cli import main
from transformer_serving.desk.failure import Failure

FIRST_S, GAP_S, PIECES = 0.06, 0.03, 4
BODY = load.Payload("stream", b'{"text": "a", "stream": true}')


class Speaking:
    """Four pieces; every other stream at /half ends in an error event, and the second at /hang is
    never whole."""

    def __init__(self) -> None:
        self.bodies: list[Any] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        self.bodies.append(json.loads((await receive())["body"]))
        status = 503 if scope["path"] == "/full" and len(self.bodies) > 1 else 200
        await send({"type": "http.response.start", "status": status, "headers": []})
        if scope["path"] == "/hang" and len(self.bodies) == 2:
            await send(piece(b": it comes\n\n"))
            # Until the caller leaves.
            await receive()
        elif status == 200:
            await asyncio.sleep(FIRST_S)
            for at in range(PIECES):
                await self.send(send, {"index": 0, "text": f" {at}"})
                await asyncio.sleep(GAP_S)
            if scope["path"] == "/half" and len(self.bodies) % 2 == 0:
                await send(piece(b"event: error\ndata: {}\n\n"))
            elif scope["path"] != "/never":
                for index in range(3 if scope["path"] == "/three" else 1):
                    await self.send(send, {"index": index, "text": "", "generated_tokens": 9})
                await send(piece(b"data: [DONE]\n\n"))
        await send({"type": "http.response.body", "body": b""})

    async def send(self, send: Any, data: Any) -> None:
        await send(piece(b"data: " + json.dumps(data).encode() + b"\n\n"))


def piece(body: bytes) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": True}


@pytest.fixture
def speaking() -> Iterator[tuple[Speaking, int]]:
    app = Speaking()
    with served(app) as port:
        yield app, port


def at(port: int, path: str) -> Address:
    return Address.of(f"http://127.0.0.1:{port}{path}")


def test_first_pieces_and_gaps_are_timed(speaking: tuple[Speaking, int]) -> None:
    _, port = speaking
    one, several = measure_streams(at(port, "/"), BODY, (1, 4), 0.5)
    assert (one.clients, several.clients) == (1, 4)
    assert several.whole >= one.whole >= 1
    for row in (one, several):
        assert not row.others
        assert row.first is not None
        assert row.gap is not None
        assert row.first.p50 >= 1000 * FIRST_S * 0.9
        assert row.gap.count == row.whole * PIECES
        assert row.gap.mean >= 1000 * GAP_S * 0.9
        # What the answer counts, not its events.
        assert row.tokens == pytest.approx(9 * row.whole / row.elapsed_s)


def test_tokens_of_every_sequence_of_a_stream_count(speaking: tuple[Speaking, int]) -> None:
    _, port = speaking
    [row] = measure_streams(at(port, "/three"), BODY, (1,), 0.3)
    assert row.tokens == pytest.approx(3 * 9 * row.whole / row.elapsed_s)


def test_what_is_not_whole_is_counted_apart(speaking: tuple[Speaking, int]) -> None:
    app, port = speaking
    [row] = measure_streams(at(port, "/half"), BODY, (1,), 0.7)
    assert row.others["cut off"] in (row.whole, row.whole + 1)
    app.bodies.clear()
    [row] = measure_streams(at(port, "/full"), BODY, (1,), 0.1)
    assert set(row.others) == {"503"}
    assert (row.whole, row.first, row.tokens) == (0, None, 0)


def test_tokens_are_not_divided_by_the_wait_for_a_stream_that_hangs(
    speaking: tuple[Speaking, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "_PATIENCE_S", 2.0)
    _, port = speaking
    [row] = measure_streams(at(port, "/hang"), BODY, (3,), 0.1)
    assert row.whole
    assert row.others == {"cut off": 1}
    assert row.elapsed_s < 0.9 * streams._PATIENCE_S


class _Clock(asyncio.SelectorEventLoop):
    """Goes on by itself, and by what is skipped."""

    skipped = 0.0

    def time(self) -> float:
        return super().time() + self.skipped


def test_a_stream_may_take_as_long_as_pieces_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """With each the clock goes on by most of the patience."""
    seen = threading.Semaphore(0)
    clock = _Clock()

    def later() -> float:
        clock.skipped += 0.7 * streams._PATIENCE_S
        seen.release()
        return now()

    class Waiting(Speaking):
        async def send(self, send: Any, data: Any) -> None:
            await super().send(send, data)
            # Until pieces are read; the time of the stream's own beginning was asked, too.
            await asyncio.to_thread(seen.acquire)

    monkeypatch.setattr("transformer_serving.desk.bench.streams.now", later)
    with served(Waiting()) as port, asyncio.Runner(loop_factory=lambda: clock) as runner:
        address = at(port, "/")
        try:
            found = runner.run(streams._stream(address, streams._request(address, BODY)))
        finally:
            seen.release(PIECES + 1)
    assert found.done
    assert found.events == PIECES + 1


def test_an_endpoint_that_does_not_stream_is_told_so(speaking: tuple[Speaking, int]) -> None:
    _, port = speaking
    with pytest.raises(Failure, match="no whole stream"):
        list(measure_streams(at(port, "/never"), BODY, (1,), 0.1))
    with pytest.raises(Failure, match="nothing answers"):
        list(measure_streams(at(free_port(), "/"), BODY, (1,), 0.1))


def test_the_command(speaking: tuple[Speaking, int]) -> None:
    app, port = speaking
    url = f"http://127.0.0.1:{port}/"
    options = ["bench", url, "--stream", "-c", "2", "--seconds", "0.2"]
    done = CliRunner().invoke(main, [*options, "--words", "3", "--json"])
    assert done.exit_code == 0, done.output
    [row] = json.loads(done.stdout)
    assert (row["clients"], row["others"]) == (2, {})
    assert app.bodies[-1]["stream"] is True
    assert len(app.bodies[-1]["text"].split()) == 3
    shown = CliRunner().invoke(main, options)
    assert "first ms p50" in shown.output


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--texts", "2"), "--stream sends one text"),
        (("--rate", "5"), "--rate is of an open loop"),
        (("--text", "a", "--words", "50"), "--words goes without --text"),
        (("--text", "a", "--body", "f.json"), "--body goes without --text"),
    ],
)
def test_what_streams_do_not_have_is_refused(given: tuple[str, ...], said: str) -> None:
    refused = CliRunner().invoke(main, ["bench", "http://127.0.0.1:9/", "--stream", *given])
    assert refused.exit_code == 2
    assert said in refused.output


def test_what_was_measured_before_an_end_is_shown(
    speaking: tuple[Speaking, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = streams._closed

    async def ended(address: Address, request: bytes, clients: int, seconds: float) -> Any:
        if clients == 3:
            raise KeyboardInterrupt
        return await closed(address, request, clients, seconds)

    monkeypatch.setattr(streams, "_closed", ended)
    url = f"http://127.0.0.1:{speaking[1]}/"
    options = ("--stream", "-c", "1", "-c", "3", "--seconds", "0.1", "--json")
    done = CliRunner().invoke(main, ["bench", url, *options])
    assert done.exit_code == 1
    assert [row["clients"] for row in json.loads(done.stdout)] == [1]
