"""W3C Trace Context: what is read is what the recommendation calls valid, and nothing else."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from transformer_serving.contract.worker.trace_context import (
    TraceContext,
    new_span_id,
    new_trace_id,
    read_traceparent,
    read_tracestate,
    write_traceparent,
)

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def digits(count: int) -> st.SearchStrategy[str]:
    return st.text("0123456789abcdef", min_size=count, max_size=count)


CONTEXTS = st.builds(
    TraceContext, digits(32).filter(lambda it: it.strip("0") != ""),
    digits(16).filter(lambda it: it.strip("0") != ""), st.booleans(),
)  # fmt: skip


@given(CONTEXTS)
def test_what_is_written_is_read_back(context: TraceContext) -> None:
    assert read_traceparent(write_traceparent(context)) == context


@given(CONTEXTS, digits(2), digits(2), st.text(max_size=40))
def test_later_versions_may_have_more_behind_them(
    context: TraceContext, version: str, flags: str, more: str
) -> None:
    text = f"{version}-{context.trace_id}-{context.span_id}-{flags}"
    sampled = int(flags, 16) % 2 == 1
    wanted = None if version == "ff" else context._replace(sampled=sampled)
    assert read_traceparent(text) == wanted
    assert read_traceparent(f"{text}-{more}") == (None if version == "00" else wanted)
    if not more.startswith("-"):
        assert read_traceparent(text + more) == (None if more else wanted)


@given(CONTEXTS, st.integers(0, 54), st.characters())
def test_one_character_that_is_none_of_its_own_makes_it_none(
    context: TraceContext, at: int, character: str
) -> None:
    text = write_traceparent(context)
    changed = text[:at] + character + text[at + 1 :]
    if re.fullmatch("[0-9a-f]", character) or changed == text:
        return
    assert read_traceparent(changed) is None


@given(st.none() | st.text(max_size=80))
def test_any_text_is_read_or_none(text: str | None) -> None:
    found = read_traceparent(text)
    assert found is None or text is not None and f"-{found.trace_id}-{found.span_id}-" in text


@pytest.mark.parametrize(
    "text",
    [
        "",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-01 ",
        f" 00-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01\n",
        f"0-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01,00-{TRACE}-{SPAN}-01",
    ],
)
def test_these_are_none(text: str) -> None:
    assert read_traceparent(text) is None


KEYS = st.from_regex(r"[a-z][a-z0-9_\-*/]{0,30}", fullmatch=True)
VALUES = st.from_regex(
    r"[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,20}[\x21-\x2b\x2d-\x3c\x3e-\x7e]", fullmatch=True
)


@given(
    st.lists(st.tuples(KEYS, VALUES.map(str.strip)), max_size=8, unique_by=lambda it: it[0]),
    st.sampled_from([",", ", ", " ,\t", ",,"]),
)
def test_a_state_is_handed_on_in_its_order(members: list[tuple[str, str]], between: str) -> None:
    rows = [f"{key}={value}" for key, value in members]
    assert read_tracestate(between.join(rows)) == ",".join(rows)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("rojo=00f067aa0ba902b7,congo=t61rcWkgMzE", "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"),
        ("1a-2@vendor=x", "1a-2@vendor=x"),
        ("a=1,a=2", ""),
        ("A=1", ""),
        ("a", ""),
        ("a=", ""),
        ("a=1=2", ""),
        ("a=1\r\nx: y", ""),
        ("a=\u00e9", ""),
        (",".join(f"a{at}=1" for at in range(33)), ""),
        (",".join(f"a{at}=1" for at in range(32)), ",".join(f"a{at}=1" for at in range(32))),
        ("a=" + "1" * 600, ""),
        ("", ""),
    ],
)
def test_what_is_no_state_is_handed_on_to_nobody(text: str, wanted: str) -> None:
    assert read_tracestate(text) == wanted


@given(st.text(max_size=200))
def test_no_state_has_what_ends_a_header(text: str) -> None:
    found = read_tracestate(text)
    assert found.isascii()
    assert found == "" or found.isprintable()


def test_processes_that_are_seeded_alike_make_other_ids() -> None:
    """As the ClearML SDK does in every worker; and a child that was forked is one, too."""
    code = """
import os, random
from transformer_serving.contract.worker.trace_context import chance, new_trace_id
random.seed(1337)
print(new_trace_id(), flush=True)
if not os.fork():
    print(chance.random(), flush=True)
    os._exit(0)
os.wait()
print(chance.random())
"""
    root = Path(__file__).parent.parent.parent
    said = [
        line
        for _ in range(2)
        for line in subprocess.run(
            [sys.executable, "-c", code], cwd=root, env=os.environ, capture_output=True, text=True,
            check=True,
        ).stdout.split()
    ]  # fmt: skip
    assert len(set(said)) == 6
    random.seed(1)
    assert new_span_id() != (random.seed(1), new_span_id())[1]


def test_new_ids_are_ids() -> None:
    ids = {(new_trace_id(), new_span_id()) for _ in range(1000)}
    assert len(ids) == 1000
    for trace_id, span_id in ids:
        context = TraceContext(trace_id, span_id, sampled=True)
        assert read_traceparent(write_traceparent(context)) == context
