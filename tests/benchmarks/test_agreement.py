"""Two runs beside each other, and which peers and loads a run has."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.report import agreement
from benchmarks.runs import loads
from benchmarks.runs.results import Results
from benchmarks.servers import peers
from tests.benchmarks.test_everything import values
from transformer_serving.desk.failure import Failure


def run(ours: tuple[float, float], theirs: tuple[float, float]) -> Results:
    """A stored run with these texts a second, one load and two rounds."""
    found: dict[str, Any] = values()
    for row, rates in zip(found["figures"], (ours, theirs), strict=True):
        row["rounds"] = [{"texts": rate} for rate in rates]
    return Results(found)


def test_figures_agree_that_lie_within_the_stored_bounds() -> None:
    first, again = run((900, 1000), (300, 320)), run((950, 1020), (200, 240))
    assert [pair.agrees for pair in agreement.figures(first, again)] == [True, False]
    # 3.00 to 3.12 times, and 4.50.
    assert [pair.agrees for pair in agreement.ratios(first, again)] == [False]
    text = agreement.text(first, again)
    assert "1 of 2 agree." in text
    assert "0 of 1 agree." in text
    # Bounds that overlap are not enough: 1040 lies outside 900 to 1000.
    [ours, _] = agreement.figures(first, run((980, 1100), (300, 320)))
    assert not ours.agrees


def test_who_is_missing_in_one_run_is_not_compared() -> None:
    first, again = run((900, 1000), (300, 320)), run((900, 1000), (300, 320))
    again.rows.pop("litserve")
    assert [pair.name for pair in agreement.figures(again, first)] == ["gateway"]


def test_peers_are_chosen_by_name_also_those_of_bench_all() -> None:
    assert [peer.name for peer in peers.chosen(["mlserver", "gateway"])] == ["mlserver", "gateway"]
    assert peers.chosen([]) == list(peers.MAIN)
    with pytest.raises(Failure, match="no peer 'nobody'; there are gateway, app"):
        peers.chosen(["gateway", "nobody"])


def test_loads_are_chosen_by_name_also_those_of_bench_all() -> None:
    assert [load.name for load in loads.chosen(["paced", "seed"])] == ["paced", "seed"]
    assert loads.chosen([]) == list(loads.MAIN)
    with pytest.raises(Failure, match="no load 'rush'; there are seed, kept"):
        loads.chosen(["rush"])
