"""Streams of generated text: time to the first piece, between pieces, and tokens a second.

A closed loop of N clients, each with its next stream when the last one has ended.

Tested by tests/bench/test_streams.py.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import httptools
import uvloop

from transformer_serving.desk.bench.connection import Address
from transformer_serving.desk.bench.contact import no_contact
from transformer_serving.desk.bench.figures import percentile
from transformer_serving.desk.bench.load import Payload
from transformer_serving.desk.bench.timer import lasted, now
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.http import kept_out

CONCURRENCY = (1, 8, 32)
# After this long without a byte a stream counts as not answered.
_PATIENCE_S = 120.0
_CHUNK = 65_536
_DONE = b"[DONE]"


@dataclass(frozen=True)
class Spread:
    """Milliseconds."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float


@dataclass(frozen=True)
class StreamLoad:
    """One load. `whole` streams came to their end; `others` counts what became of the rest.

    `tokens` a second are those that the answers count, or their events where they count none.
    `first` is the time to a stream's first event, `gap` between two events.
    """

    load: str
    clients: int
    elapsed_s: float
    whole: int
    others: dict[str, int]
    tokens: float
    first: Spread | None
    gap: Spread | None


@dataclass
class _Stream:
    """One answer as it comes."""

    begun: float
    status: int = 0
    events: int = 0
    first_s: float = 0.0
    last: float = 0.0
    done: bool = False
    rest: bytes = b""

    def __post_init__(self) -> None:
        self.gaps: list[float] = []
        self._told: dict[int, int] = {}

    @property
    def tokens(self) -> int:
        """Of all its sequences."""
        return sum(self._told.values())

    def on_body(self, data: bytes) -> None:
        *rows, self.rest = (self.rest + data).split(b"\n\n")
        for row in rows:
            self._event(row)

    def _event(self, row: bytes) -> None:
        data = row.rpartition(b"data: ")[2] or row.rpartition(b"data:")[2]
        self.done = self.done or data == _DONE
        if self.done or row.startswith(b"event: error"):
            return
        at = now()
        if self.events:
            self.gaps.append(at - self.last)
        else:
            self.first_s = at - self.begun
        self.last = at
        self.events += 1
        sequence, tokens = _counted(data)
        self._told[sequence] = max(self._told.get(sequence, 0), tokens)


def _counted(data: bytes) -> tuple[int, int]:
    """The sequence that an event is of, and how many tokens it says were generated: none where it
    says nothing of them. OpenAI's usage is of all sequences, and TGI's `index` is a token's.
    """
    if b"tokens" not in data:
        return 0, 0
    told: Any = json.loads(data)
    usage = told.get("usage") or told.get("details")
    sequence = 0 if usage else int(told.get("index") or 0)
    found = usage or told
    return sequence, int(found.get("generated_tokens") or found.get("completion_tokens") or 0)


def measure_streams(
    address: Address, payload: Payload, concurrency: Sequence[int], seconds: float,
    say: Callable[[str], None] = lambda _: None,
) -> Iterator[StreamLoad]:  # fmt: skip
    """Every load, each when it is asked for: what was measured outlives what fails later.

    Raises Failure when a first request is not answered with a whole stream.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        say("asking once")
        request = _request(address, payload)
        try:
            once = runner.run(_stream(address, request))
        except OSError as error:
            raise no_contact(address, error) from None
        if reason := kept_out(once.status):
            raise Failure(f"the first request got status {once.status}: {reason}", exit_code=2)
        if not once.done:
            raise Failure(
                f"the first request got status {once.status} and no whole stream; --stream is for "
                "endpoints of text-generation, whose streams end with [DONE]"
            )
        for clients in concurrency:
            say(f"{clients} streams")
            yield runner.run(_closed(address, request, clients, seconds))


def _request(address: Address, payload: Payload) -> bytes:
    asked = Address(
        address.host, address.port, address.path, address.secure,
        {**address.headers, "Connection": "close"},
    )  # fmt: skip
    return asked.request(payload.body, payload.content_type)


async def _closed(address: Address, request: bytes, clients: int, seconds: float) -> StreamLoad:
    begun = now()
    rows = await asyncio.gather(
        *(_client(address, request, begun + seconds) for _ in range(clients))
    )
    streams = [stream for row in rows for stream in row]
    whole = [stream for stream in streams if stream.done]
    elapsed = lasted(begun, seconds, (stream.last for stream in whole))
    others = Counter(_why(stream) for stream in streams if not stream.done)
    tokens = sum(stream.tokens or stream.events for stream in whole)
    return StreamLoad(
        load=f"{clients} streams",
        clients=clients,
        elapsed_s=elapsed,
        whole=len(whole),
        others=dict(others),
        tokens=tokens / (elapsed or math.inf),
        first=_spread(stream.first_s for stream in whole if stream.events),
        gap=_spread(gap for stream in whole for gap in stream.gaps),
    )


def _why(stream: _Stream) -> str:
    if stream.status in (0, 200):
        return "cut off" if stream.status else "no answer"
    return str(stream.status)


async def _client(address: Address, request: bytes, end: float) -> list[_Stream]:
    streams = []
    while now() < end:
        try:
            streams.append(await _stream(address, request))
        except OSError:
            streams.append(_Stream(now()))
            # A server that is gone is not to be asked without a pause.
            await asyncio.sleep(0.1)
    return streams


async def _stream(address: Address, request: bytes) -> _Stream:
    """Raises OSError when nothing listens there."""
    reader, writer = await asyncio.open_connection(address.host, address.port, ssl=address.tls)
    stream = _Stream(now())
    parser = httptools.HttpResponseParser(stream)
    loop = asyncio.get_running_loop()
    try:
        writer.write(request)
        async with asyncio.timeout(_PATIENCE_S) as patience:
            while chunk := await reader.read(_CHUNK):
                parser.feed_data(chunk)
                patience.reschedule(loop.time() + _PATIENCE_S)
    except (OSError, TimeoutError, httptools.HttpParserError, ValueError):
        stream.done = False
    finally:
        writer.close()
    stream.status = parser.get_status_code() or 0
    return stream


def _spread(seconds: Iterator[float]) -> Spread | None:
    times = sorted(1e3 * one for one in seconds)
    if not times:
        return None
    p50, p90, p99 = (percentile(times, share) for share in (50.0, 90.0, 99.0))
    return Spread(len(times), sum(times) / len(times), p50, p90, p99)
