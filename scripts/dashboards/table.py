"""The dashboards that there are."""

from __future__ import annotations

from scripts.dashboards.endpoint import ENDPOINT
from scripts.dashboards.engines import ENGINES
from scripts.dashboards.service import SERVICE
from transformer_serving.desk.monitoring.__main__ import FOLDER as MONITORING
from transformer_serving.desk.monitoring.chart import CHART

DASHBOARDS = (SERVICE, ENDPOINT, ENGINES)
FOLDER = MONITORING / "grafana" / "dashboards"
CHART_FOLDER = CHART / "dashboards"
