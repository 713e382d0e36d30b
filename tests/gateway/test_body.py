"""The pure part of reading a body, over any chunking, cut and limit."""

from __future__ import annotations

import contextlib
import gzip
import tracemalloc
import zlib
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from hypothesis import given, settings, strategies as st

from contract.errors import ServingError
from gateway.body import (
    ClientGoneError,
    Decoder,
    Gzip,
    Incoming,
    Plain,
    check_acceptable,
    check_declared,
    decoder_for,
    header_values,
    parse_object,
    says_json,
)

DATA = st.binary(max_size=3000) | st.builds(bytes.__mul__, st.binary(max_size=3), st.integers(0, 9))


def chunked(data: bytes, cuts: list[int]) -> Iterator[bytes]:
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    for start, end in zip(edges, edges[1:], strict=False):
        yield data[start:end]


CUTS = st.lists(st.integers(0, 10_000), max_size=12)


def decoded(decoder: Decoder, data: bytes, cuts: list[int]) -> bytes | str:
    """What comes out, or the code of the error."""
    try:
        for chunk in chunked(data, cuts):
            decoder.feed(chunk)
        return decoder.finish()
    except ServingError as error:
        return error.kind.code


@given(DATA, CUTS, st.integers(0, 4000))
def test_plain_is_whole_or_too_large(data: bytes, cuts: list[int], limit: int) -> None:
    expected = data if len(data) <= limit else "too_large"
    assert decoded(Plain(limit), data, cuts) == expected


@given(st.lists(DATA, max_size=4), st.integers(0, 5), CUTS, st.integers(0, 9))
def test_gzip_of_any_members_and_padding(
    members: list[bytes], padding: int, cuts: list[int], level: int
) -> None:
    packed = b"".join(gzip.compress(member, level) + b"\0" * padding for member in members)
    assert decoded(Gzip(100_000), packed, cuts) == gzip.decompress(packed) == b"".join(members)


@given(DATA, CUTS, st.integers(0, 4000))
def test_gzip_up_to_the_limit_and_no_further(data: bytes, cuts: list[int], limit: int) -> None:
    packed = gzip.compress(data)
    expected = data if max(len(data), len(packed)) <= limit else "too_large"
    assert decoded(Gzip(limit), packed, cuts) == expected


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


def test_a_bomb_costs_its_limit_only() -> None:
    limit = 1_000_000
    deflater = zlib.compressobj(9, wbits=31)
    bomb = b"".join(deflater.compress(bytes(10**7)) for _ in range(30)) + deflater.flush()
    assert len(bomb) < limit
    tracemalloc.start()
    try:
        assert decoded(Gzip(limit), bomb, [65_536]) == "too_large"
        assert tracemalloc.get_traced_memory()[1] < 5 * limit
    finally:
        tracemalloc.stop()


def test_thousands_of_empty_members_are_refused() -> None:
    assert decoded(Gzip(10**6), gzip.compress(b"") * 5000, []) == "malformed_body"
    assert decoded(Gzip(10**6), gzip.compress(b"a") * 1024, []) == b"a" * 1024


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
@settings(deadline=None)
async def test_incoming_bodies(data: bytes, cuts: list[int], packed: bool, limit: int) -> None:
    sent = gzip.compress(data) if packed else data
    headers = {b"content-encoding": b"gzip"} if packed else {}
    caller = Caller(*chunked(sent, cuts), b"")
    incoming = Incoming(caller)
    if max(len(data), len(sent)) > limit:
        with pytest.raises(ServingError, match="too many bytes"):
            await incoming.read(headers, limit, 1)
    else:
        assert await incoming.read(headers, limit, 1) == data
        assert not incoming.open
    await incoming.drop()
    assert not caller.messages


async def test_a_body_declared_too_large_is_not_touched() -> None:
    caller = Caller(b"a")
    with pytest.raises(ServingError) as caught:
        await Incoming(caller).read({b"content-length": b"11"}, 10, 1)
    assert caught.value.body() == {
        "code": "too_large",
        "message": "the body has too many bytes",
        "field": None,
        "limit": 10,
        "got": 11,
    }
    assert len(caller.messages) == 1


async def test_a_caller_that_leaves() -> None:
    with pytest.raises(ClientGoneError):
        await Incoming(Caller(b"a", None)).read({}, 10, 1)


@pytest.mark.parametrize("declared", [b"-1", b"+1", b"1_0", b"", b" 1", b"9" * 5000])
def test_a_content_length_that_is_no_size(declared: bytes) -> None:
    with pytest.raises(ServingError, match="content-length"):
        check_declared({b"content-length": declared}, 10)


@pytest.mark.parametrize("encoding", [b"br", b"deflate", b"gzip, gzip", b"identity,gzip", b"\xff"])
def test_other_encodings_are_refused(encoding: bytes) -> None:
    with pytest.raises(ServingError, match="content-encoding"):
        decoder_for(encoding, 10)


def test_repeated_encodings_do_not_hide() -> None:
    rows = [(b"content-encoding", b"gzip"), (b"content-encoding", b"identity")]
    assert header_values(rows)[b"content-encoding"] == b"gzip,identity"


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        (b"application/json", True),
        (b"Application/JSON; charset=utf-8", True),
        (b"application/ld+json", True),
        (b"text/json", False),
        (b"json", False),
        (b"\xff\xfe", False),
        (b"", False),
        (None, False),
    ],
)
def test_content_types(kind: bytes | None, answer: bool) -> None:
    assert says_json(kind) is answer


LEAVES = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats() | st.text()
JSON = st.recursive(
    LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8
)


@given(st.dictionaries(st.text(), JSON))
def test_objects_come_out_as_sent(value: dict[str, Any]) -> None:
    raw = orjson.dumps(value)  # writes NaN and Infinity as null
    assert parse_object(raw) == orjson.loads(raw)
    check_acceptable(raw)


@given(st.binary(max_size=200) | st.text(alphabet='{}[]":,0a\\ ').map(str.encode))
def test_any_bytes_are_an_object_or_refused(raw: bytes) -> None:
    for check in (parse_object, check_acceptable):
        with contextlib.suppress(ServingError):
            check(raw)


@pytest.mark.parametrize("depth", [1000, 100_000, 5_000_000])
@pytest.mark.parametrize("brackets", [b"[", b'{"a":'])
def test_deep_nesting_is_refused(depth: int, brackets: bytes) -> None:
    raw = brackets * depth
    for check in (parse_object, check_acceptable):
        with pytest.raises(ServingError):
            check(raw)


def test_strict_for_ours_as_the_host_for_others() -> None:
    check_acceptable(b'{"a": NaN}')
    check_acceptable(b'"text"')
    for raw in (
        b'{"a": NaN}',
        b'{"a": Infinity}',
        b'"text"',
        b"\xef\xbb\xbf{}",
        b'{"a": "\\ud800"}',
    ):
        with pytest.raises(ServingError):
            parse_object(raw)
