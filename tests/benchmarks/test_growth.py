"""The study of growth: its model, its tables and pictures, from points that a known model made."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from benchmarks.report import growth_model, growth_needs, growth_plots, growth_tables
from benchmarks.report.growth_model import Cost, Model, crowd, crowd_of, fitted
from benchmarks.report.growth_points import (
    CHECKED,
    FITTED,
    PACED,
    PLACES,
    SERIES,
    SERVING,
    Place,
    Point,
    of_series,
    read,
    stored,
)
from benchmarks.runs.processor_samples import ProcessorSamples
from benchmarks.runs.results import Results
from benchmarks.studies.growth import closed

KNOWN = Model(
    0.5,
    51,
    {"worker": Cost(180.0, 240.0), "triton": Cost(20.0, 110.0), "engine": Cost(5.0, 60.0)},
    0.1,
    1.3,
)
LOAD_US = 90.0


def found(place: Place, scale: float = 1.0) -> dict[str, float]:
    """What a round stores where KNOWN is true; `scale` is how far it is beside that."""
    in_flight = float(place.clients)
    row = {"per_s": 3000.0, "mean_ms": in_flight / 3.0, "p50_ms": 40.0, "p99_ms": 80.0}
    row |= {
        "not_200": 0.0,
        "texts_a_call": KNOWN.texts(crowd(place, in_flight)),
        "load_us": LOAD_US,
    }
    for part in SERVING:
        row[f"{part}_us"] = scale * KNOWN.us(part, crowd(place, in_flight))
    return row


def points() -> dict[Place, Point]:
    return read([stored(place, [found(place, at) for at in (0.9, 1.0, 1.2)]) for place in PLACES])


def results() -> Results:
    gateways = dict.fromkeys(place.gateway for place in PLACES)
    memory = {1: 150.0, 50: 210.0}
    return Results({
        "kind": "growth", "date": "2026-01-02 03:04 UTC", "commit": "abc", "triton": "2.51.0",
        "machine": {"cpu": "a CPU", "cores": 2, "features": [], "memory_gib": 8.0,
                    "load_before": 0.1},
        "versions": {"python": "3.11.7"}, "plan": {"rounds": 3, "seconds": 1.5}, "loads": {},
        "peers": [], "figures": [], "classes": {}, "memory_mib": {}, "failed": {},
        "growth": {
            "texts_a_second": 8400, "seconds": 1.5, "rounds": 3, "most_texts": 51,
            "loads": [2.5, 4.0],
            "points": [stored(point.place, point.rounds) for point in points().values()],
            "idle": [
                {"workers": key[0], "served": key[1], "tritons": key[2], "worker_ms": 4.0,
                 "triton_ms": 1.0, "engine_ms": 0.5} for key in gateways
            ],
            "memory": [
                {"workers": key[0], "served": key[1], "tritons": key[2],
                 "worker_mb": memory[key[1]]} for key in gateways
            ],
        },
    })  # fmt: skip


def test_each_quantity_grows_as_far_as_it_is_asked_for() -> None:
    def reach(name: str) -> tuple[int, int]:
        values = [getattr(place, name) for place in SERIES[name]]
        return min(values), max(values)

    assert reach("clients") == (8, 512)
    assert reach("endpoints") == (1, 50)
    assert reach("workers") == (1, 8)
    assert not {place for name in FITTED for place in SERIES[name]} & {
        place for name in CHECKED for place in SERIES[name]
    }
    for place in PLACES:
        assert place.endpoints <= place.served
        # An open loop has a rate to take a share of, and asks one endpoint.
        if place.busy:
            assert closed(place) in PLACES
            assert place.endpoints == 1


@settings(max_examples=10)
@given(
    joining=st.floats(0.1, 0.9), fixed=st.floats(20, 400), call=st.floats(20, 400),
    seed=st.integers(0, 9),
)  # fmt: skip
def test_a_known_model_is_found_again(joining: float, fixed: float, call: float, seed: int) -> None:
    known = Model(joining, 51, dict.fromkeys(SERVING, Cost(fixed, call, 20.0)))
    noise = random.Random(seed)
    made = []
    for place in (place for name in FITTED for place in SERIES[name]):
        at = crowd(place, place.clients)
        row = {"texts_a_call": known.texts(at) * noise.uniform(0.99, 1.01)}
        row |= {
            f"{part}_us": known.us(part, at, place.workers) * noise.uniform(0.99, 1.01)
            for part in SERVING
        }
        made.append(Point(place, [row]))
    model = fitted(made, [], 51)
    assert model.joining == pytest.approx(joining, rel=0.06)
    _, most = growth_model.size(growth_model.errors(model, made))
    assert most < 0.05


def test_the_median_of_the_rounds_is_what_counts() -> None:
    model = fitted(of_series(points(), FITTED), of_series(points(), PACED), 51)
    for part, cost in KNOWN.costs.items():
        assert model.costs[part].fixed == pytest.approx(cost.fixed, rel=0.05)
        assert model.costs[part].call == pytest.approx(cost.call, rel=0.05)


def test_of_three_points_no_model_is_made() -> None:
    with pytest.raises(ValueError, match="four points, there are 3"):
        fitted(list(points().values())[:3], [], 51)


def test_an_open_loops_clients_are_those_under_way() -> None:
    place = Place(busy=0.65)
    point = Point(place, [{"per_s": 2000.0, "mean_ms": 10.0}])
    assert point.in_flight == pytest.approx(20.0)
    assert crowd_of(point) == pytest.approx(20.0)
    assert closed(place) == Place()


@given(endpoints=st.integers(1, 60), latency=st.floats(0.001, 0.5))
def test_what_a_rate_needs_is_enough_and_not_more(endpoints: int, latency: float) -> None:
    def busy(workers: int) -> float:
        place = Place(endpoints=endpoints, workers=workers)
        return 1e5 * KNOWN.us("worker", crowd(place, 1e5 * latency), is_paced=True) / 1e6 / workers

    wanted = growth_needs.needs(KNOWN, 1e5, latency, endpoints)
    assert busy(wanted.workers) <= growth_needs.WORKER_BUSY
    assert busy(wanted.workers - 1) > growth_needs.WORKER_BUSY
    assert wanted.most_workers >= 1.1 * wanted.workers
    assert wanted.calls_a_triton == 2 * endpoints * wanted.most_workers


def test_the_tables_say_what_was_found() -> None:
    text = growth_tables.text({"growth": results()})
    us = KNOWN.us("worker", 128.0)
    assert f"| 128 | {us:.0f} ({0.9 * us:.0f} to {1.2 * us:.0f}) |" in text
    for title in ("Clients", "Endpoints", "Workers", "Tritons", "Nobody asks", "The model"):
        assert f"### {title}\n" in text
    assert "### 100,000 requests a second\n" in text
    assert "Load 2.5 to 4 when the rounds began" in text
    assert "| gateway | 180 | 240 |" in text
    assert "no stored `make bench`" in text
    assert "8,400 texts a second each, at 70%" in text
    assert "| 17 |" in text


def of_an_engine(engine_us: float, engine: str, **machine: Any) -> Results:
    """A run in which an engine computed, on a machine that differs in this."""
    of_growth = results().values
    return Results({
        **of_growth, "date": f"the day of {engine_us:g}", "growth": None,
        "machine": {**of_growth["machine"], **machine},
        "peers": [{"name": "gateway", "title": "ours", "engine": engine, "kind": "ours",
                   "computes": True}],
        "figures": [{"peer": "gateway", "load": "seed",
                     "rounds": [{"texts": 100.0, "engine_us": engine_us}]}],
    })  # fmt: skip


def test_an_engine_on_the_cpu_is_of_the_studys_own_processor() -> None:
    other = of_an_engine(1200.0, "OpenVINO bf16", cpu="a fast CPU", features=["amx_tile"])
    own = of_an_engine(5700.0, "OpenVINO fp32")
    text = growth_tables.text({"growth": results(), "bench": other, "bench-all": own})
    assert (
        "| 5,700 µs of processor a text in the engine, OpenVINO fp32 on a CPU (none of AVX2, "
        "AVX-512, AMX), by `make bench-all` of the day of 5700 | 570 cores busy"
    ) in text
    assert "2.26 of CPU Tritons" in text
    assert "1,200" not in text


def test_an_engine_of_another_processor_is_named_with_it() -> None:
    other = of_an_engine(1200.0, "OpenVINO bf16", cpu="a fast CPU", features=["amx_tile"])
    text = growth_tables.text({"growth": results(), "bench": other})
    assert (
        "1,200 µs of processor a text in the engine, OpenVINO bf16 on a fast CPU (amx_tile), by "
        "`make bench` of the day of 1200 |"
    ) in text


def test_a_run_that_did_not_measure_it_says_no_more_than_its_origin() -> None:
    empty = Results({**results().values, "growth": None})
    assert growth_tables.text({"growth": empty}) == empty.provenance()
    assert growth_tables.text({}) == ""


def test_pictures_are_drawn(tmp_path: Path) -> None:
    names = [path.name for path in growth_plots.draw(results(), tmp_path)]
    assert names == [
        "curve-growth.svg", "curve-growth.png", "curve-growth-model.svg", "curve-growth-model.png",
    ]  # fmt: skip
    assert all(path.stat().st_size > 10_000 for path in tmp_path.iterdir())


def test_processor_time_is_of_the_stretch_that_is_asked_for() -> None:
    with ProcessorSamples({"own": [os.getpid()], "nobody": []}, every_s=0.005) as samples:
        begun = time.monotonic()
        spent = time.process_time()
        while time.process_time() < spent + 0.1:
            pass
        ended = time.monotonic()
    stretch = samples.between(begun, ended)
    assert stretch is not None
    (first, before), (last, after) = stretch
    assert begun <= first < last <= ended
    assert 0 < after["own"] - before["own"] <= time.process_time()
    assert after["nobody"] == 0.0
    assert samples.between(ended + 10, ended + 11) is None
