"""`transformer-serving up` with a receiver of traces: one trace from the caller into its Triton."""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.triton_server import wait_until
from tests.otlp_receiver import Receiver, receiver
from tests.stack.conftest import Stack, started
from tests.stack.small_bundles import TEXT, Parts, write_small
from transformer_serving.contract.worker.tracing import ENDPOINT

pytestmark = pytest.mark.long
SPAN = "b7ad6b7169203331"


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Stack, Receiver]]:
    folder = tmp_path_factory.mktemp("traced")
    settings = {
        "TRANSFORMER_SERVING_LOG_REQUESTS": "1", "TRANSFORMER_SERVING_TRACE_RATIO": "0",
        "OTEL_BSP_SCHEDULE_DELAY": "200",
    }  # fmt: skip
    with receiver() as there:
        settings[ENDPOINT.name] = there.endpoint
        with started(folder / "stack", **settings) as stack:
            bundle = write_small(folder / "bundle", Parts())
            stack.run("deploy", str(bundle.folder), "--endpoint", "small")
            yield stack, there


def sent(stack: Stack, trace: str, request: str) -> int:
    asked = urllib.request.Request(
        stack.url("small"), json.dumps({"text": TEXT}).encode(),
        {
            "content-type": "application/json", "x-request-id": request,
            "traceparent": f"00-{trace}-{SPAN}-01",
        },
    )  # fmt: skip
    with urllib.request.urlopen(asked, timeout=60) as reply:
        return int(reply.status)


def parts_of(there: Receiver, trace: str) -> dict[str, str]:
    """Spans of a trace and the names of those that they lie below."""
    spans = there.wait_for(10, trace)
    names = {span.id: span.name for span in spans}
    return {span.name: names.get(span.parent, span.parent) for span in spans}


def test_one_trace_through_the_embedded_stack(traced: tuple[Stack, Receiver]) -> None:
    stack, there = traced
    trace = os.urandom(16).hex()
    assert sent(stack, trace, "mine") == 200
    below = parts_of(there, trace)
    stages = ("tokenize", "queue", "infer", "post")
    assert {below.pop(stage) for stage in stages} == {"serve small"}
    assert below.pop("POST /serve/{name}") == SPAN
    assert below.pop("serve small") == "POST /serve/{name}"
    assert below.pop("engine call") == "infer"
    assert below.pop("InferRequest") == "engine call"
    assert below.pop("compute") in below
    # Triton's model, by the name that the controller gave it.
    assert list(below.values()) == ["InferRequest"]
    # Neither deploy's golden requests, nor the gateway's, nor the proof of the engine.
    assert {span.trace for span in there.spans()} == {trace}
    (line,) = stack.json("logs", "--request", "mine")["lines"]
    assert line["entry"]["trace_id"] == trace


def test_a_triton_that_was_killed_traces_again(traced: tuple[Stack, Receiver]) -> None:
    stack, there = traced
    os.kill(stack.parts()["triton"]["pid"], signal.SIGKILL)
    stack.until(lambda: stack.post("small", {"text": TEXT})[0] == 200, "it is back")
    trace = os.urandom(16).hex()
    assert sent(stack, trace, "again") == 200
    assert parts_of(there, trace)["InferRequest"] == "engine call"


def test_a_receiver_that_went_costs_no_answer(traced: tuple[Stack, Receiver]) -> None:
    stack, there = traced
    there.goes_on.clear()
    try:
        end = time.monotonic() + 5
        while time.monotonic() < end:
            assert sent(stack, os.urandom(16).hex(), "hanging") == 200
    finally:
        there.goes_on.set()
    before = len(there.messages)
    trace = os.urandom(16).hex()
    assert sent(stack, trace, "after") == 200
    wait_until(lambda: len(there.messages) > before, 60)
    assert Path(stack.state / "logs" / "triton.log").is_file()
