"""How long one call takes: each engine on the same tensors, in turns, with its parity beside it."""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from transformer_serving.contract.heads import TOKEN_ROLES

if TYPE_CHECKING:
    from transformer_serving.contract.endpoint import Endpoint
    from transformer_serving.desk.builders.calibration import Feed, Feeds
    from transformer_serving.desk.builders.call_sizes import Range

    Call = Callable[[Feed], object]

Shape = tuple[int, int]
# Texts and tokens of one call where nobody has said which.
SHAPES = ((1, 16), (1, 128), (32, 128))
_LENGTHS = (16, 128)
_TEXTS = (1, 32, 32)
# PyTorch and the graph as exported write out what each token of a text has to do with each other
# one, which takes gigabytes.
_MOST_TOKENS = 8192
CPU, GPU = "cpu", "gpu"
_ROUNDS = 7
_WARM_UP = 3
# A round of one contender and shape is at least one call and about this long.
_ROUND_MS = 400
_MOST_CALLS = 100


@dataclass(frozen=True)
class Contender:
    """One row group of the table. `difference` is the largest from the reference, None unknown;
    `device` is CPU or GPU, where the call is computed."""

    name: str
    precision: str
    call: Call
    difference: float | None
    passes: bool | None
    device: str = CPU


@dataclass(frozen=True)
class Latency:
    """Milliseconds of one contender's calls of one shape, on `device`."""

    name: str
    precision: str
    texts: int
    tokens: int
    calls: int
    mean: float
    sd: float
    min: float
    max: float
    median: float
    p95: float
    p99: float
    difference: float | None
    passes: bool | None
    device: str = CPU


RoundReport = Callable[[str, int, int], None]


def shapes_of(
    endpoint: Endpoint, lengths: Range | None = None, batch: Range | None = None
) -> tuple[Shape, ...]:
    """What is measured of an endpoint: calls that it makes.

    `lengths` and `batch` are --seq-len and --batch where they were given: one text of each length,
    then the usual and the most texts of the usual one, and the most of the longest.
    """
    wanted: Sequence[Shape] = SHAPES
    if lengths or batch:
        tokens, (_, usual, most) = lengths or _LENGTHS, batch or _TEXTS
        several = ((usual, tokens[1]), (most, tokens[1]), (most, tokens[-1]))
        wanted = (*((1, length) for length in tokens), *several)
    limits, buckets = endpoint.limits, endpoint.tokens.buckets
    room = min(limits.max_call_tokens or _MOST_TOKENS, _MOST_TOKENS) if lengths or batch else None
    found: dict[Shape, None] = {}
    for texts, length in wanted:
        padded = min(max(length, buckets[0]), endpoint.tokens.max_length)
        fitting = max(1, room // padded) if room else texts
        found[min(texts, limits.max_batch_size, fitting), padded] = None
    return tuple(found)


def measure(
    contenders: Sequence[Contender], feeds: Feeds, shapes: Sequence[Shape], report: RoundReport
) -> list[Latency]:
    """The table's rows, by shape and then in the order of `contenders`.

    `feeds` are calls with one text; the longest is cut and repeated to each shape. `report` gets
    what runs, the rounds done and all rounds.
    """
    rounds = Rounds(_ROUNDS, _ROUND_MS)
    return [
        _row(one, *shape, [ms for taken in times for ms in taken])
        for shape, by_contender in rounds_by_shape(contenders, feeds, shapes, rounds, report)
        for one, times in zip(contenders, by_contender, strict=True)
    ]


@dataclass(frozen=True)
class Rounds:
    """A round of one contender is at least one call and about `ms`."""

    number: int
    ms: float


def rounds_by_shape(
    contenders: Sequence[Contender],
    feeds: Feeds,
    shapes: Iterable[Shape],
    rounds: Rounds,
    report: RoundReport,
) -> Iterator[tuple[Shape, list[list[list[float]]]]]:
    """Each shape once, with milliseconds of each contender's calls, round by round.

    They take turns, and every other round goes backwards through them.
    """
    each = list(dict.fromkeys(shapes))
    for index, (texts, tokens) in enumerate(each):
        feed = call_of(feeds, texts, tokens)
        counts = [_calls_a_round(one.call, feed, rounds.ms) for one in contenders]
        times: list[list[list[float]]] = [[] for _ in contenders]
        turns = list(zip(contenders, counts, times, strict=True))
        for turn in range(rounds.number):
            report(f"{texts}x{tokens}", index * rounds.number + turn, len(each) * rounds.number)
            for one, count, taken in turns if turn % 2 == 0 else reversed(turns):
                taken.append(_timed(one.call, feed, count))
        yield (texts, tokens), times


def call_of(feeds: Feeds, texts: int, tokens: int) -> Feed:
    """A call of `texts` equal texts without padding, made of the longest feed."""
    import numpy as np

    longest = max(feeds, key=lambda feed: max(array.shape[1] for array in feed.values()))
    call: dict[str, Any] = {}
    for name, array in longest.items():
        if name in TOKEN_ROLES:
            row = np.resize(array[:, : min(tokens, array.shape[1])], (1, tokens))
        else:
            row = np.minimum(array, tokens - 1)
        call[name] = np.ascontiguousarray(np.repeat(row, texts, axis=0))
    if "attention_mask" in call:
        call["attention_mask"] = np.ones_like(call["attention_mask"])
    return call


def _calls_a_round(call: Call, feed: Feed, round_ms: float) -> int:
    once = min(_timed(call, feed, _WARM_UP))
    return max(1, min(_MOST_CALLS, int(round_ms / once)))


def _timed(call: Call, feed: Feed, count: int) -> list[float]:
    times = []
    gc.disable()
    try:
        for _ in range(count):
            begun = time.perf_counter()
            call(feed)
            times.append((time.perf_counter() - begun) * 1000)
    finally:
        gc.enable()
    return times


def _row(one: Contender, texts: int, tokens: int, times: list[float]) -> Latency:
    ordered = sorted(times)
    return Latency(
        name=one.name,
        precision=one.precision,
        texts=texts,
        tokens=tokens,
        calls=len(times),
        mean=statistics.fmean(times),
        sd=statistics.stdev(times) if len(times) > 1 else 0.0,
        min=ordered[0],
        max=ordered[-1],
        median=statistics.median(ordered),
        p95=percentile(ordered, 95),
        p99=percentile(ordered, 99),
        difference=one.difference,
        passes=one.passes,
        device=one.device,
    )


def percentile(ordered: Sequence[float], part: int) -> float:
    """The smallest of the values, in rising order, that `part` percent of them do not exceed."""
    return ordered[max(0, -(-len(ordered) * part // 100) - 1)]


def parity_cell(row: Latency) -> str:
    if row.difference is None:
        return "the reference" if row.device == CPU else "not asked"
    return f"{row.difference:.1e} {'ok' if row.passes else 'over'}"


def processor() -> str:
    """The name of this machine's processor."""
    import platform
    from pathlib import Path

    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def gpu() -> str | None:
    """The name of the GPU that torch computes on, None where it sees none or is not loaded."""
    torch = sys.modules.get("torch")
    return str(torch.cuda.get_device_name(0)) if torch and torch.cuda.is_available() else None


def facts() -> Mapping[str, str]:
    """What stands beside figures: the processor, its cores, the GPU if any, and the engines'
    versions."""
    import os
    from datetime import date

    from transformer_serving.contract.gate.server_facts import installed

    found = gpu()
    return {
        "date": date.today().isoformat(),
        "processor": processor(),
        "cores": str(len(os.sched_getaffinity(0))),
        **({"gpu": found} if found else {}),
        **{name: installed(name) or "none" for name in ("torch", "onnxruntime", "openvino")},
    }
