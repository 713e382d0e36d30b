"""The queue before an engine, computed: what lengths, calls and their cost alone do to waiting.

`python -m benchmarks.queue_model` sends the mixed load's lengths at random moments through
preprocess.waiting to an engine that takes a fixed time for a call and for each of its tokens. No
machine's noise is in it, so two ways of putting calls together can be told apart by a few per
cent; and what it says without any other cause tells which part of a measured wait needs none.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.texts import CLASS_BOUNDS, CLASS_WEIGHTS, LENGTH_CLASSES
from preprocess.waiting import WaitingTexts
from transformer_serving.bench.figures import percentile
from transformer_serving.bench.load import arrivals
from transformer_serving.call_sizes import BATCH, CALL_TOKENS, LADDERS

_LONGEST = LENGTH_CLASSES[-1]
_SLOTS = 2
_CLIENTS = 64


@dataclass(frozen=True)
class Engine:
    """Seconds of a call, of each token in it, and of its way there and back."""

    call_s: float
    token_s: float
    way_s: float


@dataclass(eq=False)
class Text:
    length: int
    due: float


@dataclass
class Queue:
    """One run; `waits` are seconds by length class, `calls` the texts of each call."""

    engine: Engine
    source: random.Random
    waits: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    calls: list[int] = field(default_factory=list)

    def run(self, seconds: float, rate: float | None) -> Queue:
        """Texts at random moments, `rate` a second; without it 64 clients, each for its answer."""
        waiting: WaitingTexts[Text] = WaitingTexts(
            [size for size in LADDERS["openvino"] if size <= _LONGEST],
            BATCH[2], CALL_TOKENS["openvino"],
        )  # fmt: skip
        number = itertools.count()
        moments = arrivals(rate, seconds) if rate else [0.0] * _CLIENTS
        events = [(due, next(number), [self._text(due)], False) for due in moments]
        heapq.heapify(events)
        running, free = 0, 0.0
        while events and events[0][0] <= seconds:
            now, _, texts, answered = heapq.heappop(events)
            if answered:
                running -= 1
                self._note(texts, now)
                texts = [] if rate else [self._text(now) for _ in texts]
            for text in texts:
                waiting.push([text])
            while running < _SLOTS and (batch := waiting.take()) is not None:
                running += 1
                self.calls.append(len(batch.items))
                tokens = len(batch.items) * batch.length
                begins = max(free, now + self.engine.way_s / 2)
                free = begins + self.engine.call_s + tokens * self.engine.token_s
                done = free + self.engine.way_s / 2
                heapq.heappush(events, (done, next(number), batch.items, True))
        return self

    @property
    def answered(self) -> int:
        return sum(map(len, self.waits.values()))

    @property
    def texts_a_call(self) -> float:
        return sum(self.calls) / len(self.calls)

    def _note(self, texts: Sequence[Text], now: float) -> None:
        for text in texts:
            high = next(high for high in LENGTH_CLASSES if text.length <= high)
            self.waits[high].append(now - text.due)

    def _text(self, due: float) -> Text:
        ((low, high),) = self.source.choices(CLASS_BOUNDS, CLASS_WEIGHTS)
        return Text(self.source.randint(low, high), due)


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    milliseconds = (options.call_ms, options.token_ms, options.way_ms)
    engine = Engine(*(value / 1e3 for value in milliseconds))
    full = Queue(engine, random.Random(1)).run(options.seconds, None)
    rate = options.share * full.answered / options.seconds
    found = Queue(engine, random.Random(1)).run(options.seconds, rate)
    print(  # noqa: T201
        f"{_CLIENTS} clients: {full.answered / options.seconds:.0f} texts/s, "
        f"{full.texts_a_call:.1f} texts a call; at {options.share:.0%} of that rate "
        f"{found.texts_a_call:.1f}"
    )
    for high, waits in sorted(found.waits.items()):
        ordered = sorted(waits)
        p50, p99 = (1e3 * percentile(ordered, share) for share in (50.0, 99.0))
        print(f"to {high} tokens: p50 {p50:.1f} ms, p99 {p99:.1f} ms")  # noqa: T201


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.queue_model",
        description="The queue before an engine, computed.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--call-ms", type=float, default=2.6, help="of a call")
    parser.add_argument("--token-ms", type=float, default=0.052, help="of a token in it")
    parser.add_argument("--way-ms", type=float, default=1.0, help="of its way there and back")
    parser.add_argument("--share", type=float, default=0.7, help="of the capacity that is offered")
    parser.add_argument("--seconds", type=float, default=60.0, help="that pass in the model")
    return parser


if __name__ == "__main__":
    main()
