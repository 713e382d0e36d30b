"""What a call costs an engine by its shape, known and met for the first time.

`python -m benchmarks shapes BUNDLE`. An engine that keeps kernels by shape pays for each new one,
and again where it has forgotten it; padding to fewer lengths pays with every text.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from benchmarks.runs.raw_engine import call_inputs, load
from benchmarks.servers.process import Unusable
from transformer_serving.desk.step_report import StepReport
from transformer_serving.engine.backends.executor import RequestFailure, Runtime

Shape = tuple[int, int]
# Texts of a call: one, and two that a full call of short texts may have.
BATCHES = (1, 8, 40)
LENGTHS = tuple(range(4, 65))
_AGAIN = 15
_SEED = 7


def measured(folder: Path, report: StepReport, lengths: Sequence[int] = LENGTHS) -> dict[str, Any]:
    """Milliseconds of calls of each shape, the first one and the median of later ones.

    `new_ms` is by texts what a first call takes longer, in the median over the lengths; `again` how
    many times as long a shape takes when it comes again among all others, in the median;
    `memory_mb` the process before the shapes and after them.
    """
    runtime = load(folder)
    for length in (lengths[0], lengths[-1]):
        _ms(runtime, (BATCHES[-1] + 1, length))
    # Not in the order of lengths, where a trend of the machine would look like one of theirs.
    shapes = [(batch, length) for batch in BATCHES for length in lengths]
    random.Random(_SEED).shuffle(shapes)
    before = _memory_mb()
    first, later = {}, {}
    for at, shape in enumerate(shapes):
        first[shape] = _ms(runtime, shape)
        later[shape] = median(_ms(runtime, shape) for _ in range(_AGAIN))
        if at % 30 == 0:
            report(f"{at} of {len(shapes)} shapes")
    after = _memory_mb()
    return {
        "rows": [
            {"texts": batch, "tokens": length, "first_ms": round(first[batch, length], 2),
             "ms": round(later[batch, length], 2)}
            for batch in BATCHES for length in lengths
        ],
        "new_ms": {
            str(batch): round(median(first[batch, at] - later[batch, at] for at in lengths), 2)
            for batch in BATCHES
        },
        "memory_mb": [before, after],
        "again": _again(runtime, shapes, later),
    }  # fmt: skip


def _again(runtime: Runtime, shapes: list[Shape], alone: dict[Shape, float]) -> float:
    """A shape that the engine has forgotten meanwhile takes as long as a new one."""
    order = shapes * 3
    random.Random(_SEED + 1).shuffle(order)
    times: dict[Shape, list[float]] = {shape: [] for shape in shapes}
    for shape in order:
        times[shape].append(_ms(runtime, shape))
    return round(median(median(taken) / alone[shape] for shape, taken in times.items()), 3)


def _ms(runtime: Runtime, shape: Shape) -> float:
    calls = [call_inputs(runtime, *shape)]
    begun = time.perf_counter()
    for answer in runtime.run(calls):
        if isinstance(answer, RequestFailure):
            raise Unusable(answer.reason)
    return 1e3 * (time.perf_counter() - begun)


def _memory_mb() -> float:
    return round(psutil.Process().memory_info().rss / 1e6, 1)
