"""What the alerts of endpoints are shown that have a row for those that are served, or were loaded,
and one for others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tests.monitoring.case import ENDPOINT, GATEWAY, PROOF, TRITON, Case, gauge
from transformer_serving.desk.monitoring.alerts import Alert
from transformer_serving.desk.monitoring.times import DAY, MINUTE, PAGE

# Of a window of a week: as long as Prometheus takes a figure for the present one, and less.
_STEP_S = 4 * MINUTE


def not_ready_cases(alert: Alert) -> Iterator[Case]:
    """It pages of what was served within a week; a ticket is of what was not."""
    for case in _not_ready(alert):
        yield replace(case, step_s=_STEP_S)


def _not_ready(alert: Alert) -> Iterator[Case]:
    ready = gauge("engine_ready", 0, bundle="7", **ENDPOINT, **TRITON)
    other = gauge("engine_ready", 1, bundle="7", **ENDPOINT, instance="10.0.0.10:8003")
    pages = alert.severity == PAGE
    served = gauge("engine_ready", 1, bundle="7", **ENDPOINT, **TRITON)
    lost = ENDPOINT if pages else None
    yield Case(alert, "it was served", [served], lost, turns=[0])
    two_days = round(2 * DAY / _STEP_S)
    yield Case(alert, "gone for two days", [served], lost, turns=[0], last_steps=two_days)
    yield Case(alert, "it never was", [ready], None if pages else ENDPOINT)
    yield Case(alert, "another Triton serves it", [ready, other], None)
    yield Case(alert, "no other one does any more", [ready, other], lost, turns=[0, 0])


def golden_cases(alert: Alert) -> Iterator[Case]:
    """Likewise; where no Triton's figures are read it pages."""
    for case in _golden(alert):
        yield replace(case, step_s=_STEP_S)


def _golden(alert: Alert) -> Iterator[Case]:
    fails = [
        gauge("gateway_golden_ok", 0, pid="11", **ENDPOINT, **GATEWAY),
        gauge("gateway_golden_ok", 1, pid="12", **ENDPOINT, **GATEWAY),
    ]
    pages = alert.severity == PAGE
    fired = {**ENDPOINT, **GATEWAY}
    for name, ready, is_page in (("it is served", 1, True), ("it never was", 0, False)):
        series = [*fails, gauge("engine_ready", ready, bundle="7", **ENDPOINT, **TRITON)]
        yield Case(alert, name, series, fired if pages == is_page else None)
    served = gauge("engine_ready", 1, bundle="7", **ENDPOINT, **TRITON)
    lost = Case(alert, "lost", [*fails, served], fired if pages else None, turns=[0, 0, 0])
    yield lost
    two_days = round(2 * DAY / _STEP_S)
    yield replace(lost, name="lost for two days", last_steps=two_days)
    yield Case(alert, "nobody knows", fails, fired if pages else None)
    yield Case(alert, "all well", [fails[1], served], None)


def load_cases(alert: Alert) -> Iterator[Case]:
    """What fails for reasons that pass is another alert than what the bundle is at fault for."""
    where = {**ENDPOINT, **TRITON}
    kinds = {True: ("away", "unreached"), False: ("refused", "missing", "died")}
    passes = "passing" in alert.labels
    for kind in kinds[passes]:
        failed = [
            # What is in service serves on.
            gauge("engine_ready", 1, bundle="7", **where),
            gauge("engine_load_failed", 1, kind=kind, **where),
            gauge("engine_load_failed", 0, kind=kinds[not passes][0], **where),
        ]
        yield Case(alert, kind, failed, where)
    loaded = gauge("engine_load_failed", 0, kind=kinds[passes][0], **where)
    yield Case(alert, "it was loaded", [loaded], None)
    for kind in kinds[not passes]:
        other = [gauge("engine_load_failed", 1, kind=kind, **where)]
        yield Case(alert, f"{kind}, which is the other's", other, None)
    if not passes:
        yield Case(
            alert, "its proof failed, which has an alert of its own",
            [gauge("engine_load_failed", 1, kind="refused", **where),
             gauge("engine_proof", 1, state="failed", **PROOF)],
            None,
        )  # fmt: skip
