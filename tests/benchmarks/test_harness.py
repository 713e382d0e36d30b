"""The whole harness from end to end with a handful of requests, on real servers and engines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.report import growth_points, plots, tables as report
from benchmarks.report.budget_tables import budgets_text
from benchmarks.report.budgets import BUDGETS
from benchmarks.report.growth_points import Place
from benchmarks.runs import session
from benchmarks.runs.loads import BATCH, MIXED, PACED, SEED, SINGLE
from benchmarks.runs.results import Results
from benchmarks.runs.runners import Plan
from benchmarks.runs.session import Session
from benchmarks.servers import peers, table as servers, texts
from benchmarks.servers.models import Models
from benchmarks.servers.peers import PEERS, Peer
from benchmarks.servers.process import Child, Unusable
from benchmarks.servers.running import Running
from benchmarks.servers.site import Site
from benchmarks.studies import curves
from benchmarks.studies.bundles import Bundles
from benchmarks.studies.growth import Growth
from benchmarks.studies.overload import Overload
from transformer_serving.desk.bundle.folder import open_bundle
from transformer_serving.desk.demo import CLASSIFIER, build_demo_models
from transformer_serving.desk.step_report import StepReport

pytestmark = [pytest.mark.long, pytest.mark.by_hand]

ROOT = Path(__file__).parent.parent.parent
SMALL = Plan(seconds=0.2, rounds=2, warm_up_s=0.2, idle_within_s=4.0)
LOADS = [
    replace(load, clients=min(load.clients, 8)) for load in (SEED, SINGLE, BATCH, MIXED, PACED)
]
BROKEN = Peer("broken", "a peer that cannot run", peers.TORCH, "peer", "broken", "/")
CHOSEN = [
    *(PEERS[name] for name in ("gateway", "app", "stock", "raw", "empty")),
    *(PEERS[name] for name in ("null-gateway", "gateway-v2", "gateway-tei")),
    *(PEERS[name] for name in ("triton", "null-triton", "empty-gateway")),
    BROKEN,
]


def start_broken(site: Site, report: StepReport) -> Running:
    command = ["bash", "-c", "echo the reason it gives; exit 3"]
    child = Child("broken", command, site.work / "broken.log")
    child.start()
    child.wait_until("http://127.0.0.1:9/")
    raise AssertionError("it answered")


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """All servers, on the demo's own bundle: nothing is trained or converted for the test."""
    demo = ROOT / "build" / "demo"
    build_demo_models(demo, precision=None, report=lambda line: None)
    models = Models(demo, {"openvino": open_bundle(demo / CLASSIFIER)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(servers.SERVERS, "broken", start_broken)
        work = tmp_path_factory.mktemp("bench")
        with session.session(CHOSEN, SMALL, print, work, models) as running:
            yield running


@pytest.fixture(scope="module")
def measured(opened: Session, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """A run as it is stored and read again."""
    found = session.measure(opened, CHOSEN, LOADS, print, kind="bench")
    path = tmp_path_factory.mktemp("results") / "bench.json"
    found.write(path)
    return Results.read(path)


def test_every_peer_is_measured_under_every_load_that_it_takes(measured: Results) -> None:
    for load in LOADS:
        wanted = {peer.name for peer in CHOSEN if load.takes(peer) and peer is not BROKEN}
        assert {row.name for row in measured.measured(load.name)} == wanted
        for name in wanted:
            series = measured.series(name, load.name)
            assert len(series) == SMALL.rounds
            assert all(value is not None and value > 0 for value in series), (name, load.name)
            assert measured.series(name, load.name, "failed") == [0] * SMALL.rounds


def test_triton_alone_is_asked_with_as_many_tokens(opened: Session) -> None:
    assert opened.runner.texts_by_length().count(texts.SEED) == texts.SEED_TOKENS


def test_what_a_figure_depends_on_is_stored(measured: Results) -> None:
    values = measured.values
    assert values["machine"]["cores"] >= 1
    assert values["versions"]["clearml-serving"] == "1.3.5"
    assert values["plan"]["rounds"] == SMALL.rounds
    assert values["date"].endswith("UTC")
    assert values["commit"]
    assert measured.memory("gateway")


def test_a_peer_that_cannot_run_is_named_with_its_error(measured: Results) -> None:
    assert measured.failed == {"broken": "broken ended at its start: the reason it gives"}
    assert "the reason it gives" in report.performance_text(measured)


def test_the_mixed_load_is_split_by_length(measured: Results) -> None:
    """How many classes a short run reaches depends on the machine."""
    names = [f"to {high} tokens" for high in (16, 32, 64, 128, 256)]
    found = list(measured.classes("gateway"))
    assert found
    assert [name for name in names if name in found] == found


def test_the_tables_hold_the_measured_figures(measured: Results) -> None:
    text = report.performance_text(measured)
    seed = measured.spread("gateway", "seed")
    assert seed is not None
    # Its rounds are brief, and a figure of such ones is marked.
    assert f"| {seed.median:.0f}{report.SHORT} | ± {seed.share:.0%} |" in text
    judged = budgets_text({"bench": measured})
    assert all(budget.text in judged for budget in BUDGETS)
    assert "not measured" in judged  # the recipes are not in this run
    assert "needs 7 rounds" in judged
    for part in ("cpu_us", "triton_us", "engine_us", "load_us"):
        spent = measured.series("gateway", "seed", part)
        assert all(value is not None and value > 0 for value in spent), part
    short = report.readme_text(measured)
    assert "clearml-serving's own example" in short
    assert "ours, unmodified app" not in short
    assert "none (zeros)" not in short


def test_the_pictures_are_drawn(measured: Results, tmp_path: Path) -> None:
    written = plots.draw(measured, tmp_path)
    assert {path.suffix for path in written} == {".svg", ".png"}
    assert {path.stem for path in written} >= {"throughput-seed", "mixed-gateway"}
    assert all(path.stat().st_size > 1000 for path in written)


def test_a_curve_and_an_overload_are_measured(opened: Session) -> None:
    base = opened.servers["gateway"].base
    curve = curves._curves(opened.runner.texts_by_length())[1]
    short = replace(curve, points=curve.points[:2])
    processes = curves._serving_processes(opened)
    found = curves._measured(short, base, processes, SMALL.seconds, print)
    assert [point["at"] for point in found["points"]] == [1, 2]
    assert all(point["texts"] > 0 and point["memory_mib"] > 100 for point in found["points"])
    over = Overload(1.0, engines=(80,), real=False)(opened, print)
    assert [row["engine"] for row in over["rows"]] == ["sleeps, 80 texts/s"] * 2
    assert all(row["statuses"]["200"] > 0 and row["statuses"]["503"] > 0 for row in over["rows"])
    for row in over["rows"]:
        # What was let in by its own deadline may be late all the same.
        late = {"504"} if row["deadline"] == "2 s" else set()
        assert set(row["statuses"]) <= {"200", "503"} | late, row
    assert over["leaving"]["come again at once"]["leavers"]["no answer"] > 0
    assert [row["times"] for row in over["abandoned"]] == [1.5, 4.0]


def test_a_growth_is_measured(opened: Session) -> None:
    base = Place(clients=8)
    places = (
        base, replace(base, endpoints=2, served=3), replace(base, workers=2),
        replace(base, tritons=2), replace(base, busy=0.65),
    )  # fmt: skip
    found = Growth(1, 0.5, places)(opened, print)
    points = growth_points.read(json.loads(json.dumps(found["points"])))
    assert tuple(points) == places
    for point in points.values():
        assert all(point.figure(f"{part}_us").median > 0 for part in growth_points.PARTS)
        assert point.figure("texts_a_call").median >= 1
        assert point.figure("not_200").median == 0
        assert point.in_flight > 0
    assert len(found["idle"]) == len(found["memory"]) == 4
    assert all(row["worker_mb"] > 50 for row in found["memory"])


def test_bundles_are_measured_beside_each_other(opened: Session) -> None:
    folder = opened.site.models.bundles["openvino"].folder
    study = Bundles({"first": folder, "second": folder}, (SINGLE,), rounds=2)
    found = study(opened, print)
    assert list(found) == ["single"]
    assert list(found["single"]) == ["first", "second"]
    first, second = found["single"]["first"], found["single"]["second"]
    assert first["times"] == {"median": 1.0, "lower": 1.0, "upper": 1.0}
    assert second["texts"]["median"] > 0
    assert second["times"]["lower"] <= second["times"]["median"] <= second["times"]["upper"]


def test_a_process_that_does_not_answer_is_given_up(tmp_path: Path) -> None:
    child = Child("silent", ["sleep", "60"], tmp_path / "silent.log")
    child.start()
    try:
        with pytest.raises(Unusable, match="silent did not answer within 1 s"):
            child.wait_until("http://127.0.0.1:9/", limit_s=1)
    finally:
        child.stop()
    assert child.tree() == []
