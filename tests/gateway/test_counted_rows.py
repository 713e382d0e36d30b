"""The page's counters and histograms are those that prometheus_client itself would show."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client.mmap_dict import MmapedDict, mmap_key
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Exemplar

from transformer_serving.contract.worker.durations import LABELS, NAME
from transformer_serving.gateway.figures import counted_rows
from transformer_serving.gateway.figures.counted_rows import (
    COUNTER,
    REFUSED,
    counted_page,
    endpoints_of,
    sums,
    without,
)

# A worker with counters and histograms of every kind of label; the page as the library makes it.
WORKER = """
import sys
import prometheus_client as prometheus
hits = prometheus.Counter("hits", "A\\\\B\\n\\"C\\"", ("endpoint", "why"))
plain = prometheus.Counter("plain", "Without labels.")
took = prometheus.Histogram("took", "Seconds.", ("endpoint",), buckets=(0.5, 1, 1e9))
alone = prometheus.Histogram("alone", "Seconds.", buckets=(1,))
for name in sys.argv[1:]:
    hits.labels(name, 'a "b"\\\\\\n').inc(2.5)
    plain.inc()
    for seconds in (0.1, 0.7, 5e8, 2e9):
        took.labels(name).observe(seconds)
    alone.observe(3)
"""
DURATIONS = """
import sys
import prometheus_client
from transformer_serving.contract.worker.durations import Durations
durations = Durations(prometheus_client)
for name in sys.argv[1:]:
    durations.took(name, "ok", 200, 0.3)
    durations.tell()
"""
LIBRARY = """
import sys
import prometheus_client as prometheus
from prometheus_client.multiprocess import MultiProcessCollector
registry = prometheus.CollectorRegistry()
MultiProcessCollector(registry)
sys.stdout.write(prometheus.generate_latest(registry).decode())
"""
Rows = dict[tuple[str, frozenset[tuple[str, str]]], float]


def rows(page: str) -> tuple[Rows, dict[str, tuple[str, str]]]:
    families = list(text_string_to_metric_families(page))
    found = [
        ((row.name, frozenset(row.labels.items())), row.value)
        for family in families
        for row in family.samples
    ]
    assert len(dict(found)) == len(found)
    return dict(found), {one.name: (one.type, one.documentation) for one in families}


def run(folder: Path, code: str, *arguments: str) -> str:
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(folder)}
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return done.stdout


def page_of(folder: Path, known: set[str] | None) -> str:
    counters, histograms = (sorted(folder.glob(f"{kind}_*.db")) for kind in (COUNTER, "histogram"))
    return counted_page(sums(counters), sums(histograms), known)


def test_it_is_what_the_library_says(tmp_path: Path) -> None:
    for names in (("one", "two"), ("two", "three")):
        run(tmp_path, WORKER, *names)
    ours = page_of(tmp_path, None)
    assert rows(ours) == rows(run(tmp_path, LIBRARY))
    assert 'took_bucket{endpoint="two",le="1e+09"} 6.0\n' in ours


def test_endpoints_that_are_not_known_are_left_out(tmp_path: Path) -> None:
    run(tmp_path, WORKER, "one", "two")
    found, _ = rows(page_of(tmp_path, {"two"}))
    assert {dict(labels).get("endpoint") for _, labels in found} == {None, "", "two"}


def test_rows_of_some_endpoints_can_be_left_out() -> None:
    of_one = mmap_key("hits", "hits_total", ["endpoint"], ["one"], "Hits.")
    of_nobody = mmap_key("hits", "hits_total", ["why"], ["one"], "Hits.")
    numbers = {of_one: 2.0, of_nobody: 3.0}
    assert endpoints_of(numbers, {}) == {"one", ""}
    assert without(numbers, {"one"}) == {of_nobody: 3.0}
    assert without(numbers, {"two"}) == numbers


def test_an_exemplar_without_a_time_is_shown_without_one() -> None:
    numbers = {
        mmap_key(NAME, f"{NAME}_bucket", [*LABELS, "le"], ["one", "200", "ok", "0.5"], "H."): 1.0
    }
    traced = {("one", "200", "ok", "0.5"): Exemplar({"trace_id": "ab"}, 0.25)}
    page = counted_page({}, numbers, None, traced)
    assert 'le="0.5"} 1.0 # {trace_id="ab"} 0.25\n' in page


def test_refusals_that_alert_begin_at_zero() -> None:
    """Of too many bytes, and of an endpoint's code that has not come, or its readiness."""
    found, _ = rows(counted_page({}, {}, {"texts"}))
    shown = {labels: value for (name, labels), value in found.items() if name == f"{REFUSED}_total"}
    assert shown == {
        frozenset({("endpoint", endpoint), ("code", code)}): 0.0
        for endpoint in ("", "texts")
        for code in ("overloaded", "unavailable")
    }


def test_a_help_that_was_reworded_makes_no_second_row(tmp_path: Path) -> None:
    for number, text in enumerate(("Old.", "New.")):
        counts = MmapedDict(str(tmp_path / f"counter_{number}.db"))
        counts.write_value(mmap_key("hits", "hits_total", ["why"], ["a"], text), 2.0, 0.0)
        counts.close()
    found, _ = rows(page_of(tmp_path, None))
    assert found == {("hits_total", frozenset({("why", "a")})): 4.0}


def test_a_key_is_read_for_the_first_page_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of more keys than are kept once they are gone; most are of endpoints that went."""
    read, loads = [], json.loads

    def counting(text: str) -> object:
        read.append(text)
        return loads(text)

    monkeypatch.setattr(json, "loads", counting)

    def counts(endpoints: int) -> dict[str, float]:
        return {
            mmap_key("hits", "hits_total", ["endpoint"], [f"e{number}"], "Hits."): 1.0
            for number in range(endpoints)
        }

    many, few = counts(70_000), counts(10)
    first = counted_page(many, {}, {"e7"})
    assert len(read) >= 70_000
    read.clear()
    assert counted_page(many, {}, {"e7"}) == first
    assert not read
    counted_page(few, {}, {"e7"})
    assert not read
    assert len(counted_rows._meanings) < 70_000
    assert counted_page(many, {}, {"e7"}) == first
    assert len(read) == 70_000 - 10


def test_with_exemplars_it_is_openmetrics(tmp_path: Path) -> None:
    """As the library's strict reader takes it: the same rows, and a trace at its bucket."""
    run(tmp_path, WORKER, "one", "two")
    run(tmp_path, DURATIONS, "one", 'a "quoted" one')
    counters, histograms = (
        sorted(tmp_path.glob(f"{kind}_*.db")) for kind in (COUNTER, "histogram")
    )
    bucket = ("one", "200", "ok", "0.5")
    page = counted_page(
        sums(counters), sums(histograms), None,
        {bucket: Exemplar({"trace_id": "1" * 32}, 0.3, 1_700_000_000.5)},
    )  # fmt: skip
    found = [
        row for family in openmetrics.text_string_to_metric_families(page + "# EOF\n")
        for row in family.samples
    ]  # fmt: skip
    plain, _ = rows(page_of(tmp_path, None))
    assert {(row.name, frozenset(row.labels.items())): row.value for row in found} == plain
    (traced,) = [row for row in found if row.exemplar]
    assert (traced.name, traced.labels["endpoint"], traced.labels["le"]) == (
        f"{NAME}_bucket", "one", "0.5"
    )  # fmt: skip
    assert traced.exemplar.labels == {"trace_id": "1" * 32}
    assert (traced.exemplar.value, float(traced.exemplar.timestamp)) == (0.3, 1_700_000_000.5)
