"""The dashboards' files: as they are made now, of figures that there are, whole as Grafana reads
them. Their queries are asked in tests/stack/test_dashboards.py, and tests/clients holds them to
Grafana's own types."""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.dashboards.endpoint import ENDPOINT
from scripts.dashboards.expressions import P
from scripts.dashboards.grafana import text
from scripts.dashboards.panel import GRID_COLUMNS, Dashboard, Kind, Needs
from scripts.dashboards.service import SERVICE
from scripts.dashboards.table import DASHBOARDS, FOLDER
from tests.monitoring.test_alerts import OBSERVABILITY, of_generation
from tests.monitoring.test_scrapes import program
from transformer_serving.desk.monitoring.objectives import OBJECTIVES
from transformer_serving.desk.monitoring.rules import all_alerts
from transformer_serving.desk.monitoring.times import BURN_RATES, PAGE

EACH = pytest.mark.parametrize("shown", DASHBOARDS, ids=lambda one: one.name)
# What Triton's own page has: docs of release 24.10, "Metrics".
OF_TRITON = {
    "nv_inference_request_success", "nv_inference_request_failure", "nv_inference_count",
    "nv_inference_exec_count", "nv_inference_request_duration_us",
    "nv_inference_queue_duration_us", "nv_inference_compute_input_duration_us",
    "nv_inference_compute_infer_duration_us", "nv_inference_compute_output_duration_us",
    "nv_inference_pending_request_count",
    "nv_cpu_utilization", "nv_cpu_memory_total_bytes", "nv_cpu_memory_used_bytes",
    "nv_gpu_utilization", "nv_gpu_memory_total_bytes", "nv_gpu_memory_used_bytes",
    "nv_pinned_memory_pool_total_bytes", "nv_pinned_memory_pool_used_bytes",
    "nv_gpu_power_usage", "nv_gpu_power_limit", "nv_energy_consumption",
}  # fmt: skip
# For which promtool takes a variable of Grafana's.
_EXAMPLES = {
    "__rate_interval": "1m", "__range": "1h", "endpoint": "texts", "model": "texts",
}  # fmt: skip


def made(shown: Dashboard) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(text(shown))
    return values


def expressions(shown: Dashboard) -> Iterator[str]:
    """Everything that is asked, the marks' included."""
    for panel in shown.panels():
        yield from (query.expression for query in panel.queries)
    yield from (mark.expression for mark in shown.marks)


@EACH
def test_the_file_is_as_it_is_made_now(shown: Dashboard) -> None:
    """`make monitoring` renews it."""
    assert (FOLDER / shown.file).read_text("utf-8") == text(shown)


def test_no_file_is_of_no_dashboard() -> None:
    assert {path.name for path in FOLDER.glob("*.json")} == {one.file for one in DASHBOARDS}


@EACH
def test_every_panel_is_in_its_file(shown: Dashboard) -> None:
    panels = [panel for panel in made(shown)["panels"] if panel["type"] != "row"]
    rows = [panel["title"] for panel in made(shown)["panels"] if panel["type"] == "row"]
    assert rows == [row.title for row in shown.rows]
    for panel, there in zip(shown.panels(), panels, strict=True):
        assert there["title"] == panel.title
        assert panel.needs.value in there["description"]
        asked = [target["expr"] for target in there["targets"]]
        assert asked == [query.expression for query in panel.queries]
        assert len({target["refId"] for target in there["targets"]}) == len(asked)
        assert there["fieldConfig"]["defaults"]["unit"] == panel.unit
        assert there["fieldConfig"]["defaults"].get("noValue", "") == panel.nothing
        assert there["fieldConfig"]["defaults"].get("decimals") == panel.decimals


@EACH
def test_panels_stand_beside_each_other(shown: Dashboard) -> None:
    """No two at one place, none over the edge, none with another's number."""
    panels = made(shown)["panels"]
    places = Counter(
        (x, y)
        for at in (panel["gridPos"] for panel in panels)
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    )
    assert max(places.values()) == 1
    assert max(x for x, _ in places) < GRID_COLUMNS
    # Whole rows: nothing is left open beside the last panel of a row.
    assert len(places) == GRID_COLUMNS * (1 + max(y for _, y in places))
    assert len({panel["id"] for panel in panels}) == len(panels)


@EACH
def test_its_figures_are_given(shown: Dashboard) -> None:
    given = {"up"} | OF_TRITON | of_generation()
    for line in OBSERVABILITY.read_text("utf-8").splitlines():
        if found := re.match(r"\| ((?:transformer_serving|process)_\w+) \| (\w+) \|", line):
            suffixes = ("_bucket", "_count", "_sum") if found[2] == "histogram" else ("",)
            given |= {f"{found[1]}{suffix}" for suffix in suffixes}
    for expression in (*expressions(shown), *(one.query for one in shown.variables)):
        named = set(re.findall(r"\b(?:transformer_serving|process|nv)_\w+|\bup\b", expression))
        assert named
        assert named <= given, expression


@EACH
def test_promtool_reads_every_query(shown: Dashboard, tmp_path: Path) -> None:
    """Those too that find nothing where there is no GPU."""
    rules = [
        {
            "record": f"query{at}",
            "expr": re.sub(r"\$([a-z_]\w*)", lambda hit: _EXAMPLES[hit[1]], one),
        }
        for at, one in enumerate(expressions(shown))
    ]
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    command = [program("promtool", "prometheus"), "check", "rules", "--lint=all", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"SUCCESS: {len(rules)} rules found" in done.stdout


@EACH
def test_a_legend_tells_lines_apart(shown: Dashboard) -> None:
    """It has every label by which the outermost sum is made, but for bounds of buckets."""
    for panel in shown.panels():
        for query in panel.queries:
            by = re.search(r"\bby \(([\w, ]+)\)", query.expression)
            labels = set(by[1].split(", ")) - {"le"} if by else set()
            assert labels <= set(re.findall(r"\{\{(\w+)\}\}", query.legend)), query


def test_every_token_counts_where_they_are_counted() -> None:
    """Times of first tokens are one a request, however many sequences it has."""
    (panel,) = (one for one in ENDPOINT.panels() if one.title == "Tokens generated a second")
    (query,) = panel.queries
    assert set(re.findall(rf"{P}\w+", query.expression)) == {f"{P}generated_tokens_total"}


@EACH
def test_a_gpu_is_what_its_panels_need(shown: Dashboard) -> None:
    for panel in shown.panels():
        asks = any("nv_gpu" in query.expression for query in panel.queries)
        assert asks == (panel.needs is Needs.GPU), panel.title


@EACH
def test_a_share_is_one_of_something(shown: Dashboard) -> None:
    """What is divided by is held above 0, or a number: an endpoint at rest has no NaN."""
    for expression in expressions(shown):
        for divisor in re.findall(r" / (\S+)", expression):
            assert divisor.startswith("((") or float(divisor) > 0, expression


def test_grafana_asks_the_source_that_compose_gives_it() -> None:
    sources = yaml.safe_load((FOLDER.parent / "datasources/prometheus.yaml").read_text("utf-8"))
    names = {(row["name"], row["uid"]) for row in sources["datasources"]}
    for shown in DASHBOARDS:
        source, *_ = made(shown)["templating"]["list"]
        assert (source["current"]["text"], source["current"]["value"]) in names
        assert source["name"] == "datasource"
        for panel in made(shown)["panels"]:
            for target in panel.get("targets", ()):
                assert target["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


def test_a_word_is_for_whole_numbers() -> None:
    for shown in DASHBOARDS:
        for panel in shown.panels():
            if panel.kind is Kind.STATES:
                assert [word.value for word in panel.words] == [0, 1]


def test_what_alerts_look_at_is_on_a_dashboard() -> None:
    """But for the counts of statuses, which the times of requests have as well."""
    shown = {name for one in DASHBOARDS for text in expressions(one) for name in figures(text)}
    watched = {
        name for alert in all_alerts() for name in figures(re.sub('"[^"]*"', "", alert.expression))
    }
    assert watched - shown == {f"{P}requests_total"}


def figures(expression: str) -> list[str]:
    return re.findall(rf"\b(?:{P}\w+|up)\b", expression)


def test_promises_are_shown_finer_than_they_are_made() -> None:
    """99.86 and 99.94 % would else both be 99.9, which is what is promised."""
    for objective, panel in zip(OBJECTIVES, SERVICE.panels(), strict=False):
        assert panel.decimals is not None
        assert round(objective.target, panel.decimals + 1) == objective.target
        assert f"promised are {100 * objective.target:g} %" in panel.description


def test_the_lines_of_a_budget_are_those_of_the_windows_that_are_drawn() -> None:
    for panel in list(SERVICE.panels())[3:6]:
        drawn = {rate.factor for rate in BURN_RATES if rate.severity == PAGE}
        assert {step.value for step in panel.steps} == {None, *drawn}
        assert [query.legend for query in panel.queries] == [
            "{{endpoint}}, 1h, line 14.4", "{{endpoint}}, 6h, line 6",
        ]  # fmt: skip
