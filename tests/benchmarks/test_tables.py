"""ab's report, tables and markers; and that the documents are what the stored runs give."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from benchmarks.report import documents, tables as report
from benchmarks.runs import ab, stages, wrk
from benchmarks.runs.results import RESULTS
from benchmarks.servers.process import Unusable
from scripts.generated_part import markers, write_part

AB_REPORT = """
Complete requests:      200
Failed requests:        1
Non-2xx responses:      3
Requests per second:    754.50 [#/sec] (mean)
Time per request:       10.603 [ms] (mean)
Time per request:       1.325 [ms] (mean, across all concurrent requests)
 100%     21 (longest request)
"""
AB_TABLE = "Percentage served,Time in ms\n" + "".join(f"{n},{n / 10:.3f}\n" for n in range(100))


def test_abs_report_is_read() -> None:
    found = ab.parse(AB_REPORT, AB_TABLE)
    assert found == ab.ToolRun(754.5, 10.603, 5.0, 9.0, 9.9, failed=4, requests=200)


def test_a_report_without_failures_has_none() -> None:
    clean = AB_REPORT.replace("Non-2xx responses:      3\n", "")
    assert ab.parse(clean, AB_TABLE).failed == 1


def test_wrks_line_is_read() -> None:
    line = '{"requests": 100, "microseconds": 200000, "failed": 1, "latencies": '
    found = wrk.parse(f"Running 2s test\n\n{line}[[500, 60], [1000, 38], [1500, 2]]}}\n", 1)
    assert found == ab.ToolRun(500.0, 0.71, 0.5, 1.0, 1.5, failed=1, requests=100)
    with pytest.raises(Unusable, match="no answer"):
        wrk.parse(line.replace("100,", "0,") + "[]}", 1)


def corrected(counts: Mapping[int, int], interval: int) -> dict[int, int]:
    """wrk's stats_correct, and what a script is shown of it: nothing below the shortest."""
    found = Counter(counts)
    for latency, count in counts.items():
        for shorter in range(latency - interval, interval, -interval):
            found[shorter] += count
    return {value: count for value, count in found.items() if value >= min(counts)}


@given(st.dictionaries(st.integers(1, 3000), st.integers(1, 5), min_size=1), st.integers(1, 400))
def test_what_wrk_added_to_its_latencies_is_taken_away(
    counts: dict[int, int], interval: int
) -> None:
    found = wrk.measured(corrected(counts, interval), interval)
    assert {value: count for value, count in found.items() if count} == counts


def test_of_few_requests_the_99th_percentile_is_the_longest() -> None:
    """ab's own table holds uninitialised memory there."""
    few = AB_REPORT.replace("200", "30")
    assert ab.parse(few, AB_TABLE.replace("99,9.900", "99,8318840582103726.0")).p99 == 21.0
    with pytest.raises(Unusable, match="ab needs 6 requests"):
        ab.parse(AB_REPORT.replace("200", "5"), AB_TABLE)


def test_a_part_between_markers_is_renewed_and_nothing_else(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    start, end = markers("speed", documents.TARGET)
    page.write_text(f"before\n{start}\nold\n{end}\nafter\n")
    write_part("speed", "a | b\n\\1", page, documents.TARGET)
    assert page.read_text() == f"before\n{start}\na | b\n\\1\n{end}\nafter\n"


def test_a_document_without_markers_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text("nothing here")
    with pytest.raises(SystemExit, match="README.md has no part between"):
        write_part("speed", "x", page)


def test_columns_of_figures_are_set_to_the_right() -> None:
    made = report.table(("who", "texts/s"), [("ours", "1200"), ("theirs", "-")])
    assert made.splitlines()[1] == "| --- | ---: |"


@pytest.mark.parametrize("part", documents.PARTS, ids=lambda part: part.name)
def test_a_document_has_what_the_stored_run_gives(part: documents.Part) -> None:
    """A part without a stored run stands there empty, never with figures of its own."""
    text = part.document.read_text("utf-8")
    made = documents.text_of(part, RESULTS)
    wanted = f"\n{made}\n" if made else "\n"
    start, end = markers(part.name, documents.TARGET)
    assert f"{start}{wanted}{end}" in text


METRICS = """
# TYPE transformer_serving_call_tokens counter
transformer_serving_call_tokens_total{{endpoint="a"}} {0}
transformer_serving_call_tokens_total{{endpoint="b"}} 10.0
# TYPE transformer_serving_call_padding_tokens counter
transformer_serving_call_padding_tokens_total{{endpoint="a"}} {1}
# TYPE transformer_serving_stage_seconds histogram
transformer_serving_stage_seconds_bucket{{endpoint="a",stage="queue",le="+Inf"}} {2}
transformer_serving_stage_seconds_count{{endpoint="a",stage="queue"}} {2}
transformer_serving_stage_seconds_sum{{endpoint="a",stage="queue"}} {3}
# TYPE another_thing gauge
another_thing 5.0
"""


@pytest.mark.parametrize("part", documents.PARTS, ids=lambda part: part.name)
def test_no_table_is_without_rows(part: documents.Part) -> None:
    """A load under which nobody computes has one table."""
    made = documents.text_of(part, RESULTS)
    assert not re.search(r"^\|[-:| ]+\|$(?!\n\|)", made, re.MULTILINE)


def test_the_servers_own_figures_are_taken_as_growth() -> None:
    before = stages.parse(METRICS.format(100.0, 50.0, 2.0, 0.5))
    after = stages.parse(METRICS.format(160.0, 70.0, 6.0, 0.7))
    assert stages.padding_share(before, after) == pytest.approx(20 / 80)
    assert stages.stage_ms(before, after) == {"queue": pytest.approx(50.0)}
    assert stages.texts_a_call(before, after) is None
    assert stages.padding_share({}, {}) is None


def test_pinned_lists_pin() -> None:
    lists = list((RESULTS.with_name("venvs")).glob("*.txt"))
    assert lists
    for path in lists:
        assert all("==" in line for line in path.read_text("utf-8").split("\n") if line), path
