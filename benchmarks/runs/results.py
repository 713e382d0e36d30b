"""The stored result of a run: plain JSON, and the reader that tables and plots are made from."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.runs import stamp
from benchmarks.runs.loads import LEAST_TURNS, LOADS, Load
from benchmarks.runs.rounds import Outcome
from benchmarks.runs.runners import Measurement, Plan
from benchmarks.servers.models import ENGINE_TITLES, Models
from benchmarks.servers.peers import ENGINE_NAMES, NONE, NULL, Peer
from transformer_serving.contract.replacement import replace_file
from transformer_serving.desk.bench import bounds
from transformer_serving.desk.bench.bounds import Spread
from transformer_serving.desk.bench.figures import percentile

RESULTS = Path(__file__).parent.parent / "results"
SCHEMA = 1
# A measurement in which a larger share of the requests failed says nothing of what an answer takes:
# the tools' times are of refusals too, which come at once, and so is processor time a request.
MOST_FAILED = 0.01
# Of the mixed load, single latencies by class: a round is stored without them.
_SINGLE = ("idle_ms", "loaded_ms")
_TIMES = ("mean", "p50", "p90", "p99", *_SINGLE)
# Characters of JSON that stand on one line.
_ROW = 400


@dataclass(frozen=True)
class Row:
    """A peer as the tables name it; `computes` says that a real engine is behind it."""

    name: str
    title: str
    engine: str
    kind: str
    computes: bool


class Results:
    """A stored run. Figures of a pair that was not measured are None or absent, never zero.

    `values` are as stored; times of measurements with more than MOST_FAILED are not read.
    """

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values
        self.rows = {row["name"]: Row(**row) for row in values["peers"]}
        self._figures: dict[tuple[str, str], list[Measurement | None]] = {
            (row["peer"], row["load"]): [times_of_answers(found) for found in row["rounds"]]
            for row in values["figures"]
        }

    @staticmethod
    def read(path: Path) -> Results:
        return Results(json.loads(path.read_text("utf-8")))

    def write(self, path: Path) -> None:
        write_json(path, self.values)

    @property
    def loads(self) -> dict[str, str]:
        """Titles of the loads by name."""
        return dict(self.values["loads"])

    @property
    def failed(self) -> dict[str, str]:
        return dict(self.values["failed"])

    def measured(self, load: str, *, computes: bool | None = None) -> list[Row]:
        """The peers with at least one round under a load, in the table's order.

        `computes` keeps those with a real engine, or those without.
        """
        return [
            row
            for name, row in self.rows.items()
            if self.spread(name, load) is not None and computes in (None, row.computes)
        ]

    def series(self, peer: str, load: str, figure: str = "texts") -> list[float | None]:
        """One figure a round."""
        rounds = self._figures.get((peer, load), [])
        return [None if found is None else found.get(figure) for found in rounds]

    def failed_share(self, peer: str, load: str) -> float:
        """Of the requests of all rounds; of rounds that did not store how many there were, none."""
        rounds = [found for found in self._figures.get((peer, load), []) if found]
        requests = sum(found.get("requests", 0) for found in rounds)
        return sum(found["failed"] for found in rounds) / requests if requests else 0.0

    def short(self, peer: str, load: str) -> bool:
        """Whether a round took less than half of the plan's seconds, or had fewer than LEAST_TURNS
        requests of each client: what it found is of the burst at its begin."""
        clients = LOADS[load].clients if load in LOADS else 0
        rounds = [found for found in self._figures.get((peer, load), []) if found]
        return any(
            found["requests"] < LEAST_TURNS * clients
            or found["requests"] < found.get("rate", 0.0) * self.values["plan"]["seconds"] / 2
            for found in rounds
            if "requests" in found
        )

    def spread(self, peer: str, load: str, figure: str = "texts") -> Spread | None:
        values = [value for value in self.series(peer, load, figure) if value is not None]
        return bounds.spread(values) if values else None

    def ratio(self, over: str, under: str, load: str, under_load: str = "") -> Spread | None:
        """How many times `over` does what `under` does, by rounds."""
        first, second = self.series(over, load), self.series(under, under_load or load)
        if len(first) != len(second):
            return None
        found = bounds.ratios(first, second)
        return bounds.spread(found) if found else None

    def extra_ms(self, peer: str, base: str, load: str) -> Spread | None:
        """Milliseconds at the median that a peer takes beyond another."""
        pairs = zip(self.series(peer, load, "p50"), self.series(base, load, "p50"), strict=False)
        found = [mine - theirs for mine, theirs in pairs if mine is not None and theirs is not None]
        return bounds.spread(found) if found else None

    def classes(self, peer: str) -> dict[str, dict[str, Any]]:
        """Of the mixed load, by class, those with a ratio.

        Answers, percentiles idle and loaded in ms over all rounds, and `times`: of each round, how
        many times its idle 99th percentile is the loaded one.
        """
        found: dict[str, dict[str, Any]] = self.values["classes"].get(peer, {})
        return {label: row for label, row in found.items() if row["times"]}

    def stages(self, peer: str, load: str) -> dict[str, float]:
        """Median over the rounds of the mean milliseconds in each stage."""
        rounds = [found["stages_ms"] for found in self._figures.get((peer, load), [])
                  if found and found.get("stages_ms")]  # fmt: skip
        names = dict.fromkeys(name for found in rounds for name in found)
        return {
            name: bounds.spread([found[name] for found in rounds if name in found]).median
            for name in names
        }

    def renewed(self, other: Results, parts: Iterable[str]) -> Results:
        """This run with some of its parts from a later one, which are dated by themselves."""
        values = {**self.values, "failed": dict(self.values["failed"])}
        dates = dict(values.get("renewed", {}))
        for name in parts:
            values["failed"].pop(name, None)
            if name in other.failed:
                values["failed"][name] = other.failed[name]
                continue
            values[name] = other.values[name]
            dates[name] = {key: other.values[key] for key in ("date", "commit")}
        return Results({**values, "renewed": dates})

    def memory(self, server: str) -> float | None:
        """MiB resident of all processes of a server."""
        found: float | None = self.values["memory_mib"].get(server)
        return found

    def provenance(self) -> str:
        """One sentence: machine, versions, date, commit, rounds."""
        plan = self.values["plan"]
        rounds = f"medians of {plan['rounds']} rounds of {plan['seconds']:g} s"
        return f"{self.surroundings()}; {rounds}."

    def surroundings(self) -> str:
        """Machine, versions, date and commit, to be gone on with."""
        return stamp.surroundings(self.values)

    def processor(self) -> str:
        return stamp.processor(self.values["machine"])


def write_json(path: Path, values: object) -> None:
    """Atomically: a reader finds the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, json_text(values) + "\n")


def json_text(values: object, indent: str = "") -> str:
    """JSON with a figure's row on one line: a run is read and compared by rows."""
    text = json.dumps(values)
    if len(text) <= _ROW or not isinstance(values, dict | list):
        return text
    inner = indent + " "
    if isinstance(values, dict):
        items = [f"{json.dumps(key)}: {json_text(one, inner)}" for key, one in values.items()]
        return "{\n" + ",\n".join(inner + item for item in items) + f"\n{indent}}}"
    return "[\n" + ",\n".join(inner + json_text(one, inner) for one in values) + f"\n{indent}]"


def make(
    kind: str, outcome: Outcome, *, peers: Sequence[Peer], loads: Iterable[Load], plan: Plan,
    models: Models, memory: Mapping[str, float], triton: str, around: Mapping[str, Any],
) -> Results:  # fmt: skip
    """The run as it is stored. `around` is machine.provenance() as it was before the run."""
    return Results(
        {
            "schema": SCHEMA,
            "kind": kind,
            **around,
            "triton": triton,
            "plan": asdict(plan),
            "loads": {load.name: load.title for load in loads},
            "peers": [asdict(_row(peer, models)) for peer in peers],
            "figures": [
                {"peer": peer, "load": load, "rounds": [_short(found) for found in rounds]}
                for (peer, load), rounds in outcome.figures.items()
            ],
            "classes": {
                peer: classes
                for (peer, load), rounds in outcome.figures.items()
                if (classes := _classes([times_of_answers(found) for found in rounds]))
            },
            "memory_mib": dict(memory),
            "failed": dict(outcome.failed),
        }
    )


def engine_title(peer: Peer, models: Models) -> str:
    if peer.engine in ENGINE_TITLES:
        return models.title(peer.engine)
    return ENGINE_NAMES[peer.engine]


def _row(peer: Peer, models: Models) -> Row:
    computes = peer.engine not in (NULL, NONE)
    return Row(peer.name, peer.title, engine_title(peer, models), peer.kind, computes)


def times_of_answers(found: Measurement | None) -> Measurement | None:
    """A round without its times where they are of refusals as well."""
    if found is None or found.get("failed", 0) <= MOST_FAILED * found.get("requests", 0):
        return found
    return {
        name: value
        for name, value in found.items()
        if name not in _TIMES and not name.endswith("_us")
    }


def _short(found: Measurement | None) -> Measurement | None:
    """A round without its single latencies."""
    if found is None:
        return None
    kept = {name: value for name, value in found.items() if name not in _SINGLE}
    return {
        name: round(value, 4) if isinstance(value, float) else value for name, value in kept.items()
    }


def _classes(rounds: Sequence[Measurement | None]) -> dict[str, dict[str, Any]]:
    idle, loaded = _pooled(rounds, "idle_ms"), _pooled(rounds, "loaded_ms")
    return {
        label: {
            "answers": len(loaded[label]),
            "idle_p99": percentile(sorted(idle[label]), 99.0),
            "loaded_p99": percentile(sorted(loaded[label]), 99.0),
            "idle_p50": percentile(sorted(idle[label]), 50.0),
            "loaded_p50": percentile(sorted(loaded[label]), 50.0),
            "times": _times(rounds, label),
        }
        for label in loaded
        if label in idle
    }


def _times(rounds: Sequence[Measurement | None], label: str) -> list[float]:
    """How many times its idle 99th percentile a class's is under load, in each round."""
    found = []
    for figures in rounds:
        idle, loaded = (
            sorted((figures or {}).get(kind, {}).get(label, ()))
            for kind in ("idle_ms", "loaded_ms")
        )
        if idle and loaded:
            found.append(round(percentile(loaded, 99.0) / percentile(idle, 99.0), 3))
    return found


def _pooled(rounds: Sequence[Measurement | None], name: str) -> dict[str, list[float]]:
    pooled: dict[str, list[float]] = {}
    for found in rounds:
        for label, times in (found or {}).get(name, {}).items():
            pooled.setdefault(label, []).extend(times)
    return dict(sorted(pooled.items(), key=lambda pair: int(pair[0].split()[1])))
