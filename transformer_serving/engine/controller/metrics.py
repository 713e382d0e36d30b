"""The controller's page for Prometheus: its own figures, then Triton's page as Triton gives it but
for what a killed process of a language model left there.

Written by hand, as the Triton image has no prometheus_client: the text form is a line a figure.

Tested by tests/engine/test_proofs.py.
"""

from __future__ import annotations

import http.client
import re
import time
from collections.abc import Container, Iterator, Sequence, Set
from dataclasses import dataclass

from transformer_serving.engine.controller.records import Kind
from transformer_serving.engine.controller.status import PROOF_STATES, EndpointStatus
from transformer_serving.engine.controller.triton.connections import read_page
from transformer_serving.engine.controller.triton.metric_rows import version_of

_TRITON_S = 3.0
_PREFIX = "transformer_serving_engine"
# Triton keeps the rows of a version for good, and who is killed sets none to 0 (figures.py of
# engine/backends/generation).
_GENERATION = "transformer_serving_generation_"
_GAUGE = re.compile(rf"^# TYPE ({_GENERATION}\w+) gauge$", re.MULTILINE)
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


@dataclass(frozen=True)
class Family:
    """One figure's name after the prefix, its help, and its rows of labels and value."""

    name: str
    help: str
    rows: Sequence[tuple[dict[str, str], float]]
    type: str = "gauge"

    def lines(self) -> Iterator[str]:
        name = f"{_PREFIX}_{self.name}"
        yield f"# HELP {name} {self.help}"
        yield f"# TYPE {name} {self.type}"
        for labels, value in self.rows:
            pairs = ",".join(f'{key}="{text.translate(_ESCAPES)}"' for key, text in labels.items())
            # A time of today has ten digits before its point.
            yield f"{name}{{{pairs}}} {value:.13g}" if pairs else f"{name} {value:.13g}"


class MetricsPage:
    """Shown by the loop, read by scrapes from other threads; `triton` is its page's address."""

    def __init__(self, triton: str | None) -> None:
        self._triton = triton
        self._since = time.time()
        self._starts = 0
        self._shown: tuple[Sequence[EndpointStatus], float | None, bool] = ((), None, False)

    def show(
        self, rows: Sequence[EndpointStatus], last_sync: float | None, *, triton_ready: bool,
        triton_starts: int = 0,
    ) -> None:  # fmt: skip
        """`last_sync` in Unix seconds, None before the first."""
        self._shown = (rows, last_sync, triton_ready)
        self._starts = triton_starts

    def text(self) -> str:
        """All of it; without Triton's part where Triton does not answer."""
        rows, last_sync, triton_ready = self._shown
        loaded = self.loaded()
        families = (
            *_of_endpoints(rows),
            *_of_controller(last_sync, triton_ready=triton_ready),
            *_of_starts(self._since, self._starts),
        )
        own = "".join(f"{line}\n" for family in families for line in family.lines())
        if loaded is None:
            return own + self._of_triton()
        return own + _without_dead(self._of_triton(), loaded)

    def loaded(self) -> Set[tuple[str, str]] | None:
        """Models and versions that Triton has, of endpoints; None where Triton does not answer."""
        rows, _, triton_ready = self._shown
        if not triton_ready:
            return None
        return {(row.model, str(version)) for row in rows for version in row.versions_loaded}

    def _of_triton(self) -> str:
        if self._triton is None:
            return ""
        try:
            return read_page(self._triton, _TRITON_S)
        except (OSError, http.client.HTTPException):
            return ""


def _without_dead(page: str, loaded: Container[tuple[str, str]]) -> str:
    """Triton's page without gauges of language models' versions that are not loaded."""
    gauges = tuple(f"{name}{{" for name in _GAUGE.findall(page))
    if not gauges:
        return page
    return "".join(
        line
        for line in page.splitlines(keepends=True)
        if not line.startswith(gauges) or version_of(line) in loaded
    )


def _of_endpoints(shown: Sequence[EndpointStatus]) -> Iterator[Family]:
    # What is told beside an endpoint is none that is not served, of which somebody would be called.
    rows = [row for row in shown if not row.beside]
    named = [({"endpoint": row.endpoint, "bundle": _bundle(row.proof_of)}, row) for row in rows]
    yield Family(
        "ready",
        "1 where Triton serves the endpoint's last good version.",
        [
            ({"endpoint": row.endpoint, "bundle": _bundle(row.bundle_version)}, float(row.ready))
            for row in rows
        ],
    )
    yield Family(
        "proof",
        "1 for the state that the proof of the endpoint's answers is in.",
        [
            ({**labels, "state": state}, float(row.proof == state))
            for labels, row in named
            for state in PROOF_STATES
        ],
    )
    yield Family(
        "load_failed",
        "1 for the kind of what failed, where a bundle of the endpoint could not be loaded.",
        [
            ({"endpoint": row.endpoint, "kind": kind.value}, float(row.failure is kind))
            for row in rows
            for kind in Kind
        ],
    )
    for name, text, field in (
        ("proof_seconds", "What the passed proof took, in seconds.", "proof_seconds"),
        (
            "proof_largest_difference",
            "Largest difference from the reference in the passed proof.",
            "largest_difference",
        ),
        (
            "proof_lowest_cosine",
            "Lowest cosine with the reference in the passed proof.",
            "lowest_cosine",
        ),
    ):
        values = [(labels, getattr(row, field)) for labels, row in named]
        yield Family(name, text, [(labels, value) for labels, value in values if value is not None])


def _of_controller(last_sync: float | None, *, triton_ready: bool) -> Iterator[Family]:
    yield Family("triton_ready", "1 where Triton answers.", [({}, float(triton_ready))])
    if last_sync is not None:
        text = "When the control plane last answered, in Unix time."
        yield Family("last_sync_timestamp_seconds", text, [({}, last_sync)])


def _of_starts(since: float, triton_starts: int) -> Iterator[Family]:
    # A 0 before the first would be a growth at each start of a controller whose Triton ran on.
    if triton_starts:
        text = "How often a Triton came to answer, since the controller's start."
        yield Family("triton_starts_total", text, [({}, float(triton_starts))], "counter")
    text = "When the controller was started, in Unix time."
    yield Family("start_time_seconds", text, [({}, since)])


def _bundle(version: int | None) -> str:
    return "" if version is None else str(version)
