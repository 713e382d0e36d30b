"""The pure part of reading a body, over any chunking, cut and limit."""

from __future__ import annotations

import asyncio
import gzip
import random
import tracemalloc
import zlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from tests.gateway.empty_blocks import of_empty_blocks
from transformer_serving.contract.errors import ServingError
from transformer_serving.gateway.body import incoming as body_module
from transformer_serving.gateway.body.content_encoding import Decoder, Gzip, Plain, decoder_for
from transformer_serving.gateway.body.incoming import (
    ClientGoneError,
    Incoming,
    check_declared,
    header_values,
)
from transformer_serving.gateway.body.memory import body_memory
from transformer_serving.gateway.settings import GatewaySettings, read_settings

DATA = st.binary(max_size=3000) | st.builds(bytes.__mul__, st.binary(max_size=3), st.integers(0, 9))


def chunked(data: bytes, cuts: list[int]) -> Iterator[bytes]:
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    for start, end in zip(edges, edges[1:], strict=False):
        yield data[start:end]


CUTS = st.lists(st.integers(0, 10_000), max_size=12)


def settings_of(limit: int, memory: int = 10**9, **more: Any) -> GatewaySettings:
    return replace(read_settings({}), max_body_bytes=limit, body_memory_bytes=memory, **more)


def decoded(
    decoder: Decoder, data: bytes, cuts: list[int], step: int | None = None, work: int | None = None
) -> bytes | str:
    """What comes out, or the code of the error; at most `step` bytes in one call, of `work`."""
    try:
        for chunk in chunked(data, cuts):
            while True:
                before, most = decoder.held, decoder.most(chunk, step)
                whole = decoder.feed(chunk, step, work)
                assert decoder.held - before <= most
                if whole:
                    break
                chunk = b""
        return decoder.finish()
    except ServingError as error:
        return error.kind.code


@given(DATA, CUTS, st.integers(0, 4000))
def test_plain_is_whole_or_too_large(data: bytes, cuts: list[int], limit: int) -> None:
    expected = data if len(data) <= limit else "too_large"
    assert decoded(Plain(limit), data, cuts) == expected


STEP = st.none() | st.integers(1, 50)
WORK = st.none() | st.integers(1, 200)


@given(st.lists(DATA, max_size=4), st.integers(0, 300), CUTS, st.integers(0, 9), STEP, WORK)
def test_gzip_of_any_members_and_padding(
    members: list[bytes],
    padding: int,
    cuts: list[int],
    level: int,
    step: int | None,
    work: int | None,
) -> None:
    packed = b"".join(gzip.compress(member, level) + b"\0" * padding for member in members)
    assert decoded(Gzip(100_000), packed, cuts, step, work) == b"".join(members)


@given(DATA, CUTS, st.integers(0, 4000), STEP, WORK)
def test_gzip_up_to_the_limit_and_no_further(
    data: bytes, cuts: list[int], limit: int, step: int | None, work: int | None
) -> None:
    packed = gzip.compress(data)
    expected = data if max(len(data), len(packed)) <= limit else "too_large"
    assert decoded(Gzip(limit), packed, cuts, step, work) == expected


@given(st.binary(min_size=1, max_size=300), CUTS, st.integers(1, 400))
def test_cut_gzip_is_refused(data: bytes, cuts: list[int], missing: int) -> None:
    packed = gzip.compress(data)
    cut = packed[: max(1, len(packed) - missing)]
    assert decoded(Gzip(10_000), cut, cuts) == "malformed_body"


@given(st.binary(max_size=500), CUTS)
def test_any_bytes_are_inflated_as_the_host_does_or_refused(data: bytes, cuts: list[int]) -> None:
    for packed in (data, b"\x1f\x8b\x08\x00" + data, gzip.compress(b"a") + data):
        result = decoded(Gzip(100_000), packed, cuts)
        try:
            expected: bytes | str = gzip.decompress(packed)
        except (OSError, EOFError, zlib.error):
            expected = "malformed_body"
        # zlib also refuses the reserved flags that Python's gzip reads over.
        assert result in (expected, "malformed_body")


@given(st.binary(max_size=400), st.integers(0, 399), st.integers(1, 255), CUTS)
def test_a_flipped_byte_never_gives_other_data(
    data: bytes, place: int, flip: int, cuts: list[int]
) -> None:
    packed = bytearray(gzip.compress(data))
    place %= len(packed)
    packed[place] ^= flip
    result = decoded(Gzip(1000), bytes(packed), cuts)
    assert result in (data, "malformed_body", "too_large")


@pytest.mark.slow
@pytest.mark.parametrize(("coding", "wbits"), [(b"gzip", 31), (b"deflate", 15)])
def test_a_bomb_costs_its_limit_only(coding: bytes, wbits: int) -> None:
    limit = 1_000_000
    deflater = zlib.compressobj(9, wbits=wbits)
    bomb = b"".join(deflater.compress(bytes(10**7)) for _ in range(30)) + deflater.flush()
    assert len(bomb) < limit
    tracemalloc.start()
    try:
        assert decoded(decoder_for(coding, limit), bomb, [65_536]) == "too_large"
        assert tracemalloc.get_traced_memory()[1] < 5 * limit
    finally:
        tracemalloc.stop()


@given(DATA, CUTS, st.integers(0, 4000), STEP, WORK)
def test_deflate_up_to_the_limit_and_no_further(
    data: bytes, cuts: list[int], limit: int, step: int | None, work: int | None
) -> None:
    packed = zlib.compress(data)
    expected = data if len(data) <= limit and len(packed) <= limit else "too_large"
    assert decoded(decoder_for(b"Deflate", limit), packed, cuts, step, work) == expected


@given(DATA, CUTS, st.integers(1, 1000))
def test_cut_deflate_is_refused(data: bytes, cuts: list[int], missing: int) -> None:
    packed = zlib.compress(data)
    cut = packed[: max(1, len(packed) - missing)]
    assert decoded(decoder_for(b"deflate", 10_000), cut, cuts) == "malformed_body"


@given(DATA, CUTS, st.binary(min_size=1, max_size=20), STEP)
def test_nothing_follows_deflate(
    data: bytes, cuts: list[int], more: bytes, step: int | None
) -> None:
    for rest in (more, b"\0", zlib.compress(more)):
        decoder = decoder_for(b"deflate", 10_000)
        assert decoded(decoder, zlib.compress(data) + rest, cuts, step) == "malformed_body"


@given(DATA, CUTS, st.integers(0, 10_000), st.integers(1, 255))
def test_a_flipped_byte_of_deflate_never_gives_other_data(
    data: bytes, cuts: list[int], at: int, by: int
) -> None:
    packed = bytearray(zlib.compress(data))
    packed[at % len(packed)] ^= by
    result = decoded(decoder_for(b"deflate", 10_000), bytes(packed), cuts)
    assert result in (data, "malformed_body", "too_large")


def test_a_coding_is_no_other_ones_name() -> None:
    data = b"rain and tea"
    assert decoded(decoder_for(b"gzip", 100), zlib.compress(data), []) == "malformed_body"
    assert decoded(decoder_for(b"deflate", 100), gzip.compress(data), []) == "malformed_body"
    raw = zlib.compressobj(wbits=-15)
    packed = raw.compress(data) + raw.flush()
    for coding in (b"gzip", b"deflate"):
        assert decoded(decoder_for(coding, 100), packed, []) == "malformed_body"


def test_thousands_of_empty_members_are_refused() -> None:
    assert decoded(Gzip(10**6), gzip.compress(b"") * 5000, []) == "malformed_body"
    assert decoded(Gzip(10**6), gzip.compress(b"a") * 1024, []) == b"a" * 1024


def test_members_count_as_work() -> None:
    """So that the event loop begins no thousand of them."""
    gzipped = Gzip(10**6)
    assert not gzipped.feed(gzip.compress(b"a") * 1024, 65_536, 8192)
    assert 0 < gzipped.held <= 8192 // 64
    assert gzipped.feed(b"")
    assert gzipped.finish() == b"a" * 1024


def test_padding_counts_as_work() -> None:
    gzipped = Gzip(10**6)
    body = gzip.compress(b"a") + bytes(500_000) + gzip.compress(b"b")
    assert not gzipped.feed(body, 65_536, 8192)
    assert gzipped.held == 1
    assert gzipped.feed(b"")
    assert gzipped.finish() == b"ab"


@pytest.mark.parametrize(("coding", "wbits"), [(b"gzip", 31), (b"deflate", 15)])
def test_blocks_of_nothing_count_as_work(coding: bytes, wbits: int) -> None:
    """Each of them has tables of its own, which zlib builds for nothing."""
    decoder = decoder_for(coding, 10**6)
    assert not decoder.feed(of_empty_blocks(b"the end", 500_000, wbits), 65_536, 8192)
    assert decoder.held == 0
    assert decoder.feed(b"")
    assert decoder.finish() == b"the end"


@pytest.mark.parametrize("size", [10, 5000])
def test_what_most_send_is_one_step(size: int) -> None:
    data = b'{"text": "' + b"rain and tea " * (size // 13) + b'"}'
    assert Gzip(10**6).feed(gzip.compress(data), 65_536, 8192)


class Caller:
    """ASGI's receive over given messages."""

    def __init__(self, *chunks: bytes | None) -> None:
        self.messages: list[dict[str, Any]] = [
            {"type": "http.disconnect"}
            if chunk is None
            else {"type": "http.request", "body": chunk, "more_body": True}
            for chunk in chunks
        ]
        if self.messages:
            self.messages[-1]["more_body"] = False

    async def __call__(self) -> dict[str, Any]:
        return self.messages.pop(0)


@given(DATA, CUTS, st.booleans(), st.integers(0, 4000))
async def test_incoming_bodies(data: bytes, cuts: list[int], packed: bool, limit: int) -> None:
    sent = gzip.compress(data) if packed else data
    headers = {b"content-encoding": b"gzip"} if packed else {}
    caller = Caller(*chunked(sent, cuts), b"")
    incoming = Incoming(caller, settings_of(limit))
    memory = body_memory(10**9)
    with memory.share() as share:
        if max(len(data), len(sent)) > limit:
            with pytest.raises(ServingError, match="too many bytes"):
                await incoming.read(headers, share)
        else:
            assert await incoming.read(headers, share) == data
            assert not incoming.open
            assert memory.held == len(data)
    await incoming.drop()
    assert not caller.messages
    assert memory.held == 0


@pytest.mark.parametrize(
    "sent",
    [
        gzip.compress(b"a") * 1000,
        gzip.compress(random.Random(0).randbytes(60_000)),
        of_empty_blocks(b"the end", 500_000, 31),
    ],
    ids=["of many members", "that is hardly smaller", "of empty blocks"],
)
async def test_what_is_work_but_little_takes_little_memory(sent: bytes) -> None:
    """In the thread, too, it may hold what the event loop would have, and not the whole limit."""
    memory, caller = body_memory(70_000), Caller(sent)
    with memory.share() as share:
        got = await Incoming(caller, settings_of(10**6)).read({b"content-encoding": b"gzip"}, share)
        assert got == gzip.decompress(sent)
        assert memory.held == len(got)
    assert memory.held == 0


async def test_a_body_declared_too_large_is_not_touched() -> None:
    caller = Caller(b"a")
    with pytest.raises(ServingError) as caught, body_memory(10).share() as share:
        await Incoming(caller, settings_of(10)).read({b"content-length": b"11"}, share)
    assert caught.value.body() == {
        "code": "too_large",
        "message": "the body has too many bytes; TRANSFORMER_SERVING_MAX_BODY_BYTES sets how many "
        "are taken",
        "field": None,
        "limit": 10,
        "got": 11,
    }
    assert len(caller.messages) == 1


async def test_a_caller_that_leaves() -> None:
    memory = body_memory(10)
    with pytest.raises(ClientGoneError), memory.share() as share:
        await Incoming(Caller(b"a", None), settings_of(10)).read({}, share)
    assert memory.held == 0


@pytest.mark.parametrize("declared", [b"-1", b"+1", b"1_0", b"", b" 1", b"9" * 5000])
def test_a_content_length_that_is_no_size(declared: bytes) -> None:
    with pytest.raises(ServingError, match="content-length"):
        check_declared({b"content-length": declared}, 10)


def test_what_comes_in_chunks_has_no_length_to_go_by() -> None:
    declared = {b"content-length": b"5"}
    assert check_declared(declared, 10) == 5
    assert check_declared({**declared, b"transfer-encoding": b"chunked"}, 10) is None


@pytest.mark.parametrize(
    "encoding", [b"br", b"compress", b"gzip, deflate", b"gzip, gzip", b"identity,gzip", b"\xff"]
)
def test_other_encodings_are_refused(encoding: bytes) -> None:
    with pytest.raises(ServingError, match="content-encoding"):
        decoder_for(encoding, 10)


def test_repeated_encodings_do_not_hide() -> None:
    rows = [(b"content-encoding", b"gzip"), (b"content-encoding", b"identity")]
    assert header_values(rows)[b"content-encoding"] == b"gzip,identity"


@pytest.mark.parametrize("cuts", [[], [1], [2, 4]])
async def test_the_end_of_a_declared_body_is_not_asked_for(cuts: list[int]) -> None:
    """A server may tell it in a message of its own, after the last byte."""
    pieces = iter(chunked(b"abcdef", cuts))

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": next(pieces), "more_body": True}

    incoming = Incoming(receive, settings_of(9))
    with body_memory(9).share() as share:
        assert await incoming.read({b"content-length": b"6"}, share) == b"abcdef"
    assert not incoming.open
    assert next(pieces, None) is None


async def test_a_message_that_says_nothing_of_more_is_the_last() -> None:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"abc"}

    incoming = Incoming(receive, settings_of(9))
    with body_memory(9).share() as share:
        assert await incoming.read({}, share) == b"abc"
    assert not incoming.open


@pytest.mark.parametrize(
    ("seconds", "stall", "named"),
    [(0.05, 3600, "BODY_SECONDS"), (3600, 0.05, "BODY_STALL_SECONDS"), (3600, 3600, None)],
)
async def test_the_rest_of_a_body_has_its_time_by_the_name_of_the_limit(
    seconds: float, stall: float, named: str | None
) -> None:
    asked = 0

    async def receive() -> dict[str, Any]:
        nonlocal asked
        asked += 1
        if asked == 2 and named:
            await asyncio.Event().wait()
        # Others have their turns.
        await asyncio.sleep(0.001)
        return {"type": "http.request", "body": b"a", "more_body": asked < 4}

    incoming = Incoming(receive, settings_of(9, body_seconds=seconds, body_stall_seconds=stall))
    with body_memory(9).share() as share:
        async with asyncio.timeout(60):
            if named is None:
                assert await incoming.read({}, share) == b"aaaa"
                return
            with pytest.raises(ServingError, match=f"TRANSFORMER_SERVING_{named} sets"):
                await incoming.read({}, share)


async def test_a_body_that_never_comes_is_given_up() -> None:
    incoming = Incoming(
        asyncio.get_running_loop().create_future, settings_of(9, body_stall_seconds=0.05)
    )
    with body_memory(9).share() as share, pytest.raises(ServingError, match="STALL") as caught:
        await incoming.read({b"content-length": b"9"}, share)
    assert (caught.value.kind.status, incoming.open) == (400, True)
    assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]


async def test_a_body_that_never_comes_has_no_more_time_than_a_whole_one() -> None:
    """Where that is shorter than a stall, and by its own name."""
    chosen = settings_of(9, body_seconds=0.05, body_stall_seconds=3600)
    incoming = Incoming(asyncio.get_running_loop().create_future, chosen)
    with (
        body_memory(9).share() as share,
        pytest.raises(ServingError, match="TRANSFORMER_SERVING_BODY_SECONDS") as caught,
    ):
        async with asyncio.timeout(60):
            await incoming.read({b"content-length": b"9"}, share)
    assert (caught.value.kind.status, caught.value.limit) == (400, "0.05 s")


async def test_what_is_refused_is_let_come_as_long_as_it_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(body_module, "_LINGER_STALL_SECONDS", 1.0)
    caller = Caller(*[b"a"] * 12, b"")

    async def slowly() -> dict[str, Any]:
        await asyncio.sleep(0.1)
        return await caller()

    incoming = Incoming(slowly, settings_of(9))
    await incoming.drop()
    assert not incoming.open
    assert not caller.messages


@pytest.mark.parametrize("limit", ["_LINGER_SECONDS", "_LINGER_STALL_SECONDS"])
async def test_what_is_refused_and_never_ends_is_let_go(
    limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body_module, limit, 0.05)

    async def endless() -> dict[str, Any]:
        await asyncio.sleep(0.01 if limit == "_LINGER_SECONDS" else 3600)
        return {"type": "http.request", "body": b"a", "more_body": True}

    incoming = Incoming(endless, settings_of(9))
    await asyncio.wait_for(incoming.drop(), 60)
    assert not incoming.open


async def test_another_ones_cancellation_is_passed_on() -> None:
    incoming = Incoming(asyncio.get_running_loop().create_future, settings_of(9))
    with body_memory(9).share() as share:
        reading = asyncio.create_task(incoming.read({}, share))
        await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
