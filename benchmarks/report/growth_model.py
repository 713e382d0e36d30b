"""What a request costs by clients, endpoints, workers and Tritons: a model, and its fit.

A worker puts texts that wait for one endpoint together into one call. Each part of a request's
processor time is therefore taken as a fixed part, a share of its call's, and what each further
worker on the same cores adds: fixed + call / texts + beside * (workers - 1). How many texts a call
has follows from `crowd`, the requests under way for each endpoint of each worker:
texts = 1 + joining * (crowd - 1), at least one and at most what a call may hold. Where workers are
not full, fewer join, and each request costs `paced` times as much: they wake up to cold caches.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from benchmarks.report.growth_points import SERVING, Place, Point

# The grid on which `joining` is looked for: it is a share of those who wait.
_JOINING = np.geomspace(0.005, 1.0, 300)


@dataclass(frozen=True)
class Cost:
    """Microseconds of processor: `fixed` of each request, `call` of each call to Triton, `beside`
    of each request for every worker beyond the first on the same machine."""

    fixed: float
    call: float
    beside: float = 0.0


@dataclass(frozen=True)
class Model:
    """The costs by part; the others as the module says, those of open loops by themselves."""

    joining: float
    most_texts: int
    costs: Mapping[str, Cost]
    paced_joining: float = 0.0
    paced: float = 1.0

    def texts(self, crowd: float, *, is_paced: bool = False) -> float:
        """Texts a call."""
        joining = self.paced_joining if is_paced else self.joining
        return _texts(crowd, joining, self.most_texts)

    def us(self, part: str, crowd: float, workers: int = 1, *, is_paced: bool = False) -> float:
        """Microseconds of processor a request."""
        cost = self.costs[part]
        call = cost.call / self.texts(crowd, is_paced=is_paced)
        return (self.paced if is_paced else 1.0) * (cost.fixed + call + cost.beside * (workers - 1))

    def us_at(self, point: Point, parts: Sequence[str] = SERVING) -> float:
        """What it says of the parts together where a point was measured."""
        place, at = point.place, crowd_of(point)
        return sum(self.us(part, at, place.workers, is_paced=bool(place.busy)) for part in parts)


def crowd(place: Place, in_flight: float) -> float:
    """Requests under way for each endpoint of each worker."""
    return in_flight / (place.endpoints * place.workers)


def crowd_of(point: Point) -> float:
    return crowd(point.place, point.in_flight)


def _texts(crowds: float, joining: float, most: int) -> float:
    return min(max(1.0 + joining * (crowds - 1.0), 1.0), most)


def fitted(points: Sequence[Point], paced: Sequence[Point], most_texts: int) -> Model:
    """By least squares of relative errors: `joining` by the texts a call, then each part's cost.

    `paced` are the open loops, which say nothing of the costs but their own factor. Raises
    ValueError where there are fewer than four of the others.
    """
    if len(points) < 4:
        raise ValueError(f"a model needs four points, there are {len(points)}")
    joining = _joining(points, most_texts)
    calls = [1.0 / _texts(crowd_of(point), joining, most_texts) for point in points]
    others = [point.place.workers - 1.0 for point in points]
    costs = {part: _cost(calls, others, [point.us([part]) for point in points]) for part in SERVING}
    model = Model(joining, most_texts, costs)
    if not paced:
        return replace(model, paced_joining=joining)
    model = replace(model, paced_joining=_joining(paced, most_texts))
    times = [point.us(SERVING) / model.us_at(point) for point in paced]
    return replace(model, paced=median(times))


def _joining(points: Sequence[Point], most_texts: int) -> float:
    crowds = [crowd_of(point) for point in points]
    seen = [math.log(point.figure("texts_a_call").median) for point in points]
    return min(
        (float(one) for one in _JOINING),
        key=lambda one: sum(
            (math.log(_texts(at, one, most_texts)) - wanted) ** 2
            for at, wanted in zip(crowds, seen, strict=True)
        ),
    )


def _cost(calls: Sequence[float], others: Sequence[float], us: Sequence[float]) -> Cost:
    """`us` against calls a request and other workers, each error as a share of its own `us`."""
    measured = np.asarray(us)
    columns = np.column_stack([np.ones(len(us)), calls, others]) / measured[:, None]
    (fixed, call, beside), *_ = np.linalg.lstsq(columns, np.ones(len(us)), rcond=None)
    return Cost(float(fixed), float(call), float(beside))


def errors(model: Model, points: Sequence[Point], parts: Sequence[str] = SERVING) -> list[float]:
    """By how much the model is beside what was measured, as a share of that; 0.1: a tenth above."""
    return [model.us_at(point, parts) / point.us(parts) - 1.0 for point in points]


def size(found: Sequence[float]) -> tuple[float, float]:
    """The median and the largest of errors, without their sign."""
    sizes = [abs(error) for error in found]
    return median(sizes), max(sizes)
