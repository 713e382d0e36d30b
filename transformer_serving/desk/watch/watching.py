"""Looking at a stack again and again until Ctrl-C.

Tested by tests/stack/test_watch.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import click
from rich.console import Console, RenderableType
from rich.live import Live

from transformer_serving.desk.local.record import require_record
from transformer_serving.desk.watch.lines import json_line, plain_lines
from transformer_serving.desk.watch.look import Look, look_at
from transformer_serving.desk.watch.screen import Screen
from transformer_serving.desk.watch.traffic import History, Traffic

Show = Callable[[Look, Traffic | None, History], None]


def watch(state: Path, interval_s: float, *, as_json: bool) -> None:
    """Returns on Ctrl-C. Raises Failure where there never was a stack: no look would find one."""
    require_record(state)
    console = Console()
    history = History()
    with suppress(KeyboardInterrupt), _shown_by(console, state, as_json=as_json) as show:
        while True:
            began = time.monotonic()
            look = look_at(state)
            show(look, history.add(look.page), history)
            time.sleep(max(0.0, began + interval_s - time.monotonic()))


@contextmanager
def _shown_by(console: Console, state: Path, *, as_json: bool) -> Iterator[Show]:
    if as_json:
        yield lambda look, traffic, _: click.echo(json_line(look, traffic))
    elif console.is_interactive:
        with _on_terminal(console, state) as show:
            yield show
    else:
        yield _Lines().show


class _Lines:
    """What is no terminal gets every look of a stack that is up, of one that is down the first."""

    def __init__(self) -> None:
        self._down: str | None = None

    def show(self, look: Look, traffic: Traffic | None, _: History) -> None:
        down = None if look.running else look.fault
        if down is None or down != self._down:
            for line in plain_lines(look, traffic):
                click.echo(line)
        self._down = down


@contextmanager
def _on_terminal(console: Console, state: Path) -> Iterator[Show]:
    """In place, on a screen of its own; the last picture stays where the command was typed."""
    utf8 = console.encoding.startswith("utf")
    last: RenderableType = ""

    def show(look: Look, traffic: Traffic | None, history: History) -> None:
        nonlocal last
        # Its width is asked each time: windows are made smaller.
        last = Screen(console.width, utf8=utf8).picture(state, look, traffic, history)
        live.update(last, refresh=True)

    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            yield show
    finally:
        console.print(last)
