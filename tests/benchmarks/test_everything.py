"""The documents and pictures of `make bench-all`, from a stored run made by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import plots, report
from benchmarks.__main__ import main
from benchmarks.results import Results
from transformer_serving.failure import Failure

POINT = {"p50": 1.0, "p99": 4.0, "cpu_ms": 0.5, "memory_mib": 300.0, "not_200": 0.0}


def values() -> dict[str, Any]:
    figures = {"p50": 2.0, "p90": 3.0, "p99": 4.0, "failed": 0, "texts_a_call": 6.0}
    ours = {**figures, "texts": 900.0, "stages_ms": {"tokenize": 0.1, "queue": 2.0, "infer": 5.0}}
    theirs = {**figures, "texts": 300.0, "stages_ms": {}, "texts_a_call": None}
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
        "overload": {
            "waiting_tokens": 20_000, "capacity": 900.0, "offered": 2700.0, "goodput": 880.0,
            "share_503": 0.66,
            "statuses": {"200": 1}, "accepted_p50": 90.0, "accepted_p99": None,
        },
        "curves": {
            "batch": {"title": "Texts a request", "axis": "texts",
                      "points": [{"at": at, "texts": 100.0 * at, **POINT} for at in (1, 2, 4)]},
            "endpoints": {"title": "none were measured", "axis": "endpoints", "points": []},
        },
    }  # fmt: skip


def test_every_part_of_the_text_is_there() -> None:
    text = report.everything_text(Results(values()))
    assert "| LitServe | PyTorch fp32 | 300 | ± 0% | 2.0 | 4.0 | 3.00 times | 3.00 times |" in text
    assert "| 2700 | 900 | 880 | 66% | 90 | - |" in text
    assert "| two, 32 clients each | 710 |" in text
    assert "plots/curve-batch.png" in text
    assert "curve-endpoints" not in text
    assert "- mlserver: it \\| ended at its start" in text


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
    assert "| 2700 | 900 | 880 |" in text


def test_stages_are_shown_for_those_that_report_them() -> None:
    text = report.stage_table(Results(values()))
    row = "| one text | ours, gateway (OpenVINO bf16) | 0.10 | 2.00 | 5.00 | - | 6.0 |"
    assert text.splitlines()[-1] == row


def test_curves_are_drawn(tmp_path: Path) -> None:
    written = plots.draw(Results(values()), tmp_path)
    assert {path.name for path in written} == {
        f"{name}.{kind}" for name in ("throughput-seed", "curve-batch") for kind in ("svg", "png")
    }


def test_a_part_without_a_stored_run_is_refused_before_it_is_measured(tmp_path: Path) -> None:
    with pytest.raises(
        Failure, match=r"no bench-all\.json to renew in .*without --part"
    ) as refused:
        main(["all", "--part", "overload", "--out", str(tmp_path)], standalone_mode=False)
    assert refused.value.exit_code == 2
