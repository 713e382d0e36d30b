"""The Kubernetes chart's copy of the rules, which each release fills in for itself.

Its limits come from its values, and its namespace and name choose its own pods among those that one
Prometheus reads.

Tested by tests/kubernetes/test_monitoring.py.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

from transformer_serving.contract.replacement import replace_file
from transformer_serving.desk.monitoring.alerts import Alert
from transformer_serving.desk.monitoring.rules import HEAD, all_alerts, limits, rules
from transformer_serving.desk.monitoring.times import TimeScale

CHART = Path(__file__).parents[3] / "kubernetes" / "chart" / "monitoring"
RULES, DEFAULTS = "rules.yaml", "limits.yaml"
# Labels of every figure that the chart's PodMonitors have read.
PLACES = {"namespace": "@namespace@", "release": "@release@"}
RUNBOOKS = "@runbooks@"
_FIGURE = re.compile(r"\b(?:transformer_serving_\w+|up)\b(?P<brace>\{)?")


def write() -> None:
    replace_file(CHART / RULES, rules_with_places())
    replace_file(CHART / DEFAULTS, defaults())


def rules_with_places() -> str:
    """rules.yaml, where @NAME@ stands for what a release fills in: Helm's own braces are
    Prometheus's, too.
    """
    alerts = (of_a_release(alert) for alert in all_alerts())
    return rules(TimeScale(), {name: f"@{name}@" for name in limits({})}, alerts, RUNBOOKS)


def of_a_release(alert: Alert) -> Alert:
    """The alert for the figures of one release, whose labels it has itself.

    Alertmanager takes alerts of the same labels for one: the end of another release's would end it.
    """
    chosen = ",".join(f'{name}="{place}"' for name, place in PLACES.items())

    def with_choice(figure: re.Match[str]) -> str:
        return f"{figure[0]}{chosen}," if figure["brace"] else f"{figure[0]}{{{chosen}}}"

    expression = _FIGURE.sub(with_choice, alert.expression)
    return replace(alert, expression=expression, labels={**alert.labels, **PLACES})


def defaults() -> str:
    """What counts where inference.settings says nothing."""
    rows = (f"{name}: {json.dumps(value)}\n" for name, value in limits({}).items())
    return HEAD + "".join(rows)
