"""rules.yaml for Prometheus, made from the table.

Tested by tests/monitoring/test_rules.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import groupby
from string import Template
from textwrap import indent

from transformer_serving.contract.settings import preprocess as preprocess_settings
from transformer_serving.contract.settings.polls import SERVING_POLL, TRITON_POLL
from transformer_serving.contract.settings.setting import Setting
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.monitoring.alerts import CONDITIONS, Alert
from transformer_serving.desk.monitoring.endpoints import ENDPOINTS
from transformer_serving.desk.monitoring.objectives import OBJECTIVES, OVER_DAYS
from transformer_serving.desk.monitoring.restarts import RESTARTS
from transformer_serving.desk.monitoring.times import PAGE, TimeScale

# Seconds between two computations, where not those of prometheus.yaml.
INTERVALS_S = {OVER_DAYS: 60.0}
# Of this repository, where nobody says under which address an alert's receivers find it.
RUNBOOKS = "docs/runbooks"
# What YAML takes without quotes, and Prometheus without a look for a template.
RUNBOOKS_FORM = r"[A-Za-z0-9][A-Za-z0-9.:/_~%-]*[A-Za-z0-9]"
HEAD = "# Made by `make monitoring` from transformer_serving/desk/monitoring; docs/monitoring.md.\n"
# Bounds of the inference containers that alerts measure against: each alone must be a number.
LIMITS = ("TRANSFORMER_SERVING_MAX_WAIT_S",)
# Minutes between two looks of the gateway's workers, and of the controller, at the control plane;
# what compose takes by default.
POLLS = {"CLEARML_SERVING_POLL_FREQ": "0.1", "CLEARML_TRITON_POLL_FREQ": "0.1"}


def all_alerts() -> tuple[Alert, ...]:
    """Every rule, those of one group behind each other."""
    burns = [alert for one in OBJECTIVES for alert in one.alerts()]
    return (
        *sorted(burns, key=lambda alert: alert.severity != PAGE),
        *ENDPOINTS,
        *CONDITIONS,
        *RESTARTS,
    )


def limits(variables: Mapping[str, str]) -> dict[str, str]:
    """The settings in LIMITS and POLLS, as `variables` have them or by default.

    As PromQL reads numbers. Raises Failure that names the variable where one is none that its
    reader takes.
    """
    rows = [row for row in preprocess_settings.SETTINGS if isinstance(row, Setting)]
    settings = [row for row in rows if row.name in LIMITS]
    polls = [replace(row, default=POLLS[row.name]) for row in (SERVING_POLL, TRITON_POLL)]
    try:
        return {row.name: f"{row.number(variables):g}" for row in (*settings, *polls)}
    except ValueError as error:
        raise Failure(str(error)) from None


def expression(alert: Alert, scale: TimeScale, values: Mapping[str, str]) -> str:
    """The row's expression with its times and limits."""
    pace = alert.pace
    return Template(alert.expression).substitute(
        values,
        window=scale.text(pace.window_s),
        short=scale.text(pace.short_s),
        seconds=f"{scale.seconds(pace.window_s):g}",
    )


def rules(
    scale: TimeScale,
    values: Mapping[str, str],
    alerts: Iterable[Alert] | None = None,
    runbooks: str = RUNBOOKS,
) -> str:
    """The file's text, of all alerts or of these; how often they are computed says prometheus.yaml,
    but of the groups in INTERVALS_S.

    `values` are the limits, `runbooks` is the address of the folder of runbooks.
    """
    text = HEAD + "groups:\n"
    rows = all_alerts() if alerts is None else alerts
    for group, those in groupby(rows, lambda alert: alert.group):
        every = INTERVALS_S.get(group)
        text += f"  - name: {group}\n"
        text += f"    interval: {scale.interval(every)}\n" if every else ""
        text += "    rules:\n"
        for alert in those:
            text += f"{_rule(alert, scale, values)}          runbook: {runbooks}/{alert.runbook}\n"
    return text


def _rule(alert: Alert, scale: TimeScale, values: Mapping[str, str]) -> str:
    """All of it but the last line."""
    labels = {"severity": alert.severity, **alert.labels}
    hold = f"        for: {scale.text(alert.pace.hold_s)}\n" if alert.pace.hold_s else ""
    return (
        f"      - alert: {alert.name}\n"
        "        expr: |-\n"
        f"{indent(expression(alert, scale, values), 10 * ' ')}\n"
        f"{hold}"
        f"        labels: {_flow(labels)}\n"
        "        annotations:\n"
        f"          summary: {json.dumps(alert.summary)}\n"
    )


def _flow(values: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{name}: {json.dumps(value)}" for name, value in values.items()) + "}"
