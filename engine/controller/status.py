"""What people see of the controller: one row an endpoint, and what changed since last time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from engine.controller.control_plane import Problem, Served
from engine.controller.records import Failure, Record


@dataclass(frozen=True)
class EndpointStatus:
    """One endpoint. `reason` says why it is not ready or not up to date; times are Unix seconds."""

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

    def line(self) -> str:
        """One line for the log and the ClearML task."""
        state = "ready" if self.ready else "not ready"
        bundle = f" bundle {self.bundle_version}" if self.bundle_version else ""
        mark = "" if self.verified or self.backend is None else " unverified"
        return f"{self.endpoint}: {state}{bundle}{mark}" + (
            f" ({self.reason})" if self.reason else ""
        )


def endpoint_rows(
    wanted: Mapping[str, Served] | None,
    problems: Sequence[Problem],
    records: Mapping[str, Record],
    failures: Mapping[str, Failure],
    loaded: Mapping[str, frozenset[int]] | None,
) -> list[EndpointStatus]:
    """A row for every endpoint; before the first sync, for every model of the last good state."""
    models = set(records) if wanted is None else set(wanted)
    rows = [
        _row(
            model,
            None if wanted is None else wanted[model],
            records.get(model),
            failures.get(model),
            None if loaded is None else loaded.get(model, frozenset()),
        )
        for model in models
    ]
    rows += [_problem_row(problem) for problem in problems]
    return sorted(rows, key=lambda row: row.endpoint)


def _row(
    model: str,
    served: Served | None,
    record: Record | None,
    failure: Failure | None,
    loaded: frozenset[int] | None,
) -> EndpointStatus:
    current = None if record is None else record.current
    ready = current is not None and current.number in (loaded or ())
    reason, since = (failure.reason, failure.at) if failure is not None else (None, None)
    if reason is None and not ready:
        reason = "Triton does not answer" if loaded is None else "loading"
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
    )


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
    )


def as_json(rows: Sequence[EndpointStatus]) -> list[dict[str, Any]]:
    return [asdict(row) for row in rows]


def changes(before: Sequence[EndpointStatus], after: Sequence[EndpointStatus]) -> list[str]:
    """A line for each endpoint that is new, gone or different."""
    old = {row.endpoint: row.line() for row in before}
    new = {row.endpoint: row.line() for row in after}
    lines = [line for endpoint, line in new.items() if old.get(endpoint) != line]
    return lines + [f"{endpoint}: removed" for endpoint in old if endpoint not in new]
