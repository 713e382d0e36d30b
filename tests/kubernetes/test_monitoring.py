"""The chart's part of monitoring: rules, dashboards and the names that both know pods by."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any

import helm_python
import pytest
import yaml

from scripts.dashboards.grafana import text
from scripts.dashboards.table import CHART_FOLDER, DASHBOARDS
from tests.kubernetes.chart import CHART, CLEARML, LOCAL, NAMESPACE, Manifest, kinds, one, rendered
from tests.monitoring.served_figures import served_figures
from tests.monitoring.test_scrapes import running_prometheus, until
from transformer_serving.desk.monitoring import chart
from transformer_serving.desk.monitoring.__main__ import FOLDER, PROMETHEUS, RULES
from transformer_serving.desk.monitoring.alerts import ENGINE_JOB, INFERENCE_JOB
from transformer_serving.desk.monitoring.rules import LIMITS, RUNBOOKS_FORM

MONITORED = {
    "monitoring": {"podMonitors": True, "rules": True, "dashboards": True},
    "access": {"metricsKeySecret": "metrics"},
}

NO_FIGURES = "No inference container gives figures: none runs, or none can be asked."


def settings(**values: object) -> dict[str, Any]:
    return {"inference": {"settings": values}}


def groups(*layers: dict[str, Any], name: str = "demo") -> list[dict[str, Any]]:
    rule = one(rendered(CLEARML, MONITORED, *layers, name=name), "PrometheusRule", name)
    found: list[dict[str, Any]] = rule["spec"]["groups"]
    return found


def test_the_runbooks_lines_name_what_is_there() -> None:
    """Of docs/monitoring.md, by the release that it names."""
    text = (CHART.parent.parent / "docs" / "monitoring.md").read_text("utf-8")
    section = text.split("\n## Runbooks elsewhere\n")[1].split("\n## ")[0]
    objects = rendered(CLEARML, name="serving")
    for kind, name in re.findall(r"\b(deployment|service)/([a-z-]+)", section):
        one(objects, kind.capitalize(), name)
    labels = [
        one(objects, "Deployment", f"serving-{part}")["spec"]["template"]["metadata"]["labels"]
        for part in ("inference", "triton")
    ]
    selectors = re.findall(r"--selector ([\w./=,-]+)", section)
    assert selectors
    for selector in selectors:
        wanted = dict(row.split("=") for row in selector.split(","))
        assert any(wanted.items() <= found.items() for found in labels), selector


def test_the_copies_are_as_they_are_made_now() -> None:
    """`make monitoring` renews them."""
    assert chart.CHART.parent.samefile(CHART)
    assert (chart.CHART / chart.RULES).read_text("utf-8") == chart.rules_with_places()
    assert (chart.CHART / chart.DEFAULTS).read_text("utf-8") == chart.defaults()
    for shown in DASHBOARDS:
        assert (CHART_FOLDER / shown.file).read_text("utf-8") == text(shown)
    assert {path.name for path in CHART_FOLDER.iterdir()} == {one.file for one in DASHBOARDS}


def test_a_release_without_limits_of_its_own_has_the_rules_of_compose() -> None:
    """But for the matcher that every figure has, and the labels of what is told."""
    of_compose = yaml.safe_load((FOLDER / RULES).read_text("utf-8"))["groups"]
    found = groups({"pollMinutes": 0.1})
    for rule in (rule for group in found for rule in group["rules"]):
        of_all, ours = rule["expr"], f'{{namespace="{NAMESPACE}",release="demo"'
        figures = len(re.findall(r"\b(?:transformer_serving_\w+|up)\b", of_all))
        assert of_all.count(ours) == figures > 0
        rule["expr"] = of_all.replace(f"{ours}}}", "").replace(f"{ours},", "{")
        assert rule["labels"].pop("namespace") == NAMESPACE
        assert rule["labels"].pop("release") == "demo"
    assert found == of_compose


def test_alerts_measure_against_the_limits_that_the_workers_have() -> None:
    given = settings(TRANSFORMER_SERVING_MAX_WAIT_S="7.25")
    expressions = {
        rule["alert"]: rule["expr"] for group in groups(given) for rule in group["rules"]
    }
    assert "> 0.6 * 7.25\n" in expressions["WaitingTimeNearLimit"]
    assert "@" not in "".join(expressions.values())


def test_an_alert_leads_to_its_runbook_where_it_can_be_opened() -> None:
    address = "https://wiki.example:8443/serving/docs/runbooks"
    moved = groups({"monitoring": {"runbooks": address}})
    for rule in (rule for group in moved for rule in group["rules"]):
        assert rule["annotations"]["runbook"].startswith(f"{address}/")
    schema = json.loads((CHART / "values.schema.json").read_text("utf-8"))
    form = schema["properties"]["monitoring"]["properties"]["runbooks"]["pattern"]
    assert form == f"^{RUNBOOKS_FORM}$"
    with pytest.raises(helm_python.HelmError, match="monitoring[./]runbooks"):
        groups({"monitoring": {"runbooks": "a: {b}"}})


def test_a_sync_is_late_by_polls_of_the_release() -> None:
    for values, minutes in (({}, "1"), ({"pollMinutes": 30}, "30")):
        late = [
            rule["expr"]
            for group in groups(values)
            for rule in group["rules"]
            if rule["alert"] == "SyncStale"
        ]
        assert len(late) == 2
        assert all(f"150 * {minutes}" in expr for expr in late), late


@pytest.mark.parametrize("name", [name for name in LIMITS if not name.endswith("_POLL_FREQ")])
@pytest.mark.parametrize("value", ["soon", "-1", "0"])
def test_a_limit_that_is_no_number_is_refused(name: str, value: str) -> None:
    """By the schema where its form shows it, else where the alerts need it."""
    with pytest.raises(helm_python.HelmError, match=rf"inference[./]settings[./]{name}"):
        groups(settings(**{name: value}))


@pytest.mark.parametrize(
    ("values", "watched"),
    [
        ({"triton": {"replicas": 0}}, [INFERENCE_JOB]),
        ({"inference": {"replicas": 0, "autoscaling": {"enabled": False}}}, [ENGINE_JOB]),
        ({"inference": {"replicas": 0}}, [INFERENCE_JOB, ENGINE_JOB]),
    ],
    ids=["triton", "inference", "autoscaled"],
)
def test_a_part_that_another_release_runs_is_not_missed(
    values: dict[str, Any], watched: list[str]
) -> None:
    """Its figures have that release's name, so that here they are absent for good."""
    found = [rule for group in groups(values) for rule in group["rules"]]
    assert [rule["labels"]["job"] for rule in found if rule["alert"] == "NoFigures"] == watched
    everything = [rule for group in groups() for rule in group["rules"]]
    others = [rule for rule in everything if rule["alert"] != "NoFigures"]
    assert [rule for rule in found if rule["alert"] != "NoFigures"] == others


def test_own_groups_stand_beside_ours_or_alone() -> None:
    mine = {"name": "mine", "rules": [{"record": "a:b", "expr": "1"}]}
    added = {"monitoring": {"ruleGroups": [mine]}}
    assert groups(added) == [*groups(), mine]
    alone = one(rendered(CLEARML, added), "PrometheusRule", "demo")
    assert alone["spec"]["groups"] == [mine]


def test_pods_are_read_under_the_names_that_the_rules_have() -> None:
    objects = rendered(CLEARML, MONITORED)
    for part, job in (("inference", INFERENCE_JOB), ("triton", ENGINE_JOB)):
        (endpoint,) = one(objects, "PodMonitor", f"demo-{part}")["spec"]["podMetricsEndpoints"]
        given = {row.get("targetLabel"): row for row in endpoint["relabelings"]}
        assert given["job"]["replacement"] == job
        assert given["instance"]["sourceLabels"] == ["__meta_kubernetes_pod_name"]
        assert given["release"]["replacement"] == "demo"
        assert any(job in rule["expr"] for group in groups() for rule in group["rules"])


# What the Prometheus operator sets of each pod before it comes to our own relabelings:
# generatePodMonitorConfig in its pkg/prometheus/promcfg.go.
_BY_THE_OPERATOR: list[dict[str, Any]] = [
    {"source_labels": ["__meta_kubernetes_namespace"], "target_label": "namespace"},
    {"source_labels": ["__meta_kubernetes_pod_container_name"], "target_label": "container"},
    {"source_labels": ["__meta_kubernetes_pod_name"], "target_label": "pod"},
    {"target_label": "job", "replacement": "serving/demo-inference"},
    {"target_label": "endpoint", "replacement": "http"},
]
_SNAKE = {"sourceLabels": "source_labels", "targetLabel": "target_label"}


@pytest.mark.slow
def test_an_endpoint_keeps_its_name_beside_what_the_operator_sets(tmp_path: Path) -> None:
    """It calls a pod's port `endpoint`: alerts and dashboards would see all of ours as one."""
    monitor = one(rendered(CLEARML, MONITORED), "PodMonitor", "demo-inference")
    (asked,) = monitor["spec"]["podMetricsEndpoints"]
    ours = [
        {_SNAKE.get(key, key): value for key, value in row.items()} for row in asked["relabelings"]
    ]
    pod = {
        "__meta_kubernetes_namespace": "serving", "__meta_kubernetes_pod_name": "demo-inference-0",
        "__meta_kubernetes_pod_container_name": "inference",
    }  # fmt: skip
    page = 'up_to_here{endpoint="texts"} 1\nup_to_here{endpoint="stories"} 2\n'
    with served_figures(lambda: page) as target:
        job = {
            "job_name": "podMonitor/serving/demo-inference/0", "scrape_interval": "1s",
            "scrape_timeout": "1s", "static_configs": [{"targets": [target], "labels": pod}],
            "relabel_configs": [*_BY_THE_OPERATOR, *ours],
        }  # fmt: skip
        (tmp_path / PROMETHEUS).write_text(yaml.safe_dump({"scrape_configs": [job]}))
        with running_prometheus(tmp_path) as address:
            rows = until(partial(metrics, address, "up_to_here"))
    of_both = {
        "__name__": "up_to_here", "namespace": "serving", "container": "inference",
        "pod": "demo-inference-0", "job": INFERENCE_JOB, "instance": "demo-inference-0",
        "release": "demo",
    }  # fmt: skip
    assert rows == [{**of_both, "endpoint": name} for name in ("stories", "texts")]


def metrics(address: str, query: str) -> list[dict[str, str]]:
    """The labels of an instant query's rows, by their endpoints."""
    with urllib.request.urlopen(f"{address}/api/v1/query?query={query}", timeout=30) as answer:
        rows = [row["metric"] for row in json.load(answer)["data"]["result"]]
    return sorted(rows, key=lambda row: str(row.get("endpoint")))


def test_each_dashboard_is_an_object_that_grafanas_sidecar_takes() -> None:
    objects = rendered(CLEARML, MONITORED)
    found = [each for each in objects if "-dashboard-" in each["metadata"]["name"]]
    assert len(found) == len(DASHBOARDS)
    for shown in DASHBOARDS:
        object_ = one(objects, "ConfigMap", f"demo-dashboard-{shown.file.removesuffix('.json')}")
        assert object_["metadata"]["labels"]["grafana_dashboard"] == "1"
        ((name, body),) = object_["data"].items()
        assert name == f"transformer-serving-{shown.file}"
        assert json.loads(body) == json.loads(text(shown))


def test_another_label_for_another_sidecar() -> None:
    own = {"monitoring": {"dashboards": True, "dashboardLabels": {"team": "texts"}}}
    labels = one(rendered(CLEARML, own), "ConfigMap", "demo-dashboard-service")["metadata"][
        "labels"
    ]
    assert labels["team"] == "texts"


def test_nothing_of_it_comes_unasked() -> None:
    objects = rendered(LOCAL)
    assert not kinds(objects) & {"PrometheusRule", "PodMonitor"}
    assert not [each for each in objects if "-dashboard-" in each["metadata"]["name"]]


def test_an_object_is_small_enough_for_a_cluster() -> None:
    """Of 262,144 bytes of annotations, in which kubectl and Argo CD keep what was applied."""
    for object_ in rendered(CLEARML, MONITORED):
        assert len(json.dumps(object_)) < 200_000


@pytest.fixture
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("no promtool: Debian has it in the package prometheus")
    return found


def run(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_takes_the_rules_of_a_release(promtool: str, tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    shown: Manifest = {"groups": groups(settings(TRANSFORMER_SERVING_MAX_WAIT_S=3))}
    file.write_text(yaml.safe_dump(shown))
    run(promtool, "check", "rules", file)


def test_a_release_that_is_well_hides_no_dead_one(promtool: str, tmp_path: Path) -> None:
    """One Prometheus reads both, and has the rules of both."""
    files = [tmp_path / f"{name}.yaml" for name in ("prod", "staging")]
    for file in files:
        file.write_text(yaml.safe_dump({"groups": groups(name=file.stem)}))
    endpoint = {"endpoint": "texts"}
    series: dict[str, int | str] = {}
    for name, is_well in (("prod", 0), ("staging", 1)):
        series[figure("up", name, job=INFERENCE_JOB)] = is_well
        series[figure("up", name, job=ENGINE_JOB)] = 1
        series[figure("transformer_serving_engine_ready", name, **endpoint)] = f"1x5 {is_well}"
    of_prod = {"severity": "page", "namespace": NAMESPACE, "release": "prod"}
    expected = [
        {
            "eval_time": "20m",
            "alertname": alert,
            "exp_alerts": [
                {
                    "exp_labels": {**of_prod, **labels},
                    "exp_annotations": {"summary": summary, "runbook": f"docs/runbooks/{page}"},
                }
            ],
        }
        for alert, labels, summary, page in (
            ("EndpointNotReady", endpoint, "No Triton serves texts.", "endpoint-not-ready.md"),
            ("NoFigures", {"job": INFERENCE_JOB}, NO_FIGURES, "no-figures.md"),
        )
    ]
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": f"{at}x30"} for name, at in series.items()],
        "alert_rule_test": expected,
    }
    asked = tmp_path / "asked.yaml"
    asked.write_text(yaml.safe_dump({"rule_files": [str(file) for file in files], "tests": [test]}))
    run(promtool, "test", "rules", asked)


def figure(name: str, release: str, **labels: str) -> str:
    """As the PodMonitors of a release have it read."""
    both = {"namespace": NAMESPACE, "release": release, **labels}
    return f"{name}{{{','.join(f'{key}={json.dumps(text)}' for key, text in both.items())}}}"
