"""What people see of the controller: one row an endpoint, and what changed since last time.

Tested by tests/engine/test_controller_parts.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from transformer_serving.contract.error_line import printable
from transformer_serving.engine.controller.control_plane.served import Problem, Served
from transformer_serving.engine.controller.first_loads import (
    IN_PROOF,
    LOADING,
    TRITON_AWAY,
    UNTRUSTED,
)
from transformer_serving.engine.controller.proving.proofs import Passed
from transformer_serving.engine.controller.records import (
    FailedChange,
    Failures,
    Kind,
    ModelRecord,
    Version,
)

PROVEN, UNPROVEN, PROVING, FAILED = PROOF_STATES = ("proven", "unproven", "proving", "failed")


# Before a reason that is none of the version in service.
BEFORE_IT = "what was served before it cannot be changed"


@dataclass(frozen=True)
class Proving:
    """What is known of proofs: the models whose proof runs now, and a version's proof, if any."""

    now: Collection[str]
    passed: Callable[[Version], Passed | None]


@dataclass(frozen=True)
class EndpointStatus:
    """One endpoint. `reason` says why it is not ready or not up to date; times are Unix seconds.

    `proof` is one of PROOF_STATES, of the bundle `proof_of`: the one in service, unless another's
    proof failed; None where none is in service, nor is one proven now or failed. The figures below
    it are those of a passed proof. `failure` is the kind of what `reason` says, where that is a
    failed load, and `tries` how often it failed. A row `beside` tells of an endpoint that has
    another row.
    """

    endpoint: str
    model: str
    bundle_version: int | None
    verified: bool
    backend: str | None
    ready: bool
    reason: str | None
    reason_since: float | None
    versions_loaded: tuple[int, ...]
    model_id: str | None
    since: float | None
    proof: str | None
    proof_of: int | None
    proof_seconds: float | None = None
    largest_difference: float | None = None
    lowest_cosine: float | None = None
    failure: Kind | None = None
    tries: int = 0
    beside: bool = False

    def line(self) -> str:
        """One line for the log and the ClearML task."""
        state = "ready" if self.ready else "not ready"
        bundle = f" bundle {self.bundle_version}" if self.bundle_version else ""
        mark = "" if self.verified or self.backend is None else " unverified"
        why = f" ({self.reason})" if self.reason else ""
        # A name in ClearML may hold ends of lines, and forge more of them.
        return printable(f"{self.endpoint}: {state}{bundle}{mark}{why}")


def endpoint_rows(
    wanted: Mapping[str, Served] | None,
    problems: Sequence[Problem],
    records: Mapping[str, ModelRecord],
    failures: Failures,
    loaded: Mapping[str, frozenset[int]] | None,
    proving: Proving,
    untrusted: Collection[str] = (),
) -> list[EndpointStatus]:
    """A row for every endpoint; before the first sync, for every model of the last good state.

    Of what is `untrusted` nothing is loaded before its signatures were checked.
    """
    models = set(records) if wanted is None else set(wanted)
    rows = [
        _row(
            model,
            None if wanted is None else wanted[model],
            records.get(model),
            _failures_of(model, wanted, records.get(model), failures, loaded or {}),
            None if loaded is None else loaded.get(model, frozenset()),
            proving,
            LOADING if model not in untrusted else UNTRUSTED,
        )
        for model in models
    ]
    rows += [
        _problem_row(problem)
        for problem in problems
        if not _is_replaced_by_its_like(problem, records.values())
    ]
    return sorted(rows, key=lambda row: row.endpoint)


def _is_replaced_by_its_like(problem: Problem, records: Collection[ModelRecord]) -> bool:
    """Whether the later upload brought the same bundle: both are in service with one version, and
    the code of an endpoint says that it is what belongs to it.
    """
    current = [record.current for record in records]
    later = {one.bundle_version for one in current if one.model_id == problem.replaced_by}
    return any(
        one.verified and one.number == one.bundle_version and one.bundle_version in later
        for one in current
        if one.model_id == problem.model_id
    )


def _failures_of(
    model: str,
    wanted: Mapping[str, Served] | None,
    record: ModelRecord | None,
    failures: Failures,
    loaded: Mapping[str, frozenset[int]],
) -> list[FailedChange]:
    """Of what is wanted first, then of the version in service, and while that serves beside others
    also why those do not go."""
    asked = [] if wanted is None else [wanted[model].fingerprint]
    asked += [] if record is None else [record.fingerprint]
    if (
        record is not None
        and record.current.number in loaded.get(model, ())
        and record.versions[1:]
    ):
        asked.append(record.retirement)
    return [failures[model, one] for one in dict.fromkeys(asked) if (model, one) in failures]


def _row(
    model: str,
    served: Served | None,
    record: ModelRecord | None,
    failed: Sequence[FailedChange],
    loaded: frozenset[int] | None,
    proving: Proving,
    first_step: str,
) -> EndpointStatus:
    current = None if record is None else record.current
    ready = current is not None and current.number in (loaded or ())
    first = failed[0] if failed else None
    reason, since = (first.reason, first.at) if first is not None else (None, None)
    if first is not None and _is_of_before(first, record, ready=ready):
        first, reason = None, f"{BEFORE_IT}: {reason}"
    if reason is None and not ready:
        step = IN_PROOF if model in proving.now else first_step
        reason = TRITON_AWAY if loaded is None else step
    return EndpointStatus(
        endpoint=served.endpoint if served is not None else record.endpoint if record else model,
        model=model,
        bundle_version=current.bundle_version if current else None,
        verified=current is not None and current.verified,
        backend=current.backend if current else None,
        ready=ready,
        reason=reason,
        reason_since=since,
        versions_loaded=tuple(sorted(loaded or ())),
        model_id=current.model_id if current else served.model_id if served else None,
        since=current.since if current else None,
        failure=None if first is None else first.kind,
        tries=0 if first is None else first.tries,
        **_proof(model, current, failed, proving),
    )


def _is_of_before(failed: FailedChange, record: ModelRecord | None, *, ready: bool) -> bool:
    """Whether what was to be loaded is, and the failure is of what was served before it: that its
    grace cannot be ended, as on a full disk, or that it cannot be loaded again.
    """
    own = () if record is None else (record.fingerprint, record.retirement)
    return ready and failed.fingerprint in own


def _proof(
    model: str, current: Version | None, failed: Sequence[FailedChange], proving: Proving
) -> dict[str, Any]:
    passed = proving.passed(current) if current else None
    bundle = current.bundle_version if current else None
    unproven = [one.unproven_bundle for one in failed if one.unproven_bundle is not None]
    if unproven:
        # Also while it is proven again: an alert on it would end and begin with each try.
        return {"proof": FAILED, "proof_of": unproven[0]}
    if model in proving.now:
        return {"proof": PROVING, "proof_of": bundle}
    if current is None:
        # What is to be the first may have passed its proof already.
        return {"proof": None, "proof_of": None}
    if passed is None:
        return {"proof": UNPROVEN, "proof_of": bundle}
    return {
        "proof": PROVEN,
        "proof_of": bundle,
        "proof_seconds": passed.seconds,
        "largest_difference": passed.largest_difference,
        "lowest_cosine": passed.lowest_cosine,
    }


def _problem_row(problem: Problem) -> EndpointStatus:
    return EndpointStatus(
        endpoint=problem.endpoint,
        model=problem.model,
        bundle_version=None,
        verified=False,
        backend=None,
        ready=False,
        reason=problem.reason,
        reason_since=None,
        versions_loaded=(),
        model_id=problem.model_id or None,
        since=None,
        proof=None,
        proof_of=None,
        beside=problem.beside,
    )


def as_json(rows: Sequence[EndpointStatus]) -> list[dict[str, Any]]:
    return [asdict(row) for row in rows]


def changes(before: Sequence[EndpointStatus], after: Sequence[EndpointStatus]) -> list[str]:
    """A line for each endpoint that is new, gone or different."""
    old = {row.endpoint: row.line() for row in before}
    new = {row.endpoint: row.line() for row in after}
    lines = [line for endpoint, line in new.items() if old.get(endpoint) != line]
    return lines + [f"{endpoint}: removed" for endpoint in old if endpoint not in new]
