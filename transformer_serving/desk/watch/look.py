"""One look at a stack: what `status` says, and the figures that its gateway serves.

Tested by tests/stack/test_watch.py.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from transformer_serving.desk import http
from transformer_serving.desk.command_line import command_line
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.local import stack
from transformer_serving.desk.local.leftovers import absence
from transformer_serving.desk.local.record import LOOPBACK, StackRecord, load_record
from transformer_serving.desk.watch.counters import Page, read_page

_TIMEOUT_S = 3.0


@dataclass(frozen=True)
class Look:
    """`status` is as `status --json` has it, None where it cannot be had; `page` None where the
    gateway gave no figures. `fault` is why in either case, with the fix.
    """

    time: str
    status: dict[str, Any] | None
    page: Page | None
    fault: str | None

    @property
    def running(self) -> bool:
        return bool(self.status and self.status["running"])

    @property
    def word(self) -> str:
        if self.status and self.status["left_behind"]:
            return "left behind"
        return "up" if self.running else "down"

    @property
    def endpoints(self) -> list[dict[str, Any]]:
        return self.status["endpoints"] if self.status else []

    def ill_parts(self) -> list[str]:
        """A line for each part that is not well."""
        parts = self.status["parts"] if self.status and self.word != "down" else []
        return [f"{part['name']}: {part['health']}" for part in parts if part["health"] != "ok"]


def look_at(state: Path) -> Look:
    """The ports are read each time: a stack that was down may come back on others."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    try:
        record = load_record(state)
        if record is None:
            return Look(now, None, None, f"there is no stack in {state} any more")
        status = stack.status(state, record)
    except Failure as failure:
        return Look(now, None, None, str(failure))
    if not status["running"]:
        down = absence(state, left_behind=status["left_behind"])
        return Look(now, status, None, str(down))
    try:
        return Look(now, status, figures_of(record), None)
    except Failure as failure:
        return Look(now, status, None, str(failure))


def figures_of(record: StackRecord) -> Page:
    """What its gateway counts. Raises Failure for a page that is not to be had, or is none."""
    address = f"{LOOPBACK}:{record.ports.inference}"
    key = http.key_header(os.environ.get(http.METRICS_KEY_VARIABLE))
    try:
        answer = http.ask_at(address, "/metrics", headers=key, timeout_s=_TIMEOUT_S)
    except http.NoAnswer as error:
        raise Failure(f"no figures: {address}/metrics does not answer: {error}") from error
    if answer.status in (http.UNAUTHORIZED, http.FORBIDDEN):
        raise Failure(
            "no figures: the gateway takes a key for them, made by "
            f"'{command_line('keys add NAME --metrics')}': give it in {http.METRICS_KEY_VARIABLE}"
        )
    try:
        if answer.status != 200:
            raise ValueError
        return read_page(answer.body.decode("utf-8"), time.monotonic())
    except ValueError:
        raise Failure(
            f"no figures: {address}/metrics is no page of figures: status {answer.status}"
        ) from None
