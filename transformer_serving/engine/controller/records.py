"""What the controller knows of each model, and how it is kept in the state file.

Tested by tests/engine/test_repository.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from transformer_serving.contract.known_fields import known_fields


@dataclass(frozen=True)
class Version:
    """One loaded version. `token` names its files; `config` is its own configuration as text.

    `content` identifies the bytes it came from, `drop_at` is set once a newer version serves.
    `subject` names what a proof of it is a proof of, '' where nothing says what it should answer.
    `rules` are those of the gate that it passed, 0 of a kit that did not say; `signed_by` the
    entries of the trusted keys that signed it, '' where none were named.
    """

    number: int
    token: str
    config: str
    backend: str
    bundle_version: int | None
    verified: bool
    model_id: str
    content: str
    since: float
    drop_at: float | None = None
    subject: str = ""
    rules: int = 0
    signed_by: str = ""


@dataclass(frozen=True)
class ModelRecord:
    """The last good state of a model: the version that serves first, then those in grace.

    `served_config` is the config.pbtxt that Triton accepted for all of them together.
    """

    model: str
    endpoint: str
    fingerprint: str
    versions: tuple[Version, ...]
    served_config: str

    @property
    def current(self) -> Version:
        return self.versions[0]

    def kept(self, now: float) -> tuple[Version, ...]:
        """The versions whose grace is not over; all of it is when the clock was set back."""
        set_back = now < self.current.since - CLOCK_TOLERANCE_S
        return tuple(
            v for v in self.versions if v.drop_at is None or (v.drop_at > now and not set_back)
        )

    @property
    def retirement(self) -> str:
        """The fingerprint of what drops those whose grace is over. Where that fails, as on a full
        disk, what serves can be loaded again all the same: the one must not hold back the other.
        """
        return f"{self.fingerprint} retirement"

    @property
    def numbers(self) -> frozenset[int]:
        return frozenset(version.number for version in self.versions)


class Kind(str, Enum):
    """What a failure says of the model, and so what helps."""

    # Its files, its configuration or its answers: another copy may be better.
    REFUSED = "refused"
    # Its store says that it has no such file.
    MISSING = "missing"
    # Its store, or the disk here, did not do its part.
    UNREACHED = "unreached"
    # Triton went away.
    AWAY = "away"
    # The process that loaded it died.
    DIED = "died"


# These pass by themselves, and say nothing of whether the model can be loaded.
PASSING = frozenset({Kind.UNREACHED, Kind.AWAY})


@dataclass(frozen=True)
class FailedChange:
    """Why a change did not happen, and when it is tried again if nothing changes.

    `unproven_bundle` is the version of a bundle whose proof failed, None for any other failure.
    """

    fingerprint: str
    reason: str
    at: float
    tries: int
    retry_at: float
    unproven_bundle: int | None = None
    kind: Kind = Kind.REFUSED

    def pause_over(self, now: float) -> bool:
        return now >= self.retry_at or now < self.at - CLOCK_TOLERANCE_S


# By model and fingerprint: the version in service may fail beside the one that is wanted.
Failures = Mapping[tuple[str, str], FailedChange]
# The fingerprint of a model that is to be removed.
REMOVAL = ""

# A clock that was set back by less is waited for, in grace and pauses.
CLOCK_TOLERANCE_S = 60.0


@dataclass(frozen=True)
class Pauses:
    """Seconds before the first retry, its growth from one to the next, and the longest."""

    first_s: float
    growth: float
    last_s: float


FAILED = Pauses(10.0, 2, 300.0)
# Triton is restarted by its supervisor; a model that killed it still gets growing pauses.
AWAY = Pauses(2.0, 2, 300.0)
# Each try may cost every endpoint a restart of Triton: a model too large for the memory has few.
DIED = Pauses(2.0, 8, 3600.0)
# An engine that is wrong on this machine is so the next time, and each try costs a load; what is
# too large and says no size costs a fetch of all that there is room for.
DIFFERS = Pauses(60.0, 4, 3600.0)


def failed_again(
    before: FailedChange | None,
    fingerprint: str,
    reason: str,
    now: float,
    pauses: Pauses = FAILED,
    kind: Kind = Kind.REFUSED,
) -> FailedChange:
    """The failure to keep; its pause grows while the same thing fails.

    What passes by itself says nothing of a proof that failed before.
    """
    if before is not None and before.fingerprint != fingerprint:
        before = None
    tries = 1 if before is None else before.tries + 1
    pause = min(pauses.last_s, pauses.first_s * pauses.growth ** min(tries - 1, 10))
    unproven = before.unproven_bundle if before is not None and kind in PASSING else None
    return FailedChange(fingerprint, reason, now, tries, now + pause, unproven, kind)


def record_to_json(record: ModelRecord) -> dict[str, Any]:
    return asdict(record)


def record_from_json(values: Mapping[str, Any]) -> ModelRecord:
    rows = values["versions"]
    versions = tuple(Version(**known_fields(Version, version)) for version in rows)
    if not versions:
        raise ValueError("a record has no version")
    return ModelRecord(**{**known_fields(ModelRecord, values), "versions": versions})


def failures_to_json(failures: Failures) -> list[dict[str, Any]]:
    return [{"model": model, **asdict(failure)} for (model, _), failure in failures.items()]


def failures_from_json(rows: Any) -> dict[tuple[str, str], FailedChange]:
    """What cannot be read is tried without a pause, as what never failed."""
    found = {}
    try:
        for row in rows or ():
            values = known_fields(FailedChange, row)
            times = {name: float(row[name]) for name in ("at", "retry_at")}
            kind, tries = Kind(row["kind"]), int(row["tries"])
            failure = FailedChange(**{**values, **times, "tries": tries, "kind": kind})
            found[row["model"], failure.fingerprint] = failure
    except (AttributeError, KeyError, TypeError, ValueError):
        return {}
    return found
