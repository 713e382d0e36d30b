"""`up --monitoring` beside a stack that runs: Prometheus and Alertmanager as parts of it."""

from __future__ import annotations

import json
import shutil
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.engine.triton_server import wait_until
from tests.stack.conftest import Stack, started
from transformer_serving.desk.local.leftovers import leftovers
from transformer_serving.desk.local.record import MONITORING, require_record
from transformer_serving.desk.monitoring.alerts import ENGINE_JOB, INFERENCE_JOB
from transformer_serving.desk.monitoring.rules import all_alerts

pytestmark = [pytest.mark.long, pytest.mark.spare]


def asked(address: str, path: str, **query: str) -> Any:
    url = f"http://{address}{path}?{urllib.parse.urlencode(query)}"
    with urllib.request.urlopen(url, timeout=30) as answer:
        return json.load(answer)["data"]


def test_it_joins_a_stack_that_runs_and_leaves_with_it(tmp_path: Path) -> None:
    if not (shutil.which("prometheus") and shutil.which("prometheus-alertmanager")):
        pytest.skip("Debian has them in the packages prometheus and prometheus-alertmanager")
    with started(tmp_path / "state") as stack:
        before = stack.parts()
        assert not before.keys() & set(MONITORING)
        said = stack.run("up", "--monitoring")
        parts = stack.parts()
        assert {name: parts[name]["pid"] for name in before} == {
            name: row["pid"] for name, row in before.items()
        }
        for offset, name in enumerate(MONITORING, start=4):
            row = parts[name]
            assert (row["health"], row["address"]) == ("ok", f"127.0.0.1:{stack.base + offset}")
            assert row["version"]
            listens = [
                one.laddr
                for one in psutil.Process(row["pid"]).net_connections("inet")
                if one.status == psutil.CONN_LISTEN
            ]
            assert listens == [("127.0.0.1", stack.base + offset)]
        page = f"http://127.0.0.1:{stack.base + 4}/alerts"
        assert page in said
        assert page in stack.run("status")
        watched(stack, parts["prometheus"]["address"])
        assert "127.0.0.1" in stack.run("logs", "prometheus")
    assert not list(leftovers(stack.state))
    # The next one is without them, and who is told is kept.
    assert (stack.state / "monitoring" / "alertmanager.yaml").exists()
    again = Stack(stack.state, stack.base)
    try:
        again.run("up")
        assert require_record(stack.state).monitoring == ()
        assert not again.parts().keys() & set(MONITORING)
    finally:
        again.run("down")


def watched(stack: Stack, address: str) -> None:
    """Both pages are read, the rules are there, and Alertmanager is whom it tells."""

    def up() -> dict[str, str]:
        found = asked(address, "/api/v1/query", query="up")["result"]
        return {row["metric"]["job"]: row["value"][1] for row in found}

    wait_until(lambda: up() == {INFERENCE_JOB: "1", ENGINE_JOB: "1"}, 120, up)
    groups = asked(address, "/api/v1/rules")["groups"]
    assert sum(len(group["rules"]) for group in groups) == len(all_alerts())
    told = asked(address, "/api/v1/alertmanagers")["activeAlertmanagers"]
    assert [row["url"] for row in told] == [f"http://127.0.0.1:{stack.base + 5}/api/v2/alerts"]
