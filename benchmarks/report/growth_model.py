"""What a request costs by clients, endpoints, workers and Tritons: a model, and its fit.

A worker puts texts that wait for one endpoint together into one call. Each part of a request's
processor time is therefore taken as a fixed part and a share of its call's: fixed + call / texts.
How many texts a call has follows from `crowd`, the requests under way for each endpoint of each
worker and Triton, since every Triton lets an endpoint of a worker have two calls at a time:
texts = 1 + joining * (crowd - 1), at least one and at most what a call may hold.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from benchmarks.report.growth_points import SERVING, Place, Point

# The grid on which `joining` is looked for: it is a share of those who wait.
_JOINING = np.geomspace(0.01, 1.0, 600)


@dataclass(frozen=True)
class Cost:
    """Microseconds of processor: `fixed` of each request, `call` of each call to Triton."""

    fixed: float
    call: float


@dataclass(frozen=True)
class Model:
    """The costs by part; `joining` and `most_texts` as the module says."""

    joining: float
    most_texts: int
    costs: Mapping[str, Cost]

    def texts(self, crowd: float) -> float:
        """Texts a call."""
        return float(_texts(crowd, self.joining, self.most_texts))

    def us(self, part: str, crowd: float) -> float:
        """Microseconds of processor a request."""
        cost = self.costs[part]
        return cost.fixed + cost.call / self.texts(crowd)

    def serving_us(self, crowd: float) -> float:
        return sum(self.us(part, crowd) for part in SERVING)


def crowd(place: Place, in_flight: float) -> float:
    """Requests under way for each endpoint of each worker and Triton."""
    return in_flight / (place.endpoints * place.workers * place.tritons)


def crowd_of(point: Point) -> float:
    return crowd(point.place, point.in_flight)


def _texts(crowds: float, joining: float, most: int) -> float:
    return min(max(1.0 + joining * (crowds - 1.0), 1.0), most)


def fitted(points: Sequence[Point], most_texts: int) -> Model:
    """By least squares of relative errors: `joining` by the texts a call, then each part's cost.

    Raises ValueError where there are fewer than three points.
    """
    if len(points) < 3:
        raise ValueError(f"a model needs three points, there are {len(points)}")
    crowds = [crowd_of(point) for point in points]
    seen = [math.log(point.figure("texts_a_call").median) for point in points]
    joining = min(
        (float(one) for one in _JOINING),
        key=lambda one: sum(
            (math.log(_texts(at, one, most_texts)) - wanted) ** 2
            for at, wanted in zip(crowds, seen, strict=True)
        ),
    )
    calls = [1.0 / _texts(at, joining, most_texts) for at in crowds]
    costs = {part: _cost(calls, [point.us([part]) for point in points]) for part in SERVING}
    return Model(joining, most_texts, costs)


def _cost(calls: Sequence[float], us: Sequence[float]) -> Cost:
    """`us` against `calls` a request, each error as a share of its own `us`."""
    measured = np.asarray(us)
    columns = np.column_stack([np.ones(len(calls)), np.asarray(calls)]) / measured[:, None]
    (fixed, call), *_ = np.linalg.lstsq(columns, np.ones(len(calls)), rcond=None)
    return Cost(float(fixed), float(call))


def errors(model: Model, points: Sequence[Point], parts: Sequence[str] = SERVING) -> list[float]:
    """By how much the model is beside what was measured, as a share of that; 0.1: a tenth above."""
    return [
        sum(model.us(part, crowd_of(point)) for part in parts) / point.us(parts) - 1.0
        for point in points
    ]


def size(found: Sequence[float]) -> tuple[float, float]:
    """The median and the largest of errors, without their sign."""
    sizes = [abs(error) for error in found]
    return median(sizes), max(sizes)
