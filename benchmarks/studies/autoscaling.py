"""A day of load with a jump of ten times, on Tritons that an autoscaler starts and ends.

Computed, not run: tokens flow through a queue that admits by time, as the workers do, and replicas
follow the HorizontalPodAutoscaler's rules, second by second. What one Triton does and how long a
pod takes to serve are Engine's figures. Within a second all are alike: a wait is its mean.

Its table and picture: benchmarks/studies/autoscaling_page.py.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

DAY_S = 86_400
JUMP_AT_S, JUMP_LASTS_S, JUMP = 12 * 3600, 1800, 10.0
# What a worker admits by, and the chart's behaviour of its autoscalers.
MAX_WAIT_S = 2.0
SYNC_S, SCRAPE_S, RATE_S = 15, 15, 60
SCALE_DOWN_S, DOWN_EVERY_S, DOWN_SHARE = 600, 60, 0.25
UP_PODS, TOLERANCE = 4, 0.1
# Waits of a queue that is this full are the queue's own, which is counted.
_FULL = 0.98


@dataclass(frozen=True)
class Engine:
    """A kind of Triton: tokens a second, seconds of a call alone, seconds until a pod serves."""

    title: str
    tokens_per_second: float
    call_s: float
    start_s: int


@dataclass(frozen=True)
class Scaler:
    """What an autoscaler looks at; one that looks at nothing keeps `least` pods.

    `within_s` is how many seconds of work may wait, `busy` the share of a Triton's tokens a second.
    `least` is 1 or more: what starts the first one is no rule of these.
    """

    title: str
    within_s: float | None = None
    busy: float | None = None
    least: int = 1
    most: int = 14


@dataclass
class Course:
    """What came of a day: sums in tokens, and a row a second."""

    asked: float = 0.0
    answered: float = 0.0
    refused: float = 0.0
    left: float = 0.0
    demand: list[float] = field(default_factory=list)
    replicas: list[int] = field(default_factory=list)
    refusals: list[float] = field(default_factory=list)
    # Seconds that the tokens took that were answered in a second, and how many those were.
    waits: list[tuple[float, float]] = field(default_factory=list)

    @property
    def pod_hours(self) -> float:
        return sum(self.replicas) / 3600

    def percentile(self, share: float) -> float:
        """The seconds within which `share` percent of the answered tokens were answered."""
        rest = self.answered * share / 100
        for seconds, tokens in sorted(self.waits):
            rest -= tokens
            if rest <= 0:
                return seconds
        return math.nan


ENGINES = (
    # 918 texts a second of the seed's sentence, 18 tokens, and 3.4 ms for one alone, as measured on
    # 2026-11-21 on two cores (buckets are closer since). The embedded stack was up 8.6 s after its
    # start that day; scheduling and the sandbox beside it are a guess. The page has these sources.
    Engine("CPU-like", 16_500, 0.0034, 15),
    # BERT-base, 128 tokens, on an A100 as published; the rest is a guess: a node that is there, an
    # image that is not, plans to load.
    Engine("GPU-like", 1_075_000, 0.01, 240),
)
# 70 % is what `bench --for-scaling` prints, half a second its default.
BUSY, WITHIN_S = 0.7, 0.5
SCALERS = (
    Scaler("one pod"),
    Scaler("ten pods", least=10),
    Scaler("what waits", within_s=WITHIN_S),
    Scaler("what is answered", busy=BUSY),
    Scaler("both", within_s=WITHIN_S, busy=BUSY),
    Scaler("both, from two pods", within_s=WITHIN_S, busy=BUSY, least=2),
)


def courses() -> dict[tuple[str, str], Course]:
    """Of every engine under every autoscaler, by their titles."""
    return {
        (engine.title, scaler.title): simulate(engine, scaler, demand(engine))
        for engine in ENGINES
        for scaler in SCALERS
    }


def demand(engine: Engine) -> Callable[[int], float]:
    """Tokens a second: at night 13 % and at noon 65 % of what one Triton does, then the jump."""

    def at(second: int) -> float:
        daily = 0.39 - 0.26 * math.cos(2 * math.pi * second / DAY_S)
        jump = JUMP if JUMP_AT_S <= second < JUMP_AT_S + JUMP_LASTS_S else 1.0
        return engine.tokens_per_second * daily * jump

    return at


def simulate(
    engine: Engine, scaler: Scaler, load: Callable[[int], float], seconds: int = DAY_S
) -> Course:
    """From as many pods as the autoscaler keeps at least, all of which serve."""
    course = Course()
    pods = _Pods(engine.start_s, scaler.least)
    autoscaler = _Autoscaler(engine, scaler)
    served: deque[float] = deque(maxlen=RATE_S)
    waiting, scraped = 0.0, (0.0, 0.0)
    for second in range(seconds):
        waiting, done = _second(course, engine, load(second), pods.ready(second))
        served.append(done)
        if second % SCRAPE_S == 0:
            scraped = waiting, sum(served) / len(served)
        if second % SYNC_S == SYNC_S - 1:
            pods.become(autoscaler.wanted(second, pods.count, *scraped), second)
        course.replicas.append(pods.count)
    return course


def _second(course: Course, engine: Engine, arriving: float, ready: int) -> tuple[float, float]:
    """What waits or is computed at its end, as the workers' gauge has it, and what was answered."""
    capacity = engine.tokens_per_second * ready
    room = max(0.0, MAX_WAIT_S * capacity - course.left) + capacity
    taken = min(arriving, room)
    done = min(course.left + taken, capacity)
    course.left += taken - done
    course.asked += arriving
    course.answered += done
    course.refused += arriving - taken
    course.demand.append(arriving)
    course.refusals.append(arriving - taken)
    if not capacity:
        return course.left, 0.0
    takes = engine.call_s * _stretch(done / capacity)
    course.waits.append((course.left / capacity + takes, done))
    return course.left + done * takes, done


def _stretch(busy: float) -> float:
    """How much longer a call takes behind others: calls of one length that come at random."""
    full = min(busy, _FULL)
    return 1 + full / (2 * (1 - full))


class _Pods:
    """`count` is what the Deployment says; a pod serves `start_s` after it was asked for."""

    def __init__(self, start_s: int, count: int) -> None:
        self._start_s = start_s
        self._serve_from = [0] * count

    @property
    def count(self) -> int:
        return len(self._serve_from)

    def ready(self, second: int) -> int:
        return sum(since <= second for since in self._serve_from)

    def become(self, wanted: int, second: int) -> None:
        """The newest go first: Kubernetes takes those away that do not serve yet."""
        more = wanted - self.count
        self._serve_from += [second + self._start_s] * more
        del self._serve_from[wanted:]


class _Autoscaler:
    """The rules of autoscaling/v2 for averages over pods, as the chart configures them."""

    def __init__(self, engine: Engine, scaler: Scaler) -> None:
        self._engine, self._scaler = engine, scaler
        self._advised: deque[tuple[int, int]] = deque()
        self._ended: deque[tuple[int, int]] = deque()

    def wanted(self, second: int, count: int, waiting: float, rate: float) -> int:
        """How many there shall be, of figures as they were scraped."""
        advised = min(
            max(self._advice(count, waiting, rate), self._scaler.least), self._scaler.most
        )
        self._advised.append((second, advised))
        while self._advised[0][0] <= second - SCALE_DOWN_S:
            self._advised.popleft()
        if advised >= count:
            return min(advised, max(2 * count, count + UP_PODS))
        return self._fewer(second, count, max(each for _, each in self._advised))

    def _fewer(self, second: int, count: int, stable: int) -> int:
        """No less than was advised lately, and no more than a quarter gone in a minute."""
        while self._ended and self._ended[0][0] <= second - DOWN_EVERY_S:
            self._ended.popleft()
        before = count + sum(each for _, each in self._ended)
        # Cut off as Kubernetes does it: rounded up, three pods would stay three.
        allowed = int(before * (1 - DOWN_SHARE))
        fewer = min(count, max(stable, allowed))
        if fewer < count:
            self._ended.append((second, count - fewer))
        return fewer

    def _advice(self, count: int, waiting: float, rate: float) -> int:
        per_second = self._engine.tokens_per_second
        looked_at = (
            (waiting, self._scaler.within_s and self._scaler.within_s * per_second),
            (rate, self._scaler.busy and self._scaler.busy * per_second),
        )
        advice = [
            count if abs(value / (target * count) - 1) <= TOLERANCE else math.ceil(value / target)
            for value, target in looked_at
            if target
        ]
        return max(advice, default=count)
