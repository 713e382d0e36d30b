"""The Kubernetes chart's copy of the rules, whose limits each release fills in from its own values.

Tested by tests/kubernetes/test_monitoring.py.
"""

from __future__ import annotations

import json
from pathlib import Path

from transformer_serving.contract.replacement import replace_file
from transformer_serving.desk.monitoring.rules import HEAD, limits, rules
from transformer_serving.desk.monitoring.times import TimeScale

CHART = Path(__file__).parents[3] / "kubernetes" / "chart" / "monitoring"
RULES, DEFAULTS = "rules.yaml", "limits.yaml"


def write() -> None:
    replace_file(CHART / RULES, rules_with_places())
    replace_file(CHART / DEFAULTS, defaults())


def rules_with_places() -> str:
    """rules.yaml, where @NAME@ stands for a setting: Helm's own braces are Prometheus's, too."""
    return rules(TimeScale(), {name: f"@{name}@" for name in limits({})})


def defaults() -> str:
    """What counts where inference.settings says nothing."""
    rows = (f"{name}: {json.dumps(value)}\n" for name, value in limits({}).items())
    return HEAD + "".join(rows)
