"""A guarded rollout as it stands in ClearML: what is wanted, how far it is, what workers have seen.

The desk writes PLANS and the controller STATES, each a configuration item of the serving task; each
worker writes SEEN into its own task. Every item has one writer and is JSON, so none undoes another.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from transformer_serving.contract.known_fields import known_fields

# What a row that was edited by hand may raise.
_UNREADABLE = (AttributeError, KeyError, TypeError, ValueError)

PLANS, STATES, SEEN = "rollouts", "rollout_states", "rollout_seen"
# The statuses in which ClearML lets items of a task's configuration be edited. Who edits one in
# another, such as after 'Abort' in ClearML, starts it, as clearml-serving's own commands do.
EDITABLE = ("created", "in_progress")

ABORT, PROMOTE = "abort", "promote"
HOLDING, PROMOTING, LEAVING, RETURNING, OVER = (
    "holding", "promoting", "leaving", "returning", "over"
)  # fmt: skip
PROMOTED, WENT_BACK = "promoted", "went back"
# How a shadow ends, in which nothing is promoted.
PASSED, DID_NOT_PASS = "passed", "did not pass"
OLD, NEW = "old", "new"
# Of the requests, for either bundle while there is a route: no weight is ever 0.
LEAST_SHARE = 0.0001

# Eight bounds a doubling: two neighbours are 9 % apart.
_SHORTEST_S = 1e-4
_A_DOUBLING = 8


@dataclass(frozen=True)
class Allowed:
    """How far the candidate may be from the old bundle.

    `harm` is the share of all requests that a step may cost at most, in errors or in slow answers:
    those slower than `p99` times the old bundle's p99. Its median may be `p50` times the old one's.
    Of the requests that both were asked, the answers to a share of `differ` may differ, vectors by
    a cosine below `cosine`.
    """

    harm: float = 0.01
    p50: float = 1.25
    p99: float = 1.5
    confidence: float = 0.95
    differ: float = 0.05
    cosine: float = 0.99


def candidate_name(endpoint: str, bundle_version: int) -> str:
    """The endpoint that a candidate is: a version of the other, by the number of its bundle."""
    return f"{endpoint}/{bundle_version}"


@dataclass(frozen=True)
class Plan:
    """What the desk asks for; `steps` are percents, the last one 100, and `wish` may come later.

    `mirror` is the share of each worker's time that mirrored requests may take, 0 for none. In a
    `shadow` the candidate has those alone, and its one step is no share of the requests.
    """

    id: str
    endpoint: str
    bundle_version: int
    model_id: str
    old_model_id: str
    steps: tuple[float, ...]
    hold_s: float
    allowed: Allowed = field(default_factory=Allowed)
    wish: str = ""
    mirror: float = 0.0
    shadow: bool = False

    @property
    def candidate(self) -> str:
        """The endpoint that the new bundle has of its own, as clearml-serving names it."""
        return candidate_name(self.endpoint, self.bundle_version)

    def wishing(self, wish: str) -> Plan:
        return replace(self, wish=wish)


@dataclass(frozen=True)
class State:
    """How far a rollout is. Times are Unix seconds.

    `says` has a line for each figure that was judged last. `looks` counts the judgements of this
    step, the last of them at `looked_at` requests of the candidate, mirrored ones included. `by` is
    the controller that takes the steps, `beat` grows as long as it does, at `beat_at` last. From
    `since` to there are the seconds of the phase that count, whatever the clock has been set to.
    `served_after_s` of them were over when a promoted endpoint's own engine served first.
    `well` is whether the last look was content, `before` the endpoint as clearml-serving had it
    when the rollout began. At the steps that are over the old bundle answered `old_requests`, of
    which `old_errors` were errors.
    """

    id: str
    phase: str = HOLDING
    step: int = 0
    since: float = 0.0
    looks: int = 0
    looked_at: int = 0
    says: tuple[str, ...] = ()
    outcome: str = ""
    reason: str = ""
    by: str = ""
    beat: int = 0
    beat_at: float = 0.0
    served_after_s: float = 0.0
    well: bool = False
    old_requests: int = 0
    old_errors: int = 0
    before: Mapping[str, Any] = field(default_factory=dict)

    @property
    def mark(self) -> str:
        """What a worker says once it has taken over the routes of this phase, and where that leaves
        the candidate none, once what was drawn for it is answered, too.
        """
        return f"{self.id} {self.phase} {self.step}"

    @property
    def is_over(self) -> bool:
        return self.phase == OVER


@dataclass
class Arm:
    """The answers of one bundle: all of them, those that were errors, and how long the others took

    as `lengths`: by the tokens of the request rounded up to a power of two, a count by time bin.
    Of the old bundle's requests `compared` were asked of this one too, `differ` of them were
    answered otherwise; `left_out` were not asked.
    """

    requests: int = 0
    errors: int = 0
    lengths: dict[int, dict[int, int]] = field(default_factory=dict)
    compared: int = 0
    differ: int = 0
    left_out: int = 0

    @property
    def evidence(self) -> int:
        """How many answers there are to judge by."""
        return self.requests + self.compared

    def count(self, status: int, tokens: int, seconds: float) -> None:
        self.requests += 1
        if status >= 400:
            self.errors += 1
            return
        bins = self.lengths.setdefault(length_of(tokens), {})
        at = bin_of(seconds)
        bins[at] = bins.get(at, 0) + 1

    def add(self, other: Arm) -> None:
        self.requests += other.requests
        self.errors += other.errors
        self.compared += other.compared
        self.differ += other.differ
        self.left_out += other.left_out
        for length, bins in other.lengths.items():
            mine = self.lengths.setdefault(length, {})
            for at, number in bins.items():
                mine[at] = mine.get(at, 0) + number

    def times(self) -> dict[int, int]:
        """Those of all lengths together."""
        found: dict[int, int] = {}
        for bins in self.lengths.values():
            for at, number in bins.items():
                found[at] = found.get(at, 0) + number
        return found


# A rollout's id and one of its steps; of each the two arms.
Step = str
Arms = dict[str, Arm]


@dataclass
class Seen:
    """What one worker tells: the mark it is at, by endpoint, and what it counted at each step.

    It looks every `every_s` seconds; 0 where it does not say so.
    """

    beat: int = 0
    marks: dict[str, str] = field(default_factory=dict)
    steps: dict[Step, Arms] = field(default_factory=dict)
    every_s: float = 0.0


def step_of(rollout: str, step: int) -> Step:
    return f"{rollout} {step}"


def length_of(tokens: int) -> int:
    """The tokens rounded up to a power of two, whatever buckets the bundles have."""
    return 1 << max(0, tokens - 1).bit_length()


def bin_of(seconds: float) -> int:
    return max(0, math.ceil(_A_DOUBLING * math.log2(max(seconds, _SHORTEST_S) / _SHORTEST_S)))


def bound_of(at: int) -> float:
    """The longest time of a bin, in seconds."""
    return float(_SHORTEST_S * 2 ** (at / _A_DOUBLING))


def plans_text(plans: Iterable[Plan]) -> str:
    return json.dumps({plan.endpoint: asdict(plan) for plan in plans}, sort_keys=True)


def read_plans(text: str | None) -> dict[str, Plan]:
    """By endpoint, those that can be read. Raises ValueError where the item is no JSON object."""
    found = {}
    for endpoint, row in _object(text).items():
        with suppress(*_UNREADABLE):
            made = Plan(**known_fields(Plan, row))
            allowed = Allowed(**known_fields(Allowed, row["allowed"]))
            steps = tuple(float(step) for step in made.steps)
            found[endpoint] = replace(made, steps=steps, allowed=allowed)
    return found


def states_text(states: Mapping[str, State]) -> str:
    return json.dumps({name: asdict(state) for name, state in states.items()}, sort_keys=True)


def read_states(text: str | None) -> dict[str, State]:
    """By endpoint, those that can be read. Raises ValueError where the item is no JSON object."""
    found = {}
    for endpoint, row in _object(text).items():
        with suppress(*_UNREADABLE):
            made = State(**known_fields(State, row))
            found[endpoint] = replace(made, says=tuple(made.says))
    return found


def seen_text(seen: Seen) -> str:
    return json.dumps(asdict(seen))


def read_seen(text: str | None) -> Seen:
    """Raises ValueError for what is none."""
    row = _object(text)
    try:
        steps = {
            step: {name: _arm(arm) for name, arm in arms.items()}
            for step, arms in row.get("steps", {}).items()
        }
        marks = dict(row.get("marks", {}))
        return Seen(int(row.get("beat", 0)), marks, steps, float(row.get("every_s", 0.0)))
    except _UNREADABLE:
        raise ValueError("what a worker tells of a rollout cannot be read") from None


def _arm(row: Mapping[str, Any]) -> Arm:
    lengths = {
        int(length): {int(at): number for at, number in bins.items()}
        for length, bins in row["lengths"].items()
    }
    return Arm(**{**known_fields(Arm, row), "lengths": lengths})


def _object(text: str | None) -> dict[str, Any]:
    found = json.loads(text) if text else {}
    if not isinstance(found, dict):
        raise ValueError("a rollout's item is no JSON object")
    return found
