"""Where the study of growth measures: the table of places, and what was stored of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from transformer_serving.desk.bench.bounds import Spread, spread

# The parts of a request's processor time, as they are stored and named: microseconds a request.
PARTS = {
    "worker": "gateway",
    "triton": "Triton",
    "engine": "the engine's process",
    "load": "load generator",
}
# What an operator pays for.
SERVING = ("worker", "triton", "engine")
# As a reader has them where a field's name is not that.
NAMES = {"tritons": "Tritons"}
MANY = 50
CLIENTS = 128


@dataclass(frozen=True)
class Place:
    """So many clients ask so many endpoints, one text a request, through so many gateway workers.

    `served` is how many endpoints the workers have, asked or not. `busy`: an open loop at that
    share of what the clients' closed loop got answered; 0 for that closed loop itself.
    """

    clients: int = CLIENTS
    endpoints: int = 1
    workers: int = 1
    tritons: int = 1
    served: int = 1
    busy: float = 0.0

    @property
    def gateway(self) -> tuple[int, int, int]:
        """What tells one gateway from another: its workers, endpoints and Tritons."""
        return self.workers, self.served, self.tritons


# One quantity grows in each of the first four, from which the model is made. It is held against the
# next, where several are changed together; the last are where the workers are not full.
SERIES: Mapping[str, Sequence[Place]] = {
    "clients": tuple(Place(clients=n) for n in (8, 16, 32, 64, CLIENTS, 256, 512)),
    "endpoints": tuple(Place(endpoints=n, served=MANY) for n in (1, 2, 5, 10, 20, MANY)),
    "workers": tuple(Place(workers=n) for n in (1, 2, 4, 8)),
    "tritons": tuple(Place(tritons=n) for n in (1, 2, 4)),
    "together": (
        Place(clients=512, workers=8),
        Place(clients=512, endpoints=MANY, served=MANY),
        Place(clients=512, endpoints=10, workers=4, served=MANY),
        Place(clients=32, endpoints=10, workers=4, served=MANY),
        Place(clients=32, tritons=4),
    ),
    "paced": (Place(busy=0.65), Place(workers=4, busy=0.65), Place(tritons=4, busy=0.65)),
}
FITTED = ("clients", "endpoints", "workers", "tritons")
PACED, CHECKED = ("paced",), ("together",)
# Each once: some stand in several series.
PLACES = tuple(dict.fromkeys(place for row in SERIES.values() for place in row))


@dataclass(frozen=True)
class Point:
    """A place with what each round found there; `figure` names are those of a stored round."""

    place: Place
    rounds: Sequence[Mapping[str, float]]

    def figure(self, name: str) -> Spread:
        """Raises KeyError for a name that is not stored."""
        return spread([row[name] for row in self.rounds])

    def us(self, parts: Sequence[str]) -> float:
        """Microseconds of processor a request in these parts: the median of the rounds' sums."""
        return spread([sum(row[f"{part}_us"] for part in parts) for row in self.rounds]).median

    @property
    def in_flight(self) -> float:
        """Requests under way at a time: the clients of a closed loop; in an open one by Little's
        law, answers a second times the seconds of each."""
        if not self.place.busy:
            return float(self.place.clients)
        return spread([row["per_s"] * row["mean_ms"] / 1e3 for row in self.rounds]).median


def stored(place: Place, rounds: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """A point as JSON."""
    figures = [{name: round(value, 3) for name, value in row.items()} for row in rounds]
    return {**asdict(place), "rounds": figures}


def read(rows: Sequence[Mapping[str, Any]]) -> dict[Place, Point]:
    """The points of a stored run by their places; those without a round are left out."""
    points = {}
    for row in rows:
        place = Place(**{name: value for name, value in row.items() if name != "rounds"})
        if row["rounds"]:
            points[place] = Point(place, row["rounds"])
    return points


def of_series(points: Mapping[Place, Point], names: Sequence[str]) -> list[Point]:
    """The points of these series, each once, in the table's order."""
    places = dict.fromkeys(place for name in names for place in SERIES[name])
    return [points[place] for place in places if place in points]
