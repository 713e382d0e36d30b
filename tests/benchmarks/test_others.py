"""Servers of others: how MLServer is told to batch, and which versions a peer's figures are of."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.runs import loads, session
from benchmarks.runs.results import Results
from benchmarks.runs.runners import Plan
from benchmarks.servers import environments, others
from benchmarks.servers.peers import MORE, PEERS
from benchmarks.servers.process import Child
from benchmarks.servers.running import Running
from benchmarks.servers.site import Site
from benchmarks.servers.table import SERVERS
from tests.benchmarks.test_everything import values
from tests.benchmarks.test_workers import quiet

_RECIPES = Path(others.__file__).parent.parent / "recipes"


def installed(build: Path, name: str, **versions: str) -> None:
    """An environment that has these packages."""
    folder = build / "venvs" / name / "lib" / "python3.11" / "site-packages"
    for package, version in versions.items():
        about = folder / f"{package}-{version}.dist-info" / "METADATA"
        about.parent.mkdir(parents=True)
        about.write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(environments, "BUILD", tmp_path)
    installed(tmp_path, "mlserver", mlserver="1.7.1", torch="2.7.1", requests="2.32.4")
    return tmp_path


def test_every_peer_has_its_server() -> None:
    assert {peer.server for peer in PEERS.values() if peer.server} <= set(SERVERS)


def test_mlserver_is_measured_as_it_comes_and_batching(tmp_path: Path) -> None:
    def told(name: str, *, batches: bool) -> Any:
        folder = others.mlserver_folder(tmp_path / name, tmp_path, (1, 2, 3), batches=batches)
        return json.loads((folder / "transformer" / "model-settings.json").read_text())

    usual, batching = told("usual", batches=False), told("batching", batches=True)
    limits = {"max_batch_size": 64, "max_batch_time": 0.001}
    assert batching == {**usual, **limits}
    assert not usual.keys() & limits.keys()
    recipe = (_RECIPES / "queue_app.py").read_text()
    assert "_MOST = 64\n" in recipe
    assert "_WAIT_S = 0.001\n" in recipe
    both = {peer.name for peer in MORE if peer.name.startswith("mlserver")}
    assert both == {"mlserver", "mlserver-batched"}
    for load in loads.LOADS.values():
        assert load.takes(PEERS["mlserver-batched"]) == load.takes(PEERS["mlserver"])


def test_the_versions_are_those_of_the_peers_own_environment(build: Path) -> None:
    assert environments.versions("mlserver") == {"mlserver": "1.7.1", "torch": "2.7.1"}
    assert environments.versions("litserve") == {}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    found = SimpleNamespace(models=None, work=tmp_path, processes=dict)
    monkeypatch.setattr(session, "open_site", lambda *given, **options: found)
    monkeypatch.setattr(session, "close_site", lambda site: None)
    return found


def test_a_run_stores_them_of_whom_it_started(
    build: Path, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def started(site: Site, report: Any) -> Running:
        child = Child("mlserver", [sys.executable, "-c", ""], build / "log")
        return Running("http://127.0.0.1:9", (child,), lent=True, environment="mlserver")

    monkeypatch.setitem(SERVERS, "mlserver", started)
    plan = Plan(idle_within_s=0.0)
    with session.session([PEERS["mlserver"]], plan, quiet, by_ab=False) as opened:
        assert opened.around["environments"] == {
            "mlserver": {"mlserver": "1.7.1", "torch": "2.7.1"}
        }


def test_a_table_says_them_and_of_a_run_of_before_nothing() -> None:
    older = Results(values()).provenance()
    assert "environments" not in older
    newer = {**values(), "environments": {"mlserver": {"mlserver": "1.7.1", "torch": "2.7.1"},
                                          "recipes": {}}}  # fmt: skip
    said = Results(newer).provenance()
    assert "; in environments of their own mlserver (mlserver 1.7.1, torch 2.7.1); load" in said
    assert "recipes" not in said
