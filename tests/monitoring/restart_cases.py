"""What the alerts of restarts are shown."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tests.monitoring.case import GATEWAY, LAST_STEPS, TRITON, Case, gauge, rising
from transformer_serving.desk.monitoring.alerts import Alert


def restart_cases(alert: Alert) -> Iterator[Case]:
    """By their rates in steps of a minute, of which a quarter of an hour is the short look."""
    # The short window has three samples, of which two are another than before.
    backoff = Case(alert, "one in seven and a half minutes, as Kubernetes waits", (), None, 450)
    seldom = Case(alert, "three in an hour, each by itself", (), None, 1200)
    if alert.labels["part"] == "whole":
        for side, where in (("gateway", {"pid": "11", **GATEWAY}), ("engine", TRITON)):
            name, fires = f"{side}_start_time_seconds", {"instance": where["instance"]}
            yield Case(alert, f"another {side} each time", [rising(name, 60, **where)], fires)
            yield Case(alert, f"one {side}", [gauge(name, 60, **where)], None)
            yield replace(backoff, series=[rising(name, 450, **where)], fires=fires)
            yield replace(seldom, series=[rising(name, 1200, **where)])
        # Of a gateway without a container each worker is another process.
        pids = [gauge("gateway_start_time_seconds", 60, pid=str(at), **GATEWAY) for at in range(9)]
        yield Case(alert, "workers come and go", pids, None)
        return
    name, where = {
        "worker": ("gateway_worker_restarts_total", GATEWAY),
        "triton": ("engine_triton_starts_total", TRITON),
    }[alert.labels["part"]]
    yield Case(alert, "again and again", [rising(name, 0.25, **where)], where)
    yield Case(
        alert, "a few in a moment", [rising(name, 0.0, **where)], where, then=[3.5 / LAST_STEPS]
    )
    yield replace(backoff, series=[rising(name, 1, **where)], fires=where)
    yield Case(alert, "now and then", [rising(name, 0.05, **where)], None)
