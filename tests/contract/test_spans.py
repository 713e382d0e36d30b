"""Spans on their way to a real receiver of OTLP: what is sent, what is lost, and who waits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import tomllib
from prometheus_client.parser import text_string_to_metric_families

from tests.otlp_receiver import Receiver, receiver
from transformer_serving.contract.pip_line import pip_line
from transformer_serving.contract.worker.spans import PACKAGES

ROOT = Path(__file__).parent.parent.parent
# Each in a process of its own: a worker has one queue, and its end sends the last spans.
BEGIN = """
import logging, sys, time
from prometheus_client import REGISTRY, generate_latest
from transformer_serving.contract.worker.tracing import read_tracing, ENDPOINT
from transformer_serving.contract.worker.log_lines import write_json_lines
write_json_lines()
tracing = read_tracing()
def put(number):
    for at in range(number):
        trace, _ = tracing.enter(None)
        trace.ended(f"span {at}", "server", time.monotonic() - 1, time.monotonic(), {"at": at})
def counted():
    sys.stdout.write(generate_latest(REGISTRY).decode())
"""


def run(
    code: str, endpoint: str, **settings: str
) -> tuple[dict[str, float], subprocess.CompletedProcess[str]]:
    """What the process counted, by outcome."""
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + code], cwd=ROOT, capture_output=True, text=True,
        timeout=120, check=False,
        env={
            **os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
            "TRANSFORMER_SERVING_TRACE_RATIO": "1", **settings,
        },
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    samples = [one for row in text_string_to_metric_families(done.stdout) for one in row.samples]
    return {
        sample.labels["outcome"]: sample.value
        for sample in samples
        if sample.name == "transformer_serving_spans_total"
    }, done


@pytest.mark.parametrize(
    ("attributes", "service"),
    [
        ("app.service.name=shop", "transformer-serving"),
        ("region=a, service.name = mine", "mine"),
        ("region=service.name=a", "transformer-serving"),
    ],
)
def test_a_service_is_named_by_its_own_attribute_alone(attributes: str, service: str) -> None:
    with receiver() as there:
        run("put(1)", there.endpoint, OTEL_SERVICE_NAME="", OTEL_RESOURCE_ATTRIBUTES=attributes)
        assert {span.service for span in there.spans()} == {service}


def test_the_end_of_a_worker_sends_its_last_spans() -> None:
    with receiver() as there:
        run("put(700)", there.endpoint, OTEL_SERVICE_NAME="mine")
        spans = there.spans()
    assert sorted(span.attributes["at"] for span in spans) == list(range(700))
    assert {span.service for span in spans} == {"mine"}
    # In batches, the first of which may leave while others come.
    assert len(there.messages) < 10
    one = spans[0].span
    assert (one.kind, one.status.code) == (one.SPAN_KIND_SERVER, 0)
    assert 0.99e9 < one.end_time_unix_nano - one.start_time_unix_nano < 1.5e9


def test_a_name_of_ours_where_none_is_given() -> None:
    with receiver() as there:
        run("put(1)", there.endpoint)
        assert [span.service for span in there.spans()] == ["transformer-serving"]


WAIT = """
end = time.monotonic() + 60
while REGISTRY.get_sample_value("transformer_serving_spans_total", {"outcome": %r}) is None:
    assert time.monotonic() < end
    time.sleep(0.01)
counted()
"""


def test_what_was_taken_is_counted() -> None:
    with receiver() as there:
        counts, _ = run("put(3)" + WAIT % "sent", there.endpoint, OTEL_BSP_SCHEDULE_DELAY="10")
    assert counts == {"sent": 3}


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:9", "http://nowhere.invalid:4318"])
def test_a_receiver_that_is_not_there_is_counted_and_said_once(endpoint: str) -> None:
    counts, done = run(
        "put(3)" + WAIT % "failed" + "put(3); time.sleep(0.1)", endpoint,
        OTEL_BSP_SCHEDULE_DELAY="10", OTEL_EXPORTER_OTLP_TIMEOUT="1",
    )  # fmt: skip
    assert counts == {"failed": 3}
    assert done.stderr.count("\n") == 1, done.stderr
    assert '"logger": "transformer_serving.traces"' in done.stderr
    assert "3 spans were lost" in done.stderr


def refused(there: Receiver, status: int) -> None:
    there.status = status


def test_a_receiver_that_refuses_is_counted() -> None:
    with receiver() as there:
        refused(there, 400)
        counts, _ = run("put(3)" + WAIT % "failed", there.endpoint, OTEL_BSP_SCHEDULE_DELAY="10")
    assert counts == {"failed": 3}


HANGS = """
put(5)
end = time.monotonic() + 60
while tracing._queue._shared.rows:
    assert time.monotonic() < end
    time.sleep(0.01)
# They are at the receiver, which does not answer: a hundred wait, and nobody for them.
put(150)
assert len(tracing._queue._shared.rows) == 100
assert tracing._queue._shared.dropped == 50
"""


def test_a_receiver_that_hangs_costs_spans_and_no_worker_its_end() -> None:
    with receiver() as there:
        there.goes_on.clear()
        # The process's own end is the test: it does not wait for the ten seconds of a try.
        run(
            HANGS, there.endpoint, OTEL_BSP_SCHEDULE_DELAY="10", OTEL_BSP_MAX_QUEUE_SIZE="100",
            OTEL_EXPORTER_OTLP_TIMEOUT="600",
        )  # fmt: skip
        assert there.asked.is_set()
        assert not there.messages


def test_a_worker_without_traces_imports_nothing_of_it() -> None:
    code = "assert tracing is None; assert not [n for n in sys.modules if 'opentelemetry' in n]"
    run(code, "")


ABSENT = """
import sys
sys.modules["opentelemetry.exporter"] = None
from transformer_serving.contract.worker.tracing import read_tracing
from transformer_serving.contract.worker.log_lines import write_json_lines
write_json_lines()
assert read_tracing() is None
assert read_tracing() is None
"""


def test_without_the_packages_it_is_said_once_what_is_missing() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ABSENT], cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(pip_line(PACKAGES)) == 1
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["optional-dependencies"]["tracing"] == PACKAGES.split()
