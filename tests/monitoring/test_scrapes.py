"""prometheus.yaml as promtool reads it, and as Debian's Prometheus runs it on the real page."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from tests.free_ports import free_port
from tests.monitoring.served_figures import served_figures
from transformer_serving.contract.known_keys import KnownKeys
from transformer_serving.desk.monitoring.__main__ import FOLDER, PROMETHEUS, RULES, main
from transformer_serving.desk.monitoring.alerts import ENGINE_JOB, INFERENCE_JOB
from transformer_serving.desk.monitoring.chart import PLACES
from transformer_serving.desk.monitoring.rules import all_alerts, limits, rules
from transformer_serving.desk.monitoring.scrapes import KEY_FILE, Place, prometheus_config
from transformer_serving.desk.monitoring.times import EVALUATE_S, SCRAPE_S, TimeScale
from transformer_serving.engine.controller.metrics import MetricsPage
from transformer_serving.engine.controller.metrics_server import keys_of

# Once a second.
QUICK = TimeScale(15)


def program(name: str, package: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"no {name}: Debian has it in the package {package}")
    return found


def check(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_promtool_reads_it_with_its_rules(tmp_path: Path) -> None:
    promtool = program("promtool", "prometheus")
    check(promtool, "check", "config", "--syntax-only", FOLDER / PROMETHEUS)
    key = tmp_path / "key"
    key.write_text("")
    (tmp_path / RULES).write_text(rules(QUICK, limits({})))
    (tmp_path / PROMETHEUS).write_text(prometheus_config(QUICK, Place(str(key))))
    said = check(promtool, "check", "config", tmp_path / PROMETHEUS)
    assert f"{len(all_alerts())} rules found" in said


def test_the_gateway_alone_is_asked_over_tls(tmp_path: Path) -> None:
    arguments = ["--server-name", "serving.example", "--output", str(tmp_path)]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    jobs = yaml.safe_load((tmp_path / PROMETHEUS).read_text())["scrape_configs"]
    assert [job["job_name"] for job in jobs if job.get("scheme") == "https"] == [INFERENCE_JOB]
    assert jobs[0]["tls_config"] == {
        "ca_file": "/etc/prometheus/ca.crt",
        "server_name": "serving.example",
    }
    promtool = program("promtool", "prometheus")
    check(promtool, "check", "config", "--syntax-only", tmp_path / PROMETHEUS)


def test_a_gateway_that_asks_for_certificates_is_shown_one(tmp_path: Path) -> None:
    asked = ["--client-certificate", "--output", str(tmp_path)]
    refused = CliRunner().invoke(main, asked)
    assert refused.exit_code == 2
    assert "needs --server-name" in refused.output
    done = CliRunner().invoke(main, [*asked, "--server-name", "serving.example"])
    assert done.exit_code == 0, done.output
    jobs = yaml.safe_load((tmp_path / PROMETHEUS).read_text())["scrape_configs"]
    assert [job["job_name"] for job in jobs if "tls_config" in job] == [INFERENCE_JOB]
    assert jobs[0]["tls_config"] == {
        "ca_file": "/etc/prometheus/ca.crt",
        "server_name": "serving.example",
        "cert_file": "/etc/prometheus/prometheus.crt",
        "key_file": "/etc/prometheus/prometheus.key",
    }
    promtool = program("promtool", "prometheus")
    check(promtool, "check", "config", "--syntax-only", tmp_path / PROMETHEUS)


def test_amtool_reads_whom_to_tell() -> None:
    amtool = program("amtool", "prometheus-alertmanager")
    assert "2 receivers" in check(amtool, "check-config", FOLDER / "alertmanager.yaml")


def test_what_a_release_says_hides_nothing_of_another() -> None:
    """The labels that the chart's rules give each alert."""
    told = yaml.safe_load((FOLDER / "alertmanager.yaml").read_text("utf-8"))
    groups = [row["group_by"] for row in (told["route"], *told["route"]["routes"])]
    for labels in (*groups, *(row["equal"] for row in told["inhibit_rules"])):
        assert PLACES.keys() <= set(labels)


def test_a_fault_of_all_endpoints_is_one_page() -> None:
    told = yaml.safe_load((FOLDER / "alertmanager.yaml").read_text("utf-8"))
    (pages,) = told["route"]["routes"]
    assert "endpoint" not in pages["group_by"]
    assert "endpoint" in told["route"]["group_by"]


@pytest.mark.parametrize(
    ("source", "target", "changes", "hides"),
    [
        ("EndpointNotReady", "GoldenRequestFails", {}, True),
        ("EndpointNotReady", "RequestErrorBudgetBurn", {}, True),
        ("EndpointNotReady", "LatencyBudgetBurn", {}, False),
        ("EndpointNotReady", "RequestErrorBudgetBurn", {"endpoint": "other"}, False),
        # Of what nobody is called for, no page is hidden.
        ("EndpointNotReady", "RequestErrorBudgetBurn", {"severity": "ticket"}, False),
        ("GoldenRequestFails", "EndpointNotReady", {}, False),
    ],
)
def test_what_nobody_serves_is_told_once(
    source: str, target: str, changes: dict[str, str], *, hides: bool
) -> None:
    told = yaml.safe_load((FOLDER / "alertmanager.yaml").read_text("utf-8"))
    page = {"severity": "page", "endpoint": "texts"}
    there, then = {**page, "alertname": source, **changes}, {**page, "alertname": target}
    found = [
        row
        for row in told["inhibit_rules"]
        if all(matches(one, there) for one in row["source_matchers"])
        and all(matches(one, then) for one in row["target_matchers"])
        and all(there.get(label) == then.get(label) for label in row["equal"])
    ]
    assert bool(found) == hides


def matches(matcher: str, labels: dict[str, str]) -> bool:
    """As Alertmanager has it: the whole of the value."""
    name, is_form, text = re.fullmatch(r'(\w+)=(~?)"(.+)"', matcher).groups()  # type: ignore[union-attr]
    return bool(re.fullmatch(text if is_form else re.escape(text), labels.get(name, "")))


def test_the_keys_file_is_where_compose_puts_the_secret() -> None:
    text = (FOLDER.parent / "monitoring.yaml").read_text("utf-8")
    (secret,) = yaml.safe_load(re.sub(r"!(override|reset)", "", text))["secrets"]
    assert f"/run/secrets/{secret}" == KEY_FILE


def test_grafana_asks_what_compose_starts() -> None:
    sources = yaml.safe_load((FOLDER / "grafana/datasources/prometheus.yaml").read_text("utf-8"))
    urls = {row["uid"]: row["url"] for row in sources["datasources"]}
    assert urls == {
        "prometheus": "http://prometheus:9090",
        "alertmanager": "http://alertmanager:9093",
    }
    assert sources["datasources"][0]["jsonData"]["timeInterval"] == f"{SCRAPE_S:g}s"
    assert EVALUATE_S <= SCRAPE_S


def keys_with(folder: Path) -> tuple[KnownKeys, str]:
    """Those of a file that `keys add` has made, and the one that opens figures."""
    file = folder / "keys.json"
    cli = str(Path(sys.executable).with_name("transformer-serving"))
    key = check(cli, "keys", "add", "prometheus", "--metrics", "--file", file).strip()
    known = keys_of({"TRANSFORMER_SERVING_KEYS_FILE": str(file)})
    assert known is not None
    return known, key


@contextmanager
def page(keys: KnownKeys | None) -> Iterator[str]:
    """The controller's page of a Triton that does not answer; its host:port."""
    shown = MetricsPage(None)
    shown.show([], time.time() - 1000, triton_ready=False)
    with served_figures(shown.text, keys) as address:
        yield address


@contextmanager
def prometheus(folder: Path, targets: dict[str, list[str]], key: str) -> Iterator[str]:
    """A Prometheus with our files, asking `targets`; its address."""
    (folder / "metrics_key").write_text(key)
    (folder / RULES).write_text(rules(QUICK, limits({})))
    place = Place(str(folder / "metrics_key"), targets=targets, alertmanagers=())
    (folder / PROMETHEUS).write_text(prometheus_config(QUICK, place))
    with running_prometheus(folder) as address:
        yield address


@contextmanager
def running_prometheus(folder: Path) -> Iterator[str]:
    """A Prometheus with the configuration that lies there; its address."""
    address = f"127.0.0.1:{free_port()}"
    command = [
        program("prometheus", "prometheus"), f"--config.file={folder / PROMETHEUS}",
        f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address={address}",
    ]  # fmt: skip
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait(60)


def until(value: Callable[[], Any]) -> Any:
    """The first value that is true; a connection that is refused is none."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            if found := value():
                return found
        except OSError:
            pass
        time.sleep(0.2)
    raise AssertionError("nothing came within two minutes")


def results(address: str, query: str) -> dict[str, float]:
    """The values of an instant query by instance, or by alert's name."""
    url = f"{address}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    with urllib.request.urlopen(url, timeout=30) as answer:
        rows = json.load(answer)["data"]["result"]
    return {
        row["metric"].get("alertname", row["metric"].get("instance", "")): float(row["value"][1])
        for row in rows
    }


@pytest.mark.slow
def test_prometheus_reads_the_page_with_and_without_keys(tmp_path: Path) -> None:
    """An empty file of a key is sent to a page that has no keys, and does no harm."""
    known, key = keys_with(tmp_path)
    for name, keys, sent in (("open", None, ""), ("locked", known, key)):
        folder = tmp_path / name
        folder.mkdir()
        with page(keys) as there, prometheus(folder, {ENGINE_JOB: [there]}, sent) as address:
            query = "transformer_serving_engine_triton_ready"
            assert until(partial(results, address, query)) == {there: 0.0}


@pytest.mark.slow
def test_alerts_fire_in_a_prometheus(tmp_path: Path) -> None:
    """Without its key one page is not read; the other one's Triton and control plane are gone."""
    known, _ = keys_with(tmp_path)
    with (
        page(None) as there,
        page(known) as locked,
        prometheus(tmp_path, {ENGINE_JOB: [there], INFERENCE_JOB: [locked]}, "") as address,
    ):
        firing = 'ALERTS{alertstate="firing"}'
        wanted = {"TritonNotReady", "SyncStale", "NoFigures", "ScrapeFails"}
        until(lambda: set(results(address, firing)) == wanted)
        assert set(results(address, "ALERTS")) == wanted
