"""What the dashboards' queries find, as promtool computes them."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from scripts.dashboards.endpoint import ENDPOINT
from scripts.dashboards.engines import ENGINES
from scripts.dashboards.expressions import TEXT, P
from scripts.dashboards.panel import Dashboard, Panel
from tests.monitoring.test_dashboards import OF_TRITON
from tests.monitoring.test_scrapes import program
from transformer_serving.contract.naming import triton_model_name
from transformer_serving.engine.controller.status import PROOF_STATES

# Two Tritons, one of them with two GPUs, have the same two models, one of them in two versions; a
# bundle's proof still runs in the second.
_TWO_TRITONS = (
    *(
        (f'nv_inference_request_success{{model="{model}",version="{version}",{where}}}', 7)
        for model, version in (("texts", 1), ("texts", 2), ("stories", 1), (".proof", 1))
        for where in ('instance="a",gpu_uuid="0"', 'instance="a",gpu_uuid="1"', 'instance="b"')
    ),
    *(
        (f'{P}engine_proof{{{labels},state="{state}"}}', int(state == present))
        for labels, present in (
            ('endpoint="texts",bundle="2",instance="a"', "proven"),
            ('endpoint="texts",bundle="2",instance="b"', "proven"),
            ('endpoint="stories",bundle="1",instance="a"', "proven"),
            ('endpoint="stories",bundle="1",instance="b"', "proving"),
        )
        for state in PROOF_STATES
    ),
)  # fmt: skip


@pytest.mark.parametrize(
    ("title", "found"),
    [
        ("Bundles by proof", {"state": {"proven": 2, "unproven": 0, "proving": 1, "failed": 0}}),
        ("Loaded versions", {"model": {"texts": 2, "stories": 1}}),
    ],
)  # fmt: skip
def test_what_two_tritons_have_alike_counts_once(
    title: str, found: dict[str, dict[str, int]], tmp_path: Path
) -> None:
    (panel,) = (panel for panel in ENGINES.panels() if panel.title == title)
    (query,) = panel.queries
    ((label, values),) = found.items()
    found_rows = {f'{{{label}="{name}"}}': value for name, value in values.items()}
    finds(query.expression, dict(_TWO_TRITONS), found_rows, tmp_path)


def finds(
    expression: str,
    there: Mapping[str, float | str],
    found: Mapping[str, float],
    folder: Path,
    at: str = "1m",
) -> None:
    """What promtool makes of series that stay as they are, or go as its own words say."""
    asked = {
        "expr": expression,
        "eval_time": at,
        "exp_samples": [{"labels": labels, "value": value} for labels, value in found.items()],
    }
    one = {
        "interval": "1m",
        "input_series": [
            {"series": row, "values": value if isinstance(value, str) else f"{value}x2"}
            for row, value in there.items()
        ],
        "promql_expr_test": [asked],
    }
    file = folder / "panel.yaml"
    file.write_text(yaml.safe_dump({"tests": [one]}))
    command = [program("promtool", "prometheus"), "test", "rules", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def one_panel(shown: Dashboard, title: str) -> Panel:
    (panel,) = (panel for panel in shown.panels() if panel.title == title)
    return panel


def test_what_triton_has_of_calls_is_shown_of_no_text(tmp_path: Path) -> None:
    """They return as soon as they are queued."""
    there: dict[str, float | str] = {f'{TEXT}{{model="stories",version="1",instance="a"}}': "7x10"}
    for model in ("texts", "stories"):
        labels = f'{{model="{model}",version="1",instance="a"}}'
        for name in OF_TRITON:
            step = 6e7 if name.endswith("_us") else 60
            there |= {f"{name}{labels}": f"0+{step:.0f}x10"} if "inference" in name else {}
    for title in ("Compute of each model", "Runs of the engine", "Rows a run"):
        (query,) = one_panel(ENGINES, title).queries
        asked = query.expression.replace("$__rate_interval", "5m")
        finds(f"round({asked}, 0.001)", there, {'{model="texts"}': 1}, tmp_path, "10m")
    for query in one_panel(ENDPOINT, "Inside Triton").queries:
        for model, found in (("texts", {"{}": 1.0}), ("stories", {})):
            asked = query.expression.replace("$__rate_interval", "5m").replace("$model", model)
            finds(f"round({asked}, 0.001)", there, found, tmp_path, "10m")


@pytest.mark.parametrize(
    ("seven", "eight", "found"),
    [
        ("yyyyyyyyy--y", "", ""),
        ("yyyyyyyyy--yy", "", ""),
        ("yyyyyyyyy-----------y", "", "7"),
        ("yyyyyyyyy--", "---------yy", ""),
        ("yyyyyyyyy--", "----------y", "8"),
        ("yyyyyyyyy---", "-----------y", "8"),
        ("yyyyyyyyyyyy", "-----------y", "8"),
        ("yyyyyyyyy--y", "---------yy-", "7"),
    ],
    ids=["again", "since a minute", "away for long", "other since a minute", "another", "after an "
         "absence", "beside", "back"],
)  # fmt: skip
def test_a_mark_is_of_another_bundle_and_no_short_absence(
    seven: str, eight: str, found: str, tmp_path: Path
) -> None:
    """By which bundles had a figure in each minute; marks at the last."""
    (mark,) = ENDPOINT.marks
    there = {
        f'{P}gateway_bundle_info{{endpoint="texts",bundle="{bundle}",instance="a"}}': " ".join(
            "1" if minute == "y" else "stale" for minute in minutes
        )
        for bundle, minutes in (("7", seven), ("8", eight))
        if minutes
    }
    rows = {f'{{bundle="{bundle}"}}': 1.0 for bundle in found}
    asked = mark.expression.replace("$endpoint", "texts")
    finds(asked, there, rows, tmp_path, f"{len(seven) - 1}m")


@pytest.mark.parametrize(
    ("name", "version"), [("texts", None), ("texts", "1"), ("a/b", "1"), ("a/b/c/d", "2")]
)
def test_a_chosen_endpoints_model_is_tritons_own(
    name: str, version: str | None, tmp_path: Path
) -> None:
    endpoint = f"{name}/{version}" if version else name
    (variable,) = (one for one in ENDPOINT.variables if one.name == "model")
    expression = variable.query.removeprefix("query_result(").removesuffix(")")
    there = {f'{P}engine_ready{{endpoint="{endpoint}",bundle="7",instance="a"}}': 1}
    model = triton_model_name(name, version)
    found = {f'{{endpoint="{endpoint}",model="{model}"}}': 1}
    finds(expression.replace("$endpoint", endpoint), there, found, tmp_path)
