"""Processor time of several parts, read again and again while a load runs.

So the requests of a stretch stand beside the time of just that stretch: opening connections, and
what is still under way at the end, are in neither.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType

from benchmarks.runs.processor_time import process_seconds

_EVERY_S = 0.1
# Seconds on time.monotonic's clock, and the parts' processor seconds until then.
Sample = tuple[float, dict[str, float]]


@dataclass
class ProcessorSamples:
    """A context in which the parts' processes, by their ids, are looked at each tenth of a second.

    `taken` is to be read when it has ended.
    """

    parts: Mapping[str, Sequence[int]]
    every_s: float = _EVERY_S
    taken: list[Sample] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._take, daemon=True)

    def __enter__(self) -> ProcessorSamples:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        where: TracebackType | None,
    ) -> None:  # fmt: skip
        self._ended.set()
        self._thread.join()

    def between(self, begun: float, ended: float) -> tuple[Sample, Sample] | None:
        """The first and the last sample of that stretch; None where it has no two."""
        inside = [sample for sample in self.taken if begun <= sample[0] <= ended]
        return (inside[0], inside[-1]) if len(inside) > 1 else None

    def _take(self) -> None:
        while True:
            spent = {
                part: sum(process_seconds(pid) for pid in pids) for part, pids in self.parts.items()
            }
            self.taken.append((time.monotonic(), spent))
            if self._ended.wait(self.every_s):
                return
