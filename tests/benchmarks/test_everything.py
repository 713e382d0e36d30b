"""The documents and pictures of `make bench-all`, from a stored run made by hand."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from matplotlib import pyplot

from benchmarks.__main__ import main
from benchmarks.report import budgets, curve_points, overload_tables, plots, tables as report
from benchmarks.runs.results import Results
from transformer_serving.desk.failure import Failure

POINT = {"p50": 1.0, "p99": 4.0, "cpu_ms": 0.5, "memory_mib": 300.0, "not_200": 0.0}

OVERLOAD: dict[str, Any] = {
    "times": 4.0, "seconds": 60.0,
    "rows": [
        {"engine": "real", "deadline": "none", "capacity": 900.0, "offered": 3600.0, "least": 0.94,
         "wanted": 0.85, "statuses": {"200": 100, "503": 66}, "p50": 1900.0, "p99": None,
         "refused_p99": 12.0, "drained_s": 1.8, "after_ms": 9.0, "refusal_us": 200.0,
         "generator_cpu": 0.5},
    ],
    "leaving": {
        "capacity": 300.0,
        "nobody": {"texts": 300.0, "refused": 0, "leavers": {}},
        "come again at once": {"texts": 280.0, "refused": 3, "leavers": {"no answer": 9}},
    },
    "abandoned": [
        {"times": 4.0, "seconds": 15.0, "next_s": 1.25,
         "statuses": {"200": 10, "503": 20, "no answer": 30}},
    ],
}  # fmt: skip


def values() -> dict[str, Any]:
    figures = {"p50": 2.0, "p90": 3.0, "p99": 4.0, "failed": 0, "texts_a_call": 6.0}
    ours = {**figures, "texts": 900.0, "stages_ms": {"tokenize": 0.1, "queue": 2.0, "infer": 5.0}}
    theirs: dict[str, Any] = {**figures, "texts": 300.0, "stages_ms": {}, "texts_a_call": None}
    return {
        "kind": "bench-all", "date": "2026-01-02 03:04 UTC", "commit": "abc", "triton": "2.51.0",
        "machine": {"cpu": "a CPU", "cores": 2, "features": [], "memory_gib": 8.0,
                    "load_before": 0.1},
        "versions": {"python": "3.11.7"}, "plan": {"rounds": 2, "seconds": 2.0},
        "loads": {"seed": "one text"},
        "peers": [
            {"name": "gateway", "title": "ours, gateway", "engine": "OpenVINO bf16",
             "kind": "ours", "computes": True},
            {"name": "litserve", "title": "LitServe", "engine": "PyTorch fp32", "kind": "peer",
             "computes": True},
        ],
        "figures": [
            {"peer": "gateway", "load": "seed", "rounds": [ours, ours]},
            {"peer": "litserve", "load": "seed", "rounds": [theirs, None]},
        ],
        "classes": {}, "memory_mib": {}, "failed": {"mlserver": "it | ended\n at its start"},
        "two_endpoints": {"one": [800.0, 820.0], "two": [700.0, 720.0]},
        "overload": OVERLOAD,
        "curves": {
            "batch": {"title": "Texts a request", "axis": "texts",
                      "points": [{"at": at, "texts": 100.0 * at, **POINT} for at in (1, 2, 4)]},
            "endpoints": {"title": "none were measured", "axis": "endpoints", "points": []},
        },
    }  # fmt: skip


def test_an_overload_has_no_rounds() -> None:
    """Each of its loads is measured once, and says how long."""
    text = overload_tables.alone_text(Results({**values(), "kind": "overload"}))
    assert "; load 0.1 before.\n\n### 4 times more" in text
    assert "rounds" not in text


def test_every_part_of_the_text_is_there() -> None:
    text = report.everything_text(Results(values()))
    assert (
        "| LitServe | PyTorch fp32 | 300 | ± 0% | - | 2.0 | 4.0 | 3.00 times | 3.00 times |" in text
    )
    assert "| real | none | 3600 | 900 | 846 | 0.94 | ≥ 0.85 | 1900 | - | 66 | 0 | 12 |" in text
    assert "| come again at once | 280 | 0.93 | 3 |" in text
    assert "| 4 | 15 | 10 | 20 | 30 | 1.25 |" in text
    assert "| two, 32 clients each | 710 |" in text
    assert "plots/curve-batch.png" in text
    assert "curve-endpoints" not in text
    assert "- mlserver: it \\| ended at its start" in text


def test_times_of_measurements_with_many_refusals_are_not_shown() -> None:
    """They are of refusals too, which come at once; what else is stored of such a round counts."""
    stored = values()
    ours, theirs = stored["figures"]
    base = {**ours["rounds"][0], "requests": 1000, "cpu_us": 400.0, "load_us": 100.0}
    refused = {**base, "failed": 250, "p50": 0.5, "p99": 0.6, "cpu_us": 90.0, "load_us": 30.0}
    ours["rounds"] = [base, refused]
    theirs["rounds"] = [{**refused, "texts": 300.0}, None]
    found = Results(stored)
    assert found.series("gateway", "seed", "p50") == [2.0, None]
    assert found.series("gateway", "seed", "cpu_us") == [400.0, None]
    assert found.series("gateway", "seed") == [900.0, 900.0]
    text = report.everything_text(found)
    assert "| ours, gateway | OpenVINO bf16 | 900 | ± 0% | 12 % | 2.0 | 4.0 |  |  |" in text
    assert "| LitServe | PyTorch fp32 | 300 | ± 0% | 25 % | - | - | 3.00 times |" in text
    assert "| ours, gateway | OpenVINO bf16 | 400 | - | - | 100 | 500 | - |" in report.cpu_table(
        found
    )
    assert "LitServe" not in report.cpu_table(found)
    # As many as a disturbed moment costs.
    ours["rounds"] = [{**base, "failed": 10}]
    assert Results(stored).series("gateway", "seed", "p50") == [2.0]
    assert "| ± 0% | 1 % | 2.0 | 4.0 |" in report.everything_text(Results(stored))
    assert found.values["figures"][1]["rounds"][0]["p50"] == 0.5


@pytest.mark.parametrize(
    ("requests", "rate"), [(170, 100.0), (383, 100.0), (899, 900.0)], ids=["burst", "turns", "time"]
)
def test_a_row_of_short_rounds_is_marked_wherever_it_stands(requests: int, rate: float) -> None:
    """Of 128 clients, in rounds of 2 s; one round that is short is among the bounds."""
    stored = values()
    stored["peers"][1] |= {"name": "stock-ort", "title": "the example"}
    stored["figures"][1]["peer"] = "stock-ort"
    ours, theirs = stored["figures"]
    ours["rounds"] = [{**one, "requests": 900, "rate": 900.0, "cpu_us": 4.0}
                      for one in ours["rounds"]]  # fmt: skip
    whole = {**ours["rounds"][0], "requests": 384, "rate": 300.0, "texts": 300.0}
    theirs["rounds"] = [whole, whole]
    found = Results(stored)
    assert report.SHORT not in report.everything_text(found) + report.readme_text(found)
    assert not any(one.short for one in budgets.judge({budgets.BENCH: found}))
    theirs["rounds"] = [whole, {**whole, "requests": requests, "rate": rate}]
    found = Results(stored)
    assert "| 300 (short) | ± 0% | - | 2.0 | 4.0 | 3.00 times (short) |" in report.everything_text(
        found
    )
    assert "| ours, gateway | OpenVINO bf16 | 900 | ± 0% | - |" in report.everything_text(found)
    assert "the example (PyTorch fp32) (short)" in report.stage_table(found)
    assert "| the example (short) |" in report.cpu_table(found)
    for text in (report.everything_text(found), report.stage_table(found), report.cpu_table(found)):
        assert "\n\nshort: of rounds of less than half the time" in text
    words = {one.word for one in budgets.judge({budgets.BENCH: found}) if one.short}
    assert words == {"needs 7 rounds"}
    [verdict] = [one for one in budgets.judge({budgets.BENCH: found}) if one.short]
    enough = replace(verdict, budget=replace(verdict.budget, rounds=2))
    assert enough.word == "met, of short rounds"


def test_readmes_cells_are_marked_too() -> None:
    stored = values()
    stored["peers"][1]["name"] = "stock"
    ours, theirs = stored["figures"]
    ours["rounds"] = [{**one, "requests": 900, "rate": 900.0} for one in ours["rounds"]]
    theirs["peer"] = "stock"
    theirs["rounds"] = [{**ours["rounds"][0], "texts": 300.0, "requests": 170}] * 2
    text = report.readme_text(Results(stored))
    assert "| OpenVINO bf16 | 900 | - | - |  |" in text
    assert "| PyTorch fp32 | 300 (short) | - | - | 3.0 times (short) |" in text
    assert "\n\nshort: " in text


def test_who_was_never_answered_has_no_time() -> None:
    stored = copy.deepcopy(values())
    stored["overload"]["rows"][0]["after_ms"] = None
    stored["overload"]["abandoned"][0]["next_s"] = None
    text = report.everything_text(Results(stored))
    assert "| 1.8 | - | 200 | 0.50 |" in text
    assert "| 4 | 15 | 10 | 20 | 30 | - |" in text


def test_a_part_is_renewed_with_its_own_date() -> None:
    values_ = values()
    values_["failed"]["two_endpoints"] = "it was not answered"
    later = {**values(), "two_endpoints": {"one": [900.0], "two": [890.0]}}
    later |= {"date": "2026-02-03 04:05 UTC", "commit": "def"}
    text = report.everything_text(Results(values_).renewed(Results(later), ["two_endpoints"]))
    assert "| two, 32 clients each | 890 |" in text
    assert "Measured 2026-02-03 04:05 UTC, commit def." in text
    assert "2026-01-02 03:04 UTC, commit abc" in text
    assert "it was not answered" not in text
    later["failed"] = {"overload": "it ended"}
    text = report.everything_text(Results(values_).renewed(Results(later), ["overload"]))
    assert "- overload: it ended" in text
    assert "| real | none | 3600 |" in text


def test_stages_are_shown_for_those_that_report_them() -> None:
    text = report.stage_table(Results(values()))
    row = "| one text | ours, gateway (OpenVINO bf16) | 0.10 | 2.00 | 5.00 | - | 6.0 |"
    assert text.splitlines()[-1] == row


def test_curves_are_drawn(tmp_path: Path) -> None:
    written = plots.draw(Results(values()), tmp_path)
    assert {path.name for path in written} == {
        f"{name}.{kind}" for name in ("throughput-seed", "curve-batch") for kind in ("svg", "png")
    }


def test_points_that_were_not_answered_are_not_drawn_and_named() -> None:
    stored = values()
    curve = stored["curves"]["batch"]
    one, two, four = curve["points"]
    # As older runs have it, and as later ones do: one in a hundred may fail.
    two["not_200"] = 1.0
    four |= {"requests": 1000.0, "not_200": 11.0}
    said = "Not drawn: texts 2, 4; more than 1% of the requests there were not answered with 200."
    assert said in report.everything_text(Results(stored))
    assert [point["at"] for point in curve_points.drawn(curve)] == [1]
    four["not_200"] = 10.0
    figure = plots._curve(curve)
    assert all(list(axes.lines[0].get_xdata()) == [1, 4] for axes in figure.axes)
    pyplot.close(figure)
    one["not_200"] = four["not_200"] = 900.0
    text = report.everything_text(Results(stored))
    assert "Not drawn: texts 1, 2, 4;" in text
    assert "curve-batch.png" not in text


def test_a_part_without_a_stored_run_is_refused_before_it_is_measured(tmp_path: Path) -> None:
    with pytest.raises(
        Failure, match=r"no bench-all\.json to renew in .*without --part"
    ) as refused:
        main(["all", "--part", "overload", "--out", str(tmp_path)], standalone_mode=False)
    assert refused.value.exit_code == 2
