"""What is printed at any width, and of anything that is not well."""

from __future__ import annotations

import io
import re
from collections import deque
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from rich.console import Console

from transformer_serving.desk.watch.lines import plain_lines
from transformer_serving.desk.watch.look import Look
from transformer_serving.desk.watch.numbers import ASCII, BLOCKS, milliseconds, short, sparkline
from transformer_serving.desk.watch.screen import Screen
from transformer_serving.desk.watch.traffic import (
    EndpointTraffic,
    History,
    TextTraffic,
    Traffic,
)

NAME = "transformer_model"
TIME = "2026-11-24T03:50:00+00:00"
rates = st.floats(0, 1e6, allow_nan=False)


def look_of(*names: str, fault: str | None = None, running: bool = True, **why: str) -> Look:
    """`why` are endpoints that are not ready."""
    rows: list[dict[str, Any]] = [
        {"endpoint": name, "ready": True, "reason": None} for name in names
    ]
    rows += [{"endpoint": name, "ready": False, "reason": one} for name, one in why.items()]
    parts = [{"name": "controller", "health": "ok"}]
    return Look(
        TIME,
        {"running": running, "left_behind": False, "parts": parts, "endpoints": rows},
        None,
        fault,
    )


def traffic_of(**rows: EndpointTraffic) -> Traffic:
    return Traffic(15.0, rows, 120, 400_000, 2, 128, {}, ())


def row_of(text: TextTraffic | None = None, rate: float = 12.34) -> EndpointTraffic:
    return EndpointTraffic(rate, 0.5, 0.0, 0.0034, 12.2, text)


def printed(look: Look, traffic: Traffic | None, width: int = 80, utf8: bool = True) -> str:
    history = History()
    for name in traffic.endpoints if traffic else ():
        history.requests[name] = history.tokens[name] = deque([None, 0.0, 1.0, 2.0, 4.0])
    picture = Screen(width, utf8=utf8).picture(Path("/a/stack"), look, traffic, history)
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(picture)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_row_has_its_numbers() -> None:
    text = TextTraffic(141.2, 0.0123, 0.09, 3)
    said = printed(look_of(NAME, "text"), traffic_of(**{NAME: row_of(), "text": row_of(text)}))
    assert "waiting 120 of 400k tokens, running 2 of 128 sequences" in said
    assert re.search(rf"^{NAME} +12\.3  +▁▃▅█ +3\.40 +12200 +0\.50 +0 *$", said, re.M), said
    assert re.search(r"^text +141  +▁▃▅█ +12\.3 +90 +3 *$", said, re.M), said


@given(st.integers(60, 200), st.text("abcdef_/", min_size=1, max_size=90), rates, rates)
def test_no_line_is_longer_than_the_terminal_and_no_number_is_cut(
    width: int, name: str, rate: float, seconds: float
) -> None:
    seconds = min(seconds, 99.0)
    row = EndpointTraffic(
        rate, rate, rate, seconds, seconds, TextTraffic(rate, seconds, seconds, 7)
    )
    said = printed(look_of(name), traffic_of(**{name: row}), width)
    lines = said.splitlines()
    assert all(len(line) <= width for line in lines)
    # The first row of each table: that of requests ends with a rate, that of text with 7.
    ends = {short(rate): 2, "7": 2}
    for end, times in ends.items():
        (cells, *_) = [line.split() for line in lines if line.split()[-1:] == [end]]
        assert cells.count(milliseconds(seconds)) >= times, cells


def test_what_is_not_well_is_told() -> None:
    look = look_of(NAME, new="loading")
    assert look.status is not None
    look.status["parts"].append({"name": "triton", "health": "does not answer"})
    traffic = Traffic(
        15.0, {NAME: row_of(), "old": row_of()}, 0, None, 0, None, {"unauthorized": 0.3}, (NAME,)
    )
    for said in (printed(look, traffic), "\n".join(plain_lines(look, traffic))):
        for note in (
            "new: loading", "old: removed", "triton: does not answer",
            f"{NAME}: the golden request fails", "refused by the gateway: unauthorized, 0.30/s",
        ):  # fmt: skip
            assert note in said
        assert "controller" not in said


def test_names_and_reasons_give_a_terminal_no_orders() -> None:
    evil = "a\x1b]0;x\x07\n20:00 up"
    look = look_of(evil)
    assert look.status is not None
    look.status["endpoints"].append({"endpoint": "b", "ready": False, "reason": evil})
    traffic = traffic_of(**{evil: row_of()})
    assert printed(look, traffic, width=200).replace("\n", "").isprintable()
    assert all(line.isprintable() for line in plain_lines(look, traffic))


def test_a_stack_that_is_down_or_keeps_its_figures_back() -> None:
    down = look_of(NAME, running=False, fault="the stack is down")
    assert "stack: down" in printed(down, None)
    assert "the stack is down" in printed(down, None)
    assert NAME not in printed(down, None)
    assert plain_lines(down, None) == [f"{TIME} down", f"{TIME} the stack is down"]
    locked = look_of(NAME, fault="no figures: a key")
    said = printed(locked, None)
    assert re.search(rf"^{NAME} +- +- +- +- +- *$", said, re.M), said
    assert "no figures: a key" in said
    gone = Look(TIME, None, None, "there is no stack in /a any more")
    assert "no stack in /a" in printed(gone, None)


def test_without_utf8_it_is_ascii() -> None:
    assert printed(look_of(NAME), traffic_of(**{NAME: row_of()}), utf8=False).isascii()


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0, "0"), (3, "3"), (3.14159, "3.14"), (9.996, "10.0"), (31.4, "31.4"),
     (99.96, "100"), (314.15, "314"), (999.6, "1.00k"), (1234, "1.23k"), (4e5, "400k"),
     (999_600, "1.00M"), (2.5e9, "2.50G")],
)  # fmt: skip
def test_short_numbers(value: float | None, text: str) -> None:
    assert short(value) == text


@given(st.floats(0, 9e11, allow_nan=False))
def test_a_short_number_is_short_and_right(value: float) -> None:
    text = short(value)
    assert len(text) <= 5
    size = {"k": 1e3, "M": 1e6, "G": 1e9}.get(text[-1], 1)
    assert float(text.rstrip("kMG")) * size == pytest.approx(value, rel=0.006, abs=0.006)


@given(st.lists(st.none() | st.floats(0, 1e9), max_size=80), st.integers(1, 60))
def test_a_sparkline_rises_as_its_values(values: list[float | None], width: int) -> None:
    for ramp in (BLOCKS, ASCII):
        line = sparkline(values, width, ramp)
        shown = values[-width:]
        assert len(line) == len(shown)
        steps = [
            (value, ramp.index(sign))
            for value, sign in zip(shown, line, strict=True)
            if value is not None
        ]
        assert [sign for value, sign in zip(shown, line, strict=True) if value is None] == [
            " "
        ] * shown.count(None)
        assert [step for _, step in sorted(steps)] == sorted(step for _, step in steps)
        if any(value for value, _ in steps):
            assert max(step for _, step in steps) == len(ramp) - 1
