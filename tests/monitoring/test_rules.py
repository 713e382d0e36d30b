"""The rules as Prometheus's own promtool reads and computes them."""

from __future__ import annotations

import json
import re
import shutil
import stat
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from tests.monitoring.case import Case
from tests.monitoring.condition_cases import condition_cases
from tests.monitoring.healthy import HEALTHY
from tests.monitoring.objective_cases import objective_cases
from transformer_serving.desk.compose.variables import variables
from transformer_serving.desk.monitoring.__main__ import (
    ALERTMANAGER,
    COPY,
    DASHBOARDS,
    FOLDER,
    PROMETHEUS,
    RULES,
    main,
)
from transformer_serving.desk.monitoring.alerts import CONDITIONS, Alert
from transformer_serving.desk.monitoring.objectives import OBJECTIVES, OVER_DAYS
from transformer_serving.desk.monitoring.receivers import alertmanager_config
from transformer_serving.desk.monitoring.rules import (
    POLLS,
    RUNBOOKS,
    all_alerts,
    limits,
    rules,
)
from transformer_serving.desk.monitoring.scrapes import Place, prometheus_config
from transformer_serving.desk.monitoring.times import BURN_RATES, DAY, HOUR, TICKET, TimeScale

IN_SERVICE = TimeScale()
CASES = [*objective_cases(), *condition_cases()]
# At which a test on a whole stack could see three days pass in twelve minutes.
OF_A_TEST = TimeScale(360)
SCALES = pytest.mark.parametrize("scale", [IN_SERVICE, OF_A_TEST], ids=["1", "360"])


@pytest.fixture(scope="session")
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("no promtool: Debian has it in the package prometheus")
    return found


def run(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def written(scale: TimeScale) -> str:
    return rules(scale, limits({}))


def test_the_files_are_as_they_are_made_now() -> None:
    """`make monitoring` renews them."""
    assert (FOLDER / RULES).read_text("utf-8") == written(IN_SERVICE)
    assert (FOLDER / PROMETHEUS).read_text("utf-8") == prometheus_config(IN_SERVICE, Place())
    assert (FOLDER / ALERTMANAGER).read_text("utf-8") == alertmanager_config(COPY)


def test_who_is_told_is_written_once(tmp_path: Path) -> None:
    arguments = ["--output", str(tmp_path)]
    assert CliRunner().invoke(main, arguments).exit_code == 0
    assert (tmp_path / ALERTMANAGER).read_text() == alertmanager_config(COPY)
    assert stat.S_IMODE((tmp_path / ALERTMANAGER).stat().st_mode) == 0o600
    (tmp_path / ALERTMANAGER).write_text("mine")
    assert CliRunner().invoke(main, arguments).exit_code == 0
    assert (tmp_path / ALERTMANAGER).read_text() == "mine"


def test_a_copy_gets_the_dashboards_of_this_kit_and_keeps_its_own(tmp_path: Path) -> None:
    dashboards = tmp_path / DASHBOARDS
    arguments = ["--output", str(tmp_path)]
    assert CliRunner().invoke(main, arguments).exit_code == 0
    assert not dashboards.exists()
    dashboards.mkdir(parents=True)
    (dashboards / "service.json").write_text("of the kit before")
    (dashboards / "mine.json").write_text("mine")
    assert CliRunner().invoke(main, arguments).exit_code == 0
    ours = {file.name: file.read_text() for file in (FOLDER / DASHBOARDS).glob("*.json")}
    assert len(ours) == 3
    found = {file.name: file.read_text() for file in dashboards.iterdir()}
    assert found == {**ours, "mine.json": "mine"}


@SCALES
def test_promtool_has_nothing_to_say(promtool: str, tmp_path: Path, scale: TimeScale) -> None:
    file = tmp_path / RULES
    file.write_text(written(scale))
    said = run(promtool, "check", "rules", "--lint=all", "--lint-fatal", file)
    assert f"SUCCESS: {len(all_alerts())} rules found" in said


def test_every_alert_has_a_case_that_fires_and_one_that_does_not() -> None:
    for alert in all_alerts():
        fires = [case.fires is not None for case in CASES if case.alert == alert]
        assert set(fires) == {True, False}, alert.name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scale", "cases"),
    # Divided times make other rates of the same growth, but no other shares.
    [(IN_SERVICE, CASES), (OF_A_TEST, list(objective_cases()))],
    ids=["1", "360"],
)
def test_alerts_fire_when_they_should_and_only_then(
    promtool: str, tmp_path: Path, scale: TimeScale, cases: list[Case]
) -> None:
    """Each on its own, as several fire at what one case shows."""
    files = []
    for number, case in enumerate(cases):
        own = tmp_path / f"{number}-{RULES}"
        own.write_text(rules(scale, limits({}), [case.alert]))
        files.append(tmp_path / f"{number}.yaml")
        files[-1].write_text(yaml.safe_dump(document(case, own, scale), sort_keys=False))
    run(promtool, "test", "rules", *files)


@pytest.mark.parametrize("alert", [one for one in CONDITIONS if one.name == "SyncStale"])
def test_a_control_plane_that_is_seldom_asked_is_no_fault(
    promtool: str, tmp_path: Path, alert: Alert
) -> None:
    """Every 60 minutes: two looks have failed after 9000 s, whatever is the least of the rule."""
    fires = next(case for case in CASES if case.alert == alert and case.name == "long ago")
    files = []
    for age, labels in ((8000, None), (9000, fires.fires)):
        series = [
            (name, -age if "last_sync" in name else value, step)
            for name, value, step in fires.series
        ]
        own, asked = tmp_path / f"{age}-{RULES}", tmp_path / f"{age}.yaml"
        own.write_text(rules(IN_SERVICE, limits(dict.fromkeys(POLLS, "60")), [alert]))
        case = replace(fires, series=series, fires=labels)
        asked.write_text(yaml.safe_dump(document(case, own, IN_SERVICE), sort_keys=False))
        files.append(asked)
    run(promtool, "test", "rules", *files)


def test_polls_are_those_of_the_compose_files() -> None:
    rows = {row.name: row.default for row in variables()}
    assert {name: rows[name] for name in POLLS} == POLLS


def document(case: Case, file: Path, scale: TimeScale) -> dict[str, Any]:
    """promtool's own form of a case."""
    expected = []
    if case.fires is not None:
        labels = {**case.fires, "severity": case.alert.severity, **case.alert.labels}
        annotations = {
            "summary": filled(case.alert.summary, labels, case.value),
            "runbook": f"{RUNBOOKS}/{case.alert.runbook}",
        }
        expected = [{"exp_labels": labels, "exp_annotations": annotations}]
    return {
        "rule_files": [str(file)],
        "evaluation_interval": scale.text(case.step_s),
        "tests": [
            {
                "name": f"{case.alert.name} {json.dumps(dict(case.alert.labels))}: {case.name}",
                "interval": scale.text(case.step_s),
                "input_series": [
                    {"series": name, "values": values} for name, values in case.values()
                ],
                "alert_rule_test": [
                    {
                        "eval_time": scale.text(at_s),
                        "alertname": case.alert.name,
                        "exp_alerts": expected,
                    }
                    for at_s in case.looks_s
                ],
            }
        ],
    }


def test_a_stack_that_is_well_fires_nothing(promtool: str, tmp_path: Path) -> None:
    """Of the whole file, at each of its alerts, for two hours."""
    series = [
        {"series": name, "values": f"{first:g}+{step:g}x130"} for name, first, step in HEALTHY
    ]
    silent: list[dict[str, Any]] = [
        {"eval_time": time, "alertname": name, "exp_alerts": []}
        for name in sorted({alert.name for alert in all_alerts()})
        for time in ("5m", "30m", "2h")
    ]
    # None is silent since it sees nothing.
    seen = [
        {
            "expr": f"count({part.replace('$over', '1h')})",
            "eval_time": "2h",
            "exp_samples": [{"labels": "{}", "value": 1}],
        }
        for one in OBJECTIVES
        for part in (one.bad, one.eligible)
    ]
    one = {
        "interval": "1m", "input_series": series, "alert_rule_test": silent,
        "promql_expr_test": seen,
    }  # fmt: skip
    file = tmp_path / "well.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(FOLDER / RULES)], "tests": [one]}))
    run(promtool, "test", "rules", file)


def test_the_healthy_figures_are_all_that_alerts_look_at() -> None:
    shown = {name.split("{")[0] for name, *_ in HEALTHY}
    for alert in all_alerts():
        named = re.findall(r"\b(?:transformer_serving_\w+|up)\b", _without_labels(alert))
        assert set(named) <= shown, alert.name


def _without_labels(alert: Alert) -> str:
    return re.sub(r'"[^"]*"', "", alert.expression)


def filled(summary: str, labels: dict[str, str], value: float) -> str:
    summary = summary.replace("{{ $value | humanizePercentage }}", f"{100 * value:.4g}%")
    return re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda found: labels[found[1]], summary)


def test_burn_rates_spend_what_is_said_of_them() -> None:
    spent = [rate.factor * rate.pace.window_s / (30 * DAY) for rate in BURN_RATES]
    assert spent == pytest.approx([0.02, 0.05, 0.1, 0.1])
    assert all(rate.pace.short_s * 12 == rate.pace.window_s for rate in BURN_RATES)


@pytest.mark.parametrize(
    ("divisor", "seconds", "text"),
    [(1, 300, "5m"), (1, 5400, "1h30m"), (1, 3 * DAY, "3d"), (360, 300, "833ms"),
     (360, HOUR, "10s"), (1e9, 1, "1ms")],
)  # fmt: skip
def test_a_duration_is_written_as_prometheus_does(
    divisor: float, seconds: float, text: str
) -> None:
    assert TimeScale(divisor).text(seconds) == text


def test_no_page_is_asked_more_often_than_it_can_answer() -> None:
    assert IN_SERVICE.interval(15) == "15s"
    assert OF_A_TEST.interval(15) == "200ms"


def test_no_time_stands_in_an_expression() -> None:
    """All come from the table, or the scale would miss them."""
    for alert in all_alerts():
        assert not re.search(r"\[[^$]", alert.expression.replace("[25]", "")), alert.name


def test_a_mean_beside_a_rate_is_of_no_longer_than_must_hold() -> None:
    """In a container that is younger than the window the two are of other times."""
    mixed = [one for one in all_alerts() if {"avg_over_time", "rate"} <= _functions(one)]
    assert mixed
    assert all(one.pace.window_s <= one.pace.hold_s for one in mixed)


def _functions(alert: Alert) -> set[str]:
    return set(re.findall(r"\b(\w+)\(", alert.expression))


def test_pages_wait_for_no_rule_that_looks_at_days() -> None:
    """Prometheus computes those of one group one after the other."""
    for alert in all_alerts():
        if alert.name.endswith("BudgetBurn"):
            assert (alert.group == OVER_DAYS) == (alert.severity == TICKET)
    groups = {one["name"]: one for one in yaml.safe_load(written(IN_SERVICE))["groups"]}
    assert groups[OVER_DAYS]["interval"] == "1m"
    assert [name for name, one in groups.items() if "interval" in one] == [OVER_DAYS]


def test_a_name_stands_for_one_group_and_one_page() -> None:
    """But for objectives, whose tickets look at days."""
    groups: dict[str, set[str]] = {}
    for alert in all_alerts():
        groups.setdefault(alert.runbook, set()).add(alert.group)
    assert all(len(names - {OVER_DAYS}) == 1 for names in groups.values())
    assert len(groups) == len({alert.name for alert in all_alerts()})
    assert len(CONDITIONS) > 10
