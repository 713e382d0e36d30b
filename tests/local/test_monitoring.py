"""Prometheus beside a stack: what it is told of the stack's settings, as promtool reads it."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from tests.monitoring.test_scrapes import check, program
from transformer_serving.contract.keys import VARIABLE as KEYS_VARIABLE
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.http import METRICS_KEY_VARIABLE
from transformer_serving.desk.local import monitoring
from transformer_serving.desk.local.record import (
    MONITORING,
    Ports,
    StackRecord,
    load_record,
    save_record,
)
from transformer_serving.desk.monitoring.rules import all_alerts

RECORD = StackRecord(Ports.from_base(20_000), "a", "s", monitoring=MONITORING)


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of programs alone: nothing is started here."""
    monkeypatch.setattr(monitoring, "program", lambda part: f"/usr/bin/{part}")


def test_the_rules_and_pages_are_those_of_the_stack(tmp_path: Path) -> None:
    environment = {"TRANSFORMER_SERVING_MAX_WAIT_S": "7"}
    monitoring.write_key(tmp_path, environment)
    config = monitoring.write_files(tmp_path, RECORD, environment)
    text = yaml.safe_load(config.read_text())
    targets = [job["static_configs"][0]["targets"] for job in text["scrape_configs"]]
    assert targets == [["127.0.0.1:20000"], ["127.0.0.1:20003"]]
    assert text["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"] == [
        "127.0.0.1:20005"
    ]
    assert "> 0.6 * 7\n" in (config.parent / "rules.yaml").read_text()
    said = check(program("promtool", "prometheus"), "check", "config", config)
    assert f"{len(all_alerts())} rules found" in said
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in config.parent.iterdir())


def test_how_often_the_stack_looks_is_no_setting_of_the_environment(tmp_path: Path) -> None:
    environment = {"CLEARML_SERVING_POLL_FREQ": "often", "CLEARML_TRITON_POLL_FREQ": "60"}
    assert monitoring.chosen(environment) == MONITORING
    config = monitoring.write_files(tmp_path, RECORD, environment)
    text = (config.parent / "rules.yaml").read_text()
    assert text.count("> 150 * 0.03333\n") == 2


def test_without_an_alertmanager_nobody_is_told(tmp_path: Path) -> None:
    alone = replace(RECORD, monitoring=MONITORING[:1])
    monitoring.write_key(tmp_path, {})
    config = monitoring.write_files(tmp_path, alone, {})
    check(program("promtool", "prometheus"), "check", "config", config)
    text = yaml.safe_load(config.read_text())
    assert text["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"] == []


def test_what_is_stored_is_bounded_and_nobody_else_may_read_it(tmp_path: Path) -> None:
    command = monitoring.prometheus_command(tmp_path, RECORD)
    assert "--web.listen-address=127.0.0.1:20004" in command
    assert f"--storage.tsdb.retention.size={monitoring.KEPT_BYTES}" in command
    assert stat.S_IMODE((tmp_path / "monitoring" / "prometheus").stat().st_mode) == 0o700


def test_who_is_told_is_the_operators(tmp_path: Path) -> None:
    command = monitoring.alertmanager_command(tmp_path, RECORD)
    assert "--web.listen-address=127.0.0.1:20005" in command
    config = tmp_path / "monitoring" / "alertmanager.yaml"
    assert "2 receivers" in check(
        program("amtool", "prometheus-alertmanager"), "check-config", config
    )
    config.write_text("mine")
    monitoring.alertmanager_command(tmp_path, RECORD)
    assert config.read_text() == "mine"


def test_a_gateway_with_keys_needs_one_for_its_figures(tmp_path: Path) -> None:
    keys = {KEYS_VARIABLE: "keys.json"}
    with pytest.raises(Failure, match="keys add NAME --metrics"):
        monitoring.chosen(keys)
    with_key = {**keys, METRICS_KEY_VARIABLE: "ts_key"}
    assert monitoring.chosen(with_key) == MONITORING
    monitoring.write_key(tmp_path, with_key)
    assert (tmp_path / "monitoring" / "metrics_key").read_text() == "ts_key"


def test_a_limit_that_is_none_is_named_before_anything_starts() -> None:
    with pytest.raises(Failure, match="TRANSFORMER_SERVING_MAX_WAIT_S must be a number from 0.001"):
        monitoring.chosen({"TRANSFORMER_SERVING_MAX_WAIT_S": "many"})


def test_only_what_runs_takes_ports(tmp_path: Path) -> None:
    assert set(RECORD.listening()) - set(replace(RECORD, monitoring=()).listening()) == set(
        MONITORING
    )
    save_record(tmp_path, RECORD)
    assert load_record(tmp_path) == replace(RECORD, sockets=load_record(tmp_path).sockets)  # type: ignore[union-attr]
