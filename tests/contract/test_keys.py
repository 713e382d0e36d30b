from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from transformer_serving.contract.errors import ContractError
from transformer_serving.contract.keys import (
    KEY_LENGTH,
    MOST_BYTES,
    Key,
    digest_of,
    is_endpoint,
    keys_text,
    new_key,
    now,
    parse_keys,
    read_key_file,
)
from transformer_serving.contract.naming import KEY_NAME

SECRET = new_key()
ROW: dict[str, Any] = {
    "name": "shop",
    "sha256": digest_of(SECRET),
    "created": "2026-11-23T12:00:00+00:00",
    "endpoints": ["reviews", "prices/2"],
    "metrics": False,
}
NAMES = st.from_regex(KEY_NAME, fullmatch=True)
ENDPOINTS = st.none() | st.lists(
    st.text(min_size=1, max_size=20).filter(is_endpoint), min_size=1, max_size=4, unique=True
).map(tuple)
TIMES = st.datetimes().map(lambda time: time.isoformat(timespec="seconds") + "+00:00")
DIGESTS = st.binary(min_size=32, max_size=32).map(bytes.hex)


@st.composite
def some_keys(draw: st.DrawFn) -> tuple[Key, ...]:
    names = draw(st.lists(NAMES, max_size=5, unique=True))
    digests = draw(st.lists(DIGESTS, min_size=len(names), max_size=len(names), unique=True))
    rows = []
    for name, digest in zip(names, digests, strict=True):
        endpoints = draw(ENDPOINTS)
        metrics = endpoints is None and draw(st.booleans())
        rows.append(Key(name, digest, draw(TIMES), endpoints, metrics))
    return tuple(rows)


@given(some_keys())
def test_what_is_written_is_read(keys: tuple[Key, ...]) -> None:
    assert parse_keys(keys_text(keys).encode(), "keys.json") == keys


def test_a_key_is_long_and_new_each_time() -> None:
    made = {new_key() for _ in range(50)}
    assert len(made) == 50
    assert all(key.startswith("ts_") and len(key) == KEY_LENGTH for key in made)
    assert SECRET not in keys_text([Key("shop", digest_of(SECRET), now())])


def refusal(raw: bytes) -> str:
    with pytest.raises(ContractError) as caught:
        parse_keys(raw, "keys.json")
    assert str(caught.value).startswith("keys.json")
    # Somebody may have put the key itself there.
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None
    return str(caught.value)


def of(*rows: Any) -> bytes:
    return json.dumps({"keys": list(rows)}).encode()


WRONG: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "not a JSON object"),
    "cut off": (of(ROW)[:-3], "not a JSON object"),
    "a list": (b"[]", "must hold a JSON object"),
    "not UTF-8": (of(ROW).decode().encode("utf-16"), "not a JSON object"),
    "deep": (b'{"keys": ' + b"[" * 100_000, "not a JSON object"),
    "too large": (b" " * (MOST_BYTES + 1), "is too large"),
    "no keys": (b"{}", "field 'keys' is missing"),
    "keys twice": (b'{"keys": [], "keys": []}', "stands twice"),
    "a field more": (b'{"keys": [], "more": 1}', "a field other than keys"),
    "keys no list": (b'{"keys": {}}', "'keys' must be list"),
    "a row no object": (of(SECRET), "must be an object"),
    "the key as a field": (of({**ROW, SECRET: 1}), "a field other than name, sha256"),
    "a field twice": (of(ROW).replace(b'{"name"', b'{"name": "a", "name"'), "stands twice"),
    "the key as its hash": (of({**ROW, "sha256": SECRET}), "64 hexadecimal digits"),
    "a hash in capitals": (of({**ROW, "sha256": "A" * 64}), "64 hexadecimal digits"),
    "a blank in the name": (of({**ROW, "name": "a b"}), "'name' must be letters"),
    "a line's end in the name": (of({**ROW, "name": "a\n"}), "'name' must be letters"),
    "no name": (of({**ROW, "name": ""}), "'name' must be letters"),
    "a name twice": (of(ROW, {**ROW, "sha256": "0" * 64}), "two keys have the same 'name'"),
    "a key twice": (of(ROW, {**ROW, "name": "b"}), "two keys have the same 'sha256'"),
    "local time": (of({**ROW, "created": "2026-11-23T12:00:00+01:00"}), "'created' must be"),
    "no time": (of({**ROW, "created": "today"}), "'created' must be"),
    "a number as time": (of({**ROW, "created": 1}), "'created' must be str"),
    "no endpoint": (of({**ROW, "endpoints": []}), "'endpoints' must be null"),
    "an endpoint twice": (of({**ROW, "endpoints": ["a", "a"]}), "'endpoints' must be null"),
    "an endpoint no string": (of({**ROW, "endpoints": [1]}), "list of strings"),
    "endpoints a string": (of({**ROW, "endpoints": "a"}), "'endpoints' must be list"),
    "an endpoint with a slash": (of({**ROW, "endpoints": ["/a"]}), "must hold a name"),
    "half a character": (of({**ROW, "endpoints": ["\ud800"]}), "must hold a name"),
    "metrics a number": (of({**ROW, "metrics": 1}), "'metrics' must be bool"),
    "metrics and endpoints": (of({**ROW, "metrics": True}), "admits to no endpoint"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_said(what: str) -> None:
    raw, said = WRONG[what]
    assert said in refusal(raw)


@pytest.mark.parametrize("field", ROW)
def test_every_field_must_be_there(field: str) -> None:
    said = refusal(of({name: value for name, value in ROW.items() if name != field}))
    assert f"field '{field}' is missing" in said


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


@st.composite
def changed_files(draw: st.DrawFn) -> bytes:
    """One that is read, with other bytes in the place of a few."""
    raw = keys_text(draw(some_keys())).encode()
    at = draw(st.integers(0, len(raw)))
    return raw[:at] + draw(st.binary(max_size=2)) + raw[at + draw(st.integers(0, 2)) :]


JSON_FILES = JSON_VALUES.map(lambda value: json.dumps(value).encode())


def test_anything_is_read_or_refused() -> None:
    seen = set()

    @given(changed_files() | st.binary(max_size=200) | JSON_FILES)
    def check(raw: bytes) -> None:
        try:
            keys = parse_keys(raw, "keys.json")
        except ContractError:
            seen.add("refused")
            return
        assert parse_keys(keys_text(keys).encode(), "keys.json") == keys
        seen.add("read")

    check()
    assert seen == {"read", "refused"}


GOOD: dict[str, st.SearchStrategy[Any]] = {
    "name": NAMES,
    "sha256": DIGESTS,
    "created": TIMES,
    "endpoints": ENDPOINTS.map(lambda names: names and list(names)),
    "metrics": st.booleans(),
}
FIELD_VALUES = st.sampled_from(list(ROW)).flatmap(
    lambda field: st.tuples(st.just(field), GOOD[field], JSON_VALUES)
)


def test_any_value_of_a_field_is_read_or_refused() -> None:
    seen = set()

    @given(FIELD_VALUES)
    def check(changed: tuple[str, Any, Any]) -> None:
        field, *values = changed
        for value in values:
            try:
                (key,) = parse_keys(of({**ROW, field: value}), "keys.json")
            except ContractError:
                seen.add("refused")
                continue
            assert json.loads(json.dumps(asdict(key)))[field] == value
            seen.add(field)

    check()
    assert seen == {"refused", *ROW}


KEY = Key(**{**ROW, "endpoints": tuple(ROW["endpoints"])})


def test_one_byte_changed_is_refused_or_admits_to_no_more() -> None:
    raw, read = of(ROW), 0
    for at in range(len(raw)):
        for value in (0, 0x22, 0x2C, 0x5C, 0x7D, 0xFF):
            try:
                (key,) = parse_keys(raw[:at] + bytes([value]) + raw[at + 1 :], "keys.json")
            except ContractError:
                continue
            read += 1
            assert (key.sha256, key.metrics) == (KEY.sha256, KEY.metrics)
            for url in ("reviews", "reviews/1", "prices", "prices/2", "prices/3", "other", ""):
                assert KEY.admits(url) or not key.admits(url)
    assert read


@pytest.mark.parametrize("url", ["reviews", "reviews/1", "reviews/1/2", "prices/2"])
def test_a_name_stands_for_its_versions(url: str) -> None:
    assert KEY.admits(url)
    assert replace(KEY, endpoints=None).admits(url)


@pytest.mark.parametrize(
    "url", ["", "prices", "prices/3", "prices/2/1", "prices/22", "review", "reviewsx", "/reviews",
            "Reviews", "reviews%2F1", "x/reviews"],
)  # fmt: skip
def test_nothing_else_is_admitted(url: str) -> None:
    assert not KEY.admits(url)


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", tmp_path / "missing"):
        with pytest.raises(OSError, match="."):
            read_key_file(path)


def test_more_than_may_be_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_bytes(b" " * (MOST_BYTES + 1000))
    assert len(read_key_file(path)) == MOST_BYTES + 1
