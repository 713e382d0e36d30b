"""What is to be done next for each model: a pure function of what is wanted, known and loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from transformer_serving.engine.controller.records import REMOVAL, Failures, Kind, ModelRecord


@dataclass(frozen=True)
class Prepare:
    """Fetch, check and load what the endpoint asks for; the last good version serves on."""


@dataclass(frozen=True)
class Reload:
    """Load the last good state again: Triton lost it, or it is not proven on this machine."""


@dataclass(frozen=True)
class Withdraw:
    """Unload what the trusted keys do not cover; it comes back when it was fetched and checked."""


@dataclass(frozen=True)
class Retire:
    """Drop the versions whose grace is over."""


@dataclass(frozen=True)
class Remove:
    """Unload the model and delete its files: its endpoint is gone."""


Action = Prepare | Reload | Withdraw | Retire | Remove


@dataclass(frozen=True)
class Situation:
    """One look at the world. `wanted` maps models to fingerprints, None while the control plane
    was never reached; `loaded` maps models to ready versions, None while Triton is away. `unproven`
    are models whose version in service must first be proven on this machine, or checked by the
    files that lie here, `untrusted` those of which it is to be fetched and checked before it is
    loaded again, `leftover` those that are to go though no record knows them, `unknown` those of
    whose version in service a worker may not have heard yet."""

    wanted: Mapping[str, str] | None
    records: Mapping[str, ModelRecord]
    failures: Failures
    loaded: Mapping[str, frozenset[int]] | None
    now: float
    unproven: frozenset[str] = frozenset()
    leftover: frozenset[str] = frozenset()
    untrusted: frozenset[str] = frozenset()
    unknown: frozenset[str] = frozenset()


def plan(situation: Situation) -> dict[str, Action]:
    """At most one action for a model; nothing at all while Triton is away."""
    if situation.loaded is None:
        return {}
    models = set(situation.records) | set(situation.wanted or {}) | situation.leftover
    actions = {model: _action(model, situation) for model in sorted(models)}
    return {model: action for model, action in actions.items() if action is not None}


def _action(model: str, situation: Situation) -> Action | None:
    record = situation.records.get(model)
    wanted = None if situation.wanted is None else situation.wanted.get(model)
    gone = situation.wanted is not None and wanted is None
    if gone or model in situation.leftover:
        return Remove() if _free(model, REMOVAL, situation) else None
    if record is None:
        return Prepare() if wanted is not None and _free(model, wanted, situation) else None
    loaded = (situation.loaded or {}).get(model, frozenset())
    if model in situation.untrusted:
        if loaded:
            return Withdraw() if _free(model, record.fingerprint, situation) else None
        return Prepare() if wanted is not None and _free(model, wanted, situation) else None
    lost = not record.numbers <= loaded
    if (lost or model in situation.unproven) and _free(model, record.fingerprint, situation):
        # Its files may be the reason that it could not be loaded last time: fetch them again.
        broken = files_may_be_why(model, record.fingerprint, situation.failures)
        return Prepare() if broken and wanted == record.fingerprint else Reload()
    if wanted is not None and wanted != record.fingerprint and _free(model, wanted, situation):
        return Prepare()
    # A worker that does not know of the newest yet asks for the one before.
    is_known = model not in situation.unknown
    over = is_known and len(record.kept(situation.now)) < len(record.versions)
    if not lost and over and _free(model, record.retirement, situation):
        return Retire()
    return None


def files_may_be_why(model: str, fingerprint: str, failures: Failures) -> bool:
    """Whether what failed is to be fetched anew: each second time where its files were refused, and
    each third also where its process died or they could not be read, for what lies here may be
    damaged. Not each time, for the store may be away, or hold others by now than those that are
    good here.
    """
    failure = failures.get((model, fingerprint))
    if failure is None:
        return False
    if failure.kind is Kind.REFUSED:
        return failure.tries % 2 == 1
    return failure.kind in (Kind.DIED, Kind.UNREACHED) and failure.tries % 3 == 0


def _free(model: str, fingerprint: str, situation: Situation) -> bool:
    """May this be tried now? A failure holds back only the very thing that failed."""
    failure = situation.failures.get((model, fingerprint))
    return failure is None or failure.pause_over(situation.now)
