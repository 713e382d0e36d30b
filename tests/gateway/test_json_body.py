"""JSON bodies: what is refused before it is parsed, and what parsing takes."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from hypothesis import given, strategies as st

from transformer_serving.contract.errors import ServingError
from transformer_serving.gateway.body import json_body
from transformer_serving.gateway.body.json_body import (
    check_acceptable,
    check_elements,
    may_be_json,
    parse_object,
    says_json,
)


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        (b"application/json", True),
        (b"Application/JSON; charset=utf-8", True),
        (b"application/ld+json", True),
        (b"text/json", False),
        (b"application/xml", False),
        (b"json", False),
        (b"\xff\xfe", False),
        (b"", False),
        (None, False),
    ],
)
def test_content_types(kind: bytes | None, answer: bool) -> None:
    assert says_json(kind) is answer


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        (None, True),
        (b"", True),
        (b"text/json; charset=utf-8", True),
        (b"application/x-json", True),
        (b"text/ld+json", True),
        (b"text/plain", False),
        (b"application/x-www-form-urlencoded", False),
        (b"\xff\xfe", False),
    ],
)
def test_types_that_may_be_json(kind: bytes | None, answer: bool) -> None:
    assert may_be_json(kind) is answer


ENCODINGS = ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"]


@pytest.mark.parametrize("encoding", ENCODINGS)
async def test_an_encoding_that_the_host_reads_is_read_so(encoding: str) -> None:
    raw = '{"text": "a käse 🙂, \\"and\\" [tea]"}'.encode(encoding)
    body = await json_body.Parser(100).parse(raw, is_json=True, ours=True)
    assert body == json.loads(raw)
    # Others get what came, which the host reads.
    assert await json_body.Parser(100).parse(raw, is_json=True, ours=False) == raw


@pytest.mark.parametrize("encoding", ENCODINGS)
async def test_what_hides_in_another_encoding_is_counted(encoding: str) -> None:
    raw = ('{"a": "\\"", "b": [' + "1," * 400 + '1], "c": "\\""}').encode(encoding)
    for ours in (True, False):
        with pytest.raises(ServingError) as caught:
            await json_body.Parser(100).parse(raw, is_json=True, ours=ours)
        assert (caught.value.kind.code, caught.value.got) == ("too_large", 404)


async def test_a_lone_surrogate_is_refused_of_ours_only() -> None:
    raw = '{"a": "\ud800"}'.encode("utf-16", "surrogatepass")
    with pytest.raises(ServingError):
        await json_body.Parser(100).parse(raw, is_json=True, ours=True)
    assert await json_body.Parser(100).parse(raw, is_json=True, ours=False) == raw


@pytest.mark.parametrize(
    "raw", [b"\xff\xfe{", b"\xff\xfe{\0\0", b"\0", b"{\0", b"\xef\xbb\xbf", b"\xff", b"\x80{}"]
)
async def test_what_is_in_no_encoding_is_refused(raw: bytes) -> None:
    for ours in (True, False):
        with pytest.raises(ServingError) as caught:
            await json_body.Parser(100).parse(raw, is_json=True, ours=ours)
        assert caught.value.kind.code == "malformed_body"


@pytest.mark.parametrize("is_json", [True, False])
async def test_of_ours_an_empty_body_is_called_so(is_json: bool) -> None:
    with pytest.raises(ServingError, match="^the body is empty$"):
        await json_body.Parser(100).parse(b"", is_json=is_json, ours=True)
    assert await json_body.Parser(100).parse(b"", is_json=is_json, ours=False) == b""


LEAVES = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats() | st.text()
JSON = st.recursive(
    LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8
)


@pytest.mark.slow
@given(st.dictionaries(st.text(), JSON))
def test_objects_come_out_as_sent(value: dict[str, Any]) -> None:
    raw = orjson.dumps(value)  # writes NaN and Infinity as null
    assert parse_object(raw) == orjson.loads(raw)
    check_acceptable(raw)


MARKS = st.text(alphabet='{}[]":,0a\\ ').map(str.encode)
OBJECTS = st.dictionaries(st.text(max_size=5), LEAVES | st.lists(LEAVES, max_size=3)).map(
    orjson.dumps
)


@st.composite
def changed_objects(draw: st.DrawFn) -> bytes:
    """An object's JSON with other bytes in the place of a few."""
    raw = draw(OBJECTS)
    at = draw(st.integers(0, len(raw)))
    return raw[:at] + draw(MARKS | st.binary(max_size=2)) + raw[at + draw(st.integers(0, 2)) :]


ANY_BYTES = OBJECTS | changed_objects() | st.binary(max_size=300) | MARKS


def test_any_bytes_are_an_object_or_refused() -> None:
    seen = set()

    @given(ANY_BYTES)
    def check(raw: bytes) -> None:
        for parse in (parse_object, check_acceptable):
            try:
                value: Any = parse(raw)
            except ServingError:
                seen.add((parse, "refused"))
                continue
            assert parse is check_acceptable or isinstance(value, dict)
            seen.add((parse, "read"))

    check()
    assert len(seen) == 4


@pytest.mark.parametrize("depth", [1000, 100_000, 5_000_000])
@pytest.mark.parametrize("brackets", [b"[", b'{"a":'])
def test_deep_nesting_is_refused(depth: int, brackets: bytes) -> None:
    raw = brackets * depth
    for check in (parse_object, check_acceptable):
        with pytest.raises(ServingError):
            check(raw)


@pytest.mark.parametrize("number", ["9" * 400, "-" + "9" * 5000, "1e309"], ids=len)
def test_a_number_beyond_a_double_is_told_from_what_is_no_json(number: str) -> None:
    raw = b'{"a": %b}' % number.encode()
    with pytest.raises(ServingError, match="the body holds too large a number \\(at character 6"):
        parse_object(raw)
    with pytest.raises(ServingError, match="the body is not valid JSON \\(at character"):
        parse_object(b'{"a": 1,}')


@pytest.mark.parametrize("raw", [b'{"text": "sch\xf6n"}', b'{"t\xe9xt": 1}', b"\xa4"])
def test_bytes_of_another_encoding_are_told_from_what_is_no_json(raw: bytes) -> None:
    """Which shells send whose locale is Latin-1: no character's place would be the right one."""
    for check in (parse_object, check_acceptable):
        with pytest.raises(ServingError, match="^the body is not UTF-8; send it as UTF-8$"):
            check(raw)
    with pytest.raises(ServingError, match="at character 7"):
        parse_object(b'{"a": "\\udc00"}')


def test_a_number_that_the_host_does_not_read_is_too_large() -> None:
    """Python reads 4,300 digits of one."""
    check_acceptable(b'{"a": %b}' % (b"9" * 4300))
    with pytest.raises(ServingError, match="too large a number"):
        check_acceptable(b'{"a": %b}' % (b"9" * 4301))


def test_what_is_no_json_is_told_with_its_place() -> None:
    for check in (parse_object, check_acceptable):
        with pytest.raises(ServingError, match=r"is not valid JSON \(at character 6\)"):
            check(b'{"a": tea}')
        with pytest.raises(ServingError, match="must be a JSON object") as caught:
            check(b"[1]")
        assert caught.value.got == "a list"


def test_strict_for_ours_as_the_host_for_others() -> None:
    check_acceptable(b'{"a": NaN}')
    check_acceptable(b'"text"')
    for raw in (
        b'{"a": NaN}',
        b'{"a": Infinity}',
        b'"text"',
        b'{"a": "\\ud800"}',
    ):
        with pytest.raises(ServingError):
            parse_object(raw)


def elements_of(value: Any) -> int:
    """Lists, objects and values but the first, as `check_elements` is to count them."""
    if isinstance(value, list | dict):
        inner = value.values() if isinstance(value, dict) else value
        return 1 + sum(map(elements_of, inner)) + max(0, len(value) - 1)
    return 0


TEXTS = st.text(alphabet=',[{}]":\\\\\\"\n\u00e9a')


@given(
    st.recursive(
        st.none() | st.integers(-9, 9) | TEXTS,
        lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner),
        max_leaves=40,
    ),
    st.booleans(),
)
def test_elements_are_those_outside_of_strings(value: Any, spaced: bool) -> None:
    raw = orjson.dumps(value, option=orjson.OPT_INDENT_2 if spaced else None)
    count = elements_of(value)
    for limit in range(max(0, count - 2), count):
        with pytest.raises(ServingError, match="TRANSFORMER_SERVING_MAX_BODY_ELEMENTS"):
            check_elements(raw, limit)
    check_elements(raw, count)
    check_elements(raw, count + 1)


def test_the_shortest_elements_are_counted_too() -> None:
    """Two of them in three bytes: no body is cleared by its length that has more than allowed."""
    raw = b"[" + b"[]," * 500 + b"[]]"
    check_elements(raw, 1002)
    with pytest.raises(ServingError) as caught:
        check_elements(raw, 1001)
    assert (caught.value.limit, caught.value.got) == (1001, 1002)


def test_what_is_no_json_is_counted_or_refused() -> None:
    seen = set()

    @given(ANY_BYTES)
    def check(raw: bytes) -> None:
        try:
            check_elements(raw, 3)
            seen.add("counted")
        except ServingError:
            seen.add("refused")

    check()
    assert seen == {"counted", "refused"}


@pytest.mark.parametrize("text", [",", "[", "{", "\\", '"', '\\"', ',"', "[],"])
def test_a_text_of_marks_is_a_text(text: str) -> None:
    raw = orjson.dumps({"text": text * (2_000_000 // (2 * len(text)))})
    check_elements(raw, 1)


BOMBS = {
    "lists": b"[" + b"[]," * 650_000 + b"[]]",
    "objects": b"[" + b"{}," * 650_000 + b"{}]",
    "small objects": b"[" + b'{"a":1},' * 240_000 + b"{}]",
    "strings": b"[" + b'"",' * 650_000 + b'""]',
    "keys": b"{" + b'"a":"",' * 280_000 + b'"a":""}',
    "no json": b'","' * 600_000,
}


@pytest.mark.parametrize("raw", BOMBS.values(), ids=BOMBS)
def test_many_small_things_are_refused_before_they_are_made(raw: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ServingError) as caught:
            check_elements(raw, 100_000)
        assert caught.value.kind.code == "too_large"
        # Parsed, the lists are 20 times as large as the body.
        assert tracemalloc.get_traced_memory()[1] < 12 * len(raw)
    finally:
        tracemalloc.stop()


def test_depth_is_a_limit_of_its_own() -> None:
    for check in (parse_object, check_acceptable):
        with pytest.raises(ServingError) as caught:
            check(b'{"a":' + b"[" * 2000 + b"]" * 2000 + b"}")
        assert (caught.value.kind.code, caught.value.limit) == ("malformed_body", 1024)


async def test_after_a_large_body_the_loop_is_others_for_as_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a clock that only parsing moves, 40 ms a body; small ones wait for nobody."""
    clock, rests = [100.0], []

    def parsed(raw: bytes) -> dict[str, Any]:
        clock[0] += 0.04
        return {}

    async def rest(seconds: float) -> None:
        rests.append(seconds)
        clock[0] += seconds

    monkeypatch.setattr(json_body, "parse_object", parsed)
    monkeypatch.setattr(json_body, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(json_body, "asyncio", SimpleNamespace(sleep=rest, Lock=asyncio.Lock))
    parser = json_body.Parser(10**6)
    large = b'{"text": "' + b"a" * json_body._LARGE + b'"}'
    for raw in (large, large, b"{}", large):
        await parser.parse(raw, is_json=True, ours=True)
    # Nor does one wait that is not parsed.
    assert await parser.parse(large, is_json=False, ours=True) == large
    assert rests == [0.0, pytest.approx(0.04), pytest.approx(0.0)]
    clock[0] += 1.0
    await parser.parse(large, is_json=True, ours=True)
    assert rests[-1] == 0.0
