"""What a worker holds of bodies returns to nothing, however its requests end."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import orjson
import pytest
from hypothesis import given, settings, strategies as st
from starlette.responses import Response

from tests.gateway.played_host import Ours, Processor, host_of
from transformer_serving.contract.errors import ServingError
from transformer_serving.gateway.body import incoming
from transformer_serving.gateway.body.memory import body_memory
from transformer_serving.gateway.front_door import FrontDoor
from transformer_serving.gateway.settings import read_settings

LIMIT, TOTAL = 400, 1000
STALL_S = 0.005

End = Literal["ends", "leaves", "stalls"]
SECRET = b"kettle"


@pytest.fixture(autouse=True, scope="module")
def _short_linger() -> Iterator[None]:
    """Who stalls is waited for once more where the rest of its body is let go."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(incoming, "_LINGER_STALL_SECONDS", STALL_S)
        yield


@dataclass
class Caller:
    """One request: its chunks with turns of the loop between them, and how it ends."""

    chunks: Sequence[bytes]
    end: End
    packed: bool
    path: str
    sent: list[dict[str, Any]] = field(default_factory=list)
    at: int = 0

    async def receive(self) -> dict[str, Any]:
        await asyncio.sleep(0)
        if self.at < len(self.chunks):
            self.at += 1
            more = self.at < len(self.chunks) or self.end != "ends"
            return {"type": "http.request", "body": self.chunks[self.at - 1], "more_body": more}
        if self.end == "stalls":
            await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent.append(message)

    async def run(self, door: FrontDoor) -> None:
        headers = [(b"content-type", b"application/json")]
        headers += [(b"content-encoding", b"gzip")] if self.packed else []
        scope = {
            "type": "http", "method": "POST", "path": self.path, "headers": headers,
            "query_string": b"", "root_path": "",
        }  # fmt: skip
        await door(scope, self.receive, self.send)

    @property
    def status(self) -> int | None:
        return self.sent[0]["status"] if self.sent else None


def door_of(stall_s: float = STALL_S) -> FrontDoor:
    processor = Processor({"ours": Response(b"{}"), "raises": KeyError("a"), "other": None})
    for url in ("ours", "raises"):
        processor.built(url, Ours())
    processor.built("other", object())
    chosen = replace(
        read_settings({}), max_body_bytes=LIMIT, max_body_elements=20, body_memory_bytes=TOTAL,
        body_stall_seconds=stall_s,
    )  # fmt: skip
    return FrontDoor(host_of(processor), chosen)


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(at % (len(data) + 1) for at in cuts), len(data)]
    return [data[start:end] for start, end in zip(edges, edges[1:], strict=False)]


BODIES = st.one_of(
    st.integers(0, 500).map(lambda size: orjson.dumps({"text": "a" * size})),
    st.sampled_from([b"", b"{", b"[" * 40, b"[" + b"1," * 60 + b"1]"]),
)
CALLERS = st.builds(
    lambda body, packed, broken, cuts, end, path: Caller(
        cut((gzip.compress(body)[: -1 if broken else None]) if packed else body, cuts),
        end, packed, path,
    ),
    BODIES, st.booleans(), st.booleans(), st.lists(st.integers(0, 600), max_size=6),
    st.sampled_from(["ends", "ends", "leaves", "stalls"]),
    st.sampled_from(["/serve/ours", "/serve/raises", "/serve/other", "/serve/missing"]),
)  # fmt: skip


def test_all_of_it_may_be_held_and_no_byte_more() -> None:
    memory = body_memory(10)
    with memory.share() as one, memory.share() as other:
        one.take(4)
        other.take(6)
        with pytest.raises(ServingError):
            one.take(1)
        assert (memory.held, one.held) == (10, 4)
        one.take(5, is_here=True)
        assert memory.held == 15
        one.give_back(7)
        assert (memory.held, one.held) == (8, 2)
        other.take(2)
    assert memory.held == 0


@pytest.mark.slow
@given(st.lists(CALLERS, min_size=1, max_size=8))
@settings(max_examples=30)
async def test_every_way_out_gives_it_back(callers: list[Caller]) -> None:
    door = door_of()
    async with asyncio.timeout(60):
        await asyncio.gather(*(caller.run(door) for caller in callers))
    assert door.bodies.held == 0
    for caller in callers:
        if caller.end == "stalls" and caller.chunks:
            assert caller.status in (400, 413, 503)


async def test_no_more_than_the_total_is_held_of_what_is_not_whole(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Stalled ones have it until they are given up; what came whole is answered all the while."""
    # Long enough for the rounds below, however busy the machine is.
    door = door_of(stall_s=0.5)
    stalled = [Caller([b"a" * 300], "stalls", False, "/serve/ours") for _ in range(10)]
    running = [asyncio.create_task(caller.run(door)) for caller in stalled]
    whole = Caller([b'{"text": "' + b"a" * 300 + b'"}'], "ends", False, "/serve/ours")
    for _ in range(5):
        await asyncio.sleep(0)
        assert door.bodies.held <= TOTAL
    assert door.bodies.held == 900
    await whole.run(door)
    assert whole.status == 200
    async with asyncio.timeout(60):
        await asyncio.gather(*running)
    assert sorted(str(caller.status) for caller in stalled) == ["400"] * 3 + ["503"] * 7
    refused = next(caller for caller in stalled if caller.status == 503)
    answer = orjson.loads(b"".join(part["body"] for part in refused.sent[1:]))
    assert (answer["code"], answer["limit"]) == ("overloaded", TOTAL)
    assert "TRANSFORMER_SERVING_BODY_MEMORY_BYTES" in answer["message"]
    assert (b"retry-after", b"1") in refused.sent[0]["headers"]
    assert door.bodies.held == 0
    # The 400s are their callers' fault; of seven answers of one second there is one line.
    (line,) = caplog.records
    assert line.levelname == "WARNING"
    assert line.message == answer["message"]
    told = vars(line)
    assert told["request_id"].encode() == dict(refused.sent[0]["headers"])[b"x-request-id"]
    fields = ("endpoint", "status", "code", "count")
    assert [told[name] for name in fields] == ["ours", 503, "overloaded", 1]
    door.count_refusal(ServingError("unavailable", "not ready"))
    assert [vars(line)["code"] for line in caplog.records] == ["overloaded", "unavailable"]


async def test_a_task_that_is_cancelled_gives_it_back() -> None:
    door = door_of()
    running = asyncio.create_task(Caller([b"a"] * 3, "stalls", False, "/serve/ours").run(door))
    async with asyncio.timeout(20):
        while door.bodies.held < 3:
            await asyncio.sleep(0.001)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert door.bodies.held == 0


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 600), st.booleans()), max_size=40))
def test_shares_add_up(steps: list[tuple[int, int, bool]]) -> None:
    memory = body_memory(TOTAL)
    shares = [memory.share() for _ in range(4)]
    for at, size, is_here in steps:
        before = memory.held
        try:
            shares[at].take(size, is_here=is_here)
        except ServingError:
            assert not is_here
            assert memory.held == before > TOTAL - size
        assert memory.held == sum(share.held for share in shares)
    for share in shares:
        with share:
            pass
    assert memory.held == 0
