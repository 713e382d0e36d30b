"""One trace from the caller through gateway and preprocess into Triton, at a receiver of OTLP."""

from __future__ import annotations

import json
import secrets
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton

from tests.engine.triton_server import wait_until
from tests.free_ports import free_port
from tests.gateway.conftest import Headers, Server, Session, running
from tests.gateway.streaming import of_the_rule, settings_of
from tests.gateway.text_serving import MODELS, TextServing, running_text_serving
from tests.otlp_receiver import Received, Receiver, receiver
from tests.text_engine import PROMPT
from transformer_serving.contract.keys import Key, digest_of, keys_text, new_key, now
from transformer_serving.contract.worker.tracing import CALLERS, ENDPOINT, RATIO
from transformer_serving.gateway.access import KEYS_FILE

pytestmark = pytest.mark.slow
SPAN = "b7ad6b7169203331"
TRITON = "triton-inference-server"
STAGES = ["tokenize", "queue", "infer", "post"]
# So that what is asked for is here soon; and no caller of a test is one too many.
OFTEN = {"OTEL_BSP_SCHEDULE_DELAY": "100", CALLERS.name: "1000"}


@dataclass(frozen=True)
class Traced:
    """The app in both ways, before a Triton that sends its own part."""

    serving: TextServing
    receiver: Receiver
    gateway: Server
    stock: Server


def settings(there: Receiver, ratio: str = "0", **more: str) -> dict[str, str]:
    return {ENDPOINT.name: there.endpoint, RATIO.name: ratio, **OFTEN, **more}


@pytest.fixture(scope="module")
def traced(session: Session, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    folder = tmp_path_factory.mktemp("traces")
    with (
        receiver() as there,
        running_text_serving(session, folder, traces=there.endpoint) as serving,
    ):
        gateway = serving.gateway("--workers=2", **settings(there))
        stock = serving.stock(**settings(there, "1"))
        with running(gateway, stock):
            gateway.wait_for("/health/ready")
            yield Traced(serving, there, gateway, stock)


def new_trace() -> str:
    return secrets.token_hex(16)


def caller(trace: str, **more: str) -> Headers:
    return {"traceparent": f"00-{trace}-{SPAN}-01", **more}


def of(spans: list[Received], name: str) -> Received:
    (found,) = [span for span in spans if span.name == name]
    return found


def within(span: Received, parent: Received, slack_ns: int = 1_000_000) -> bool:
    """Of two processes on one machine, or of one: their clocks are read at different moments."""
    begins = int(parent.span.start_time_unix_nano) - slack_ns <= int(span.span.start_time_unix_nano)
    ends = int(span.span.end_time_unix_nano) <= int(parent.span.end_time_unix_nano) + slack_ns
    return begins and ends


def triton_root(spans: list[Received]) -> Received:
    return of([span for span in spans if span.service == TRITON], "InferRequest")


def all_parts(there: Receiver, trace: str) -> list[Received]:
    """The gateway's span, ours, four stages, the call, and Triton's three."""
    return there.wait_for(10, trace)


def settled(traced: Traced) -> int:
    """Spans that are here once one more trace is: Triton sends what earlier tests left first."""
    trace = new_trace()
    assert traced.gateway.post("texts", {"text": "tea"}, caller(trace)).status == 200
    all_parts(traced.receiver, trace)
    return len(traced.receiver.spans())


def test_one_trace_from_the_caller_into_triton(traced: Traced) -> None:
    trace = new_trace()
    headers = caller(trace, tracestate="rojo=1", **{"x-request-id": "mine"})
    assert traced.gateway.post("texts", {"text": "secret tea"}, headers).status == 200
    spans = all_parts(traced.receiver, trace)
    root, own = of(spans, "POST /serve/{name}"), of(spans, "serve texts")
    assert (root.parent, own.parent) == (SPAN, root.id)
    assert root.attributes == {
        "http.request.method": "POST",
        "http.route": "/serve/{name}",
        "http.response.status_code": 200,
        "transformer_serving.endpoint": "texts",
        "transformer_serving.code": "ok",
        "transformer_serving.request_id": "mine",
    }
    stages = [span for span in spans if span.parent == own.id]
    stages.sort(key=lambda span: int(span.span.start_time_unix_nano))
    assert [span.name for span in stages] == STAGES
    call, infer = of(spans, "engine call"), stages[2]
    assert call.parent == infer.id
    triton = triton_root(spans)
    assert triton.parent == call.id
    model = of(spans, "texts")
    assert (model.parent, model.attributes["triton.model_name"]) == (triton.id, "texts")
    assert of(spans, "compute").parent == model.id
    for span, parent in ((own, root), (infer, own), (call, infer), (triton, call), (model, triton)):
        assert within(span, parent), (span.name, parent.name)
    assert {span.span.trace_state for span in spans if span.service != TRITON} == {"rojo=1"}
    assert len(spans) == 10


def test_nothing_of_a_request_is_sent(traced: Traced) -> None:
    trace = new_trace()
    assert traced.gateway.post("texts", {"text": "[FAIL] secret"}, caller(trace)).status == 502
    # The last that ends. Triton's own come when they come.
    wait_until(lambda: bool(of_gateway(traced.receiver.spans(trace))), 60)
    spans = traced.receiver.spans(trace)
    assert of(spans, "POST /serve/{name}").span.status.code == 2
    assert of(spans, "serve texts").span.status.code == 2
    assert b"secret" not in b"".join(traced.receiver.bodies)


def test_two_workers_make_other_ids(traced: Traced) -> None:
    with receiver() as there:
        server = traced.serving.gateway("--workers=2", **settings(there, "1")).start()
        try:
            server.wait_for("/health/ready")
            for _ in range(20):
                assert server.post("texts", {"text": "tea"}).status == 200
            wait_until(lambda: len(of_gateway(there.spans())) == 20, 60)
            spans = there.spans()
        finally:
            server.stop()
    assert len({span.trace for span in of_gateway(spans)}) == 20
    assert len({span.id for span in spans}) == len(spans)


def of_gateway(spans: list[Received]) -> list[Received]:
    return [span for span in spans if span.name == "POST /serve/{name}"]


def test_without_a_gateway_the_preprocess_begins_the_trace(traced: Traced) -> None:
    """The unmodified app hands on no headers: the ratio decides."""
    before = {span.trace for span in traced.receiver.spans()}
    assert traced.stock.post("texts", {"text": "tea"}).status == 200

    def mine() -> list[Received]:
        new = [span for span in traced.receiver.spans() if span.trace not in before]
        return [span for span in new if span.name == "serve texts"]

    wait_until(lambda: len(mine()) == 1, 60)
    (own,) = mine()
    spans = traced.receiver.wait_for(9, own.trace)
    assert own.parent == ""
    assert own.span.kind == own.span.SPAN_KIND_SERVER
    assert triton_root(spans).parent == of(spans, "engine call").id


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"traceparent": "00-{trace}-b7ad6b7169203331-00"},
        {"traceparent": "00-{trace}-0000000000000000-01"},
        {"traceparent": "00-{trace}-b7ad6b7169203331-01-more"},
        {"traceparent": "ff-{trace}-b7ad6b7169203331-01"},
    ],
)
def test_what_is_not_sampled_sends_nothing(traced: Traced, given: Mapping[str, str]) -> None:
    """Known once what was asked after it has come."""
    trace, after = new_trace(), new_trace()
    headers = {name: value.format(trace=trace) for name, value in given.items()}
    before = settled(traced)
    assert traced.gateway.post("texts", {"text": "tea"}, headers).status == 200
    for _ in range(8):
        # Of either worker.
        assert traced.gateway.post("texts", {"text": "tea"}, caller(after)).status == 200
    traced.receiver.wait_for(80, after)
    assert not traced.receiver.spans(trace)
    assert len(traced.receiver.spans()) == before + 80


def test_two_traceparents_are_none(traced: Traced) -> None:
    trace, after = new_trace(), new_trace()
    line = f"traceparent: 00-{trace}-{SPAN}-01\r\n"
    body = json.dumps({"text": "tea"})
    with traced.gateway.connect() as connection:
        connection.sendall(
            f"POST /serve/texts HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
            f"{line}{line}connection: close\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode()
        )
        assert connection.recv(100).startswith(b"HTTP/1.1 200")
    assert traced.gateway.post("texts", {"text": "tea"}, caller(after)).status == 200
    all_parts(traced.receiver, after)
    assert not traced.receiver.spans(trace)


def test_requests_that_share_a_call_are_linked(traced: Traced) -> None:
    """The first call is slow; what comes meanwhile leaves together."""
    slow = {"text": "[SLOW]", "timeout_ms": 20_000}
    traces = [new_trace() for _ in range(24)]
    with ThreadPoolExecutor(28) as pool:
        first = [pool.submit(traced.gateway.post, "vectors", slow) for _ in range(4)]
        later = [
            pool.submit(traced.gateway.post, "vectors", {"text": "tea"}, caller(trace))
            for trace in traces
        ]
        assert {one.result().status for one in (*first, *later)} == {200}
    for trace in traces:
        # At least the gateway's, ours, and four stages.
        traced.receiver.wait_for(6, trace)
    spans = [span for trace in traces for span in traced.receiver.spans(trace)]
    calls = {(span.trace, span.id): span for span in spans if span.name == "engine call"}
    shared = [span for span in calls.values() if span.links]
    assert shared, "none of 24 requests met another"
    stages = {(span.trace, span.id): span for span in spans if span.name == "infer"}
    for call in shared:
        assert call.attributes["transformer_serving.call.requests"] > len(call.links)
        for place in call.links:
            assert (call.trace, call.id) in stages[place].links
    # Each request is in the call below its own stage, or in one that the stage names.
    below = {(call.trace, call.parent) for call in calls.values()}
    for place, stage in stages.items():
        assert place in below or stage.links & set(calls)


def test_a_trace_of_our_own_is_on_the_lines_of_the_log(traced: Traced) -> None:
    """Every request is traced here, and logged: what is refused, too."""
    with receiver() as there:
        server = traced.serving.gateway(
            **settings(there, "1", TRANSFORMER_SERVING_LOG_REQUESTS="1")
        ).start()
        try:
            server.wait_for("/health/ready")
            for request, path, status in (
                ("good", "texts", 200), ("nobody", "not-an-endpoint", 404), ("bad", "texts", 502),
            ):  # fmt: skip
                body = {"text": "[FAIL]" if request == "bad" else "tea"}
                assert server.post(path, body, {"x-request-id": request}).status == status
            # Triton sends its part elsewhere. What is refused is one span; a fault has no `post`.
            there.wait_for(7 + 1 + 6)
            wait_until(lambda: server.log.read_text().count('"answered"') == 3, 60)
        finally:
            server.stop()
        lines = [
            json.loads(row) for row in server.log.read_text().splitlines() if row.startswith("{")
        ]
        spans = there.spans()
    for request, name in (("good", "texts"), ("nobody", ""), ("bad", "texts")):
        told = [line["trace_id"] for line in lines if line.get("request_id") == request]
        assert len(told) == (2 if request == "bad" else 1)
        roots = [
            span for span in spans
            if span.name == "POST /serve/{name}"
            and span.attributes["transformer_serving.request_id"] == request
        ]  # fmt: skip
        assert set(told) == {span.trace for span in roots}
        assert [span.attributes["transformer_serving.endpoint"] for span in roots] == [name]
        assert roots[0].parent == ""
    assert "not-an-endpoint" not in str(spans)


def test_a_key_has_its_name_in_the_span_and_no_question_a_span(traced: Traced) -> None:
    secret = new_key()
    file = traced.serving.session.folder / "keys.json"
    file.write_text(keys_text([Key("alice", digest_of(secret), now())]))
    with receiver() as there:
        server = traced.serving.gateway(**settings(there, "1", **{KEYS_FILE.name: str(file)}))
        server.start()
        try:
            server.wait_for("/health/ready")
            key = {"x-api-key": secret}
            for path in ("/v1/models", "/health/endpoints", "/openapi.json", "/v2/models/texts"):
                assert server.ask("GET", path, headers=key).status in (200, 401, 403)
            body = json.dumps({"model": "vectors", "input": "tea"})
            assert server.ask("POST", "/v1/embeddings", body, key).status in (200, 422)
            spans = there.wait_for(1)
            wait_until(lambda: any(one.name.startswith("POST") for one in there.spans()), 60)
            spans = there.spans()
        finally:
            server.stop()
        roots = [span for span in spans if not span.parent]
        assert [span.name for span in roots] == ["POST /v1/embeddings"]
        assert roots[0].attributes["transformer_serving.key"] == "alice"
        assert secret.encode() not in b"".join(there.bodies)


@pytest.mark.parametrize("kind", ["hangs", "refuses", "absent"])
def test_a_receiver_that_takes_nothing_changes_no_answer(traced: Traced, kind: str) -> None:
    with receiver() as there:
        if kind == "hangs":
            there.goes_on.clear()
        there.status = 500 if kind == "refuses" else 200
        endpoint = "http://127.0.0.1:9" if kind == "absent" else there.endpoint
        more = {"OTEL_BSP_MAX_QUEUE_SIZE": "50", ENDPOINT.name: endpoint}
        # At its end each worker waits once more for as long as one sending may take.
        more["OTEL_EXPORTER_OTLP_TIMEOUT"] = "1"
        server = traced.serving.gateway("--workers=2", **{**settings(there, "1"), **more}).start()
        try:
            server.wait_for("/health/ready")
            with ThreadPoolExecutor(8) as pool:
                asked = [pool.submit(server.post, "texts", {"text": "tea"}) for _ in range(200)]
                assert {one.result().status for one in asked} == {200}
            lost = "dropped" if kind != "absent" else "failed"
            wanted = f'spans_total{{outcome="{lost}"}}'.encode()
            wait_until(lambda: wanted in server.ask("GET", "/metrics").raw, 60)
        finally:
            assert server.stop() == 0
        assert not there.messages
        assert "Traceback" not in server.log.read_text()


def test_a_gateway_without_traces_knows_nothing_of_them(traced: Traced) -> None:
    before = settled(traced)
    server = traced.serving.gateway().start()
    try:
        server.wait_for("/health/ready")
        assert server.post("texts", {"text": "tea"}, caller(new_trace())).status == 200
        assert b"spans_total" not in server.ask("GET", "/metrics").raw
        for worker in server.workers():
            opened = Path(f"/proc/{worker.pid}/maps").read_text()
            assert "opentelemetry" not in opened
    finally:
        server.stop()
    assert settled(traced) == before + 10


def test_grpc_in_and_grpc_to_triton(traced: Traced) -> None:
    """The other transport, and metadata in the place of headers.

    Triton 2.51 leaves its part of some out, as of streams.
    """
    port, traces = free_port(), [new_trace() for _ in range(8)]
    server = traced.serving.gateway(
        f"--grpc-port={port}",
        **settings(traced.receiver, TRANSFORMER_SERVING_TRANSPORT="grpc"),
    ).start()
    try:
        server.wait_for("/health/ready")
        client = triton.InferenceServerClient(f"127.0.0.1:{port}")
        given = triton.InferInput("text", [1], "BYTES")
        given.set_data_from_numpy(np.array([b"tea"], object))
        for trace in traces:
            client.infer("texts", [given], headers=dict(caller(trace, tracestate="rojo=1")))
        client.close()
        for trace in traces:
            root = of(traced.receiver.wait_for(7, trace), "POST /v2/models/{name}/infer")
            assert root.parent == SPAN
            assert root.span.trace_state == "rojo=1"
        wait_until(lambda: tritons(traced.receiver, traces), 60)
    finally:
        server.stop()
    asked = {(t, of(traced.receiver.spans(t), "engine call").id) for t in traces}
    assert {(span.trace, span.parent) for span in tritons(traced.receiver, traces)} <= asked


def tritons(there: Receiver, traces: list[str]) -> list[Received]:
    """The roots of Triton's part, of whichever traces it has sent one."""
    return [span for trace in traces for span in there.spans(trace) if span.name == "InferRequest"]


@pytest.fixture(scope="module")
def text(
    session: Session, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Receiver, Server]]:
    folder = tmp_path_factory.mktemp("text")
    with (
        receiver() as there,
        of_the_rule(session, folder, traces=there.endpoint) as (own, triton),
    ):
        server = own.gateway(**settings_of(triton, **settings(there))).start()
        try:
            yield there, server.wait_for("/health/ready")
        finally:
            server.stop()


@pytest.mark.parametrize("stream", [False, True])
def test_a_stream_of_text(text: tuple[Receiver, Server], stream: bool) -> None:
    """Triton 2.51 leaves its part of some streams out: docs/decisions/language-models.md."""
    there, server = text
    traces = [new_trace() for _ in range(8)]
    body: Any = {"text": PROMPT, "parameters": {"max_new_tokens": 3}, "stream": stream}
    for trace in traces:
        assert server.post("text", body, caller(trace)).status == 200
        spans = there.wait_for(7, trace)
        root, own = of(spans, "POST /serve/{name}"), of(spans, "serve text")
        engine = of(spans, "engine stream")
        assert (root.parent, own.parent, engine.parent) == (SPAN, root.id, own.id)
        assert [event.name for event in engine.span.events] == ["first token"]
        assert within(engine, root)

    wait_until(lambda: tritons(there, traces), 60)
    streams = {(trace, of(there.spans(trace), "engine stream").id) for trace in traces}
    assert {(span.trace, span.parent) for span in tritons(there, traces)} <= streams


def test_a_stream_that_breaks_is_an_error_in_every_span(text: tuple[Receiver, Server]) -> None:
    """After its first token: the headers left with 200 before."""
    there, server = text
    trace = new_trace()
    body: Any = {"text": "cache w30", "parameters": {"max_new_tokens": 9}, "stream": True}
    assert server.post("text", body, caller(trace)).status == 200
    spans = there.wait_for(7, trace)
    root, own = of(spans, "POST /serve/{name}"), of(spans, "serve text")
    engine = of(spans, "engine stream")
    assert [event.name for event in engine.span.events] == ["first token"]
    assert [one.span.status.code for one in (root, own, engine)] == [2] * 3
    assert within(engine, own)
    assert within(own, root)


def left_out(there: Receiver, server: Server, name: str, body: object, ours: int) -> float:
    """The part of 600 requests, one after the other, of which Triton sends nothing; printed.

    `ours` spans of each are there, always.
    """
    traces = [new_trace() for _ in range(600)]
    for trace in traces:
        assert server.post(name, body, caller(trace)).status == 200
        time.sleep(0.01)
    # Triton sends every five seconds, where nothing says otherwise.
    time.sleep(15)
    found: dict[str, list[Received]] = defaultdict(list)
    for span in there.spans():
        found[span.trace].append(span)
    assert all(len(found[trace]) >= ours for trace in traces)
    missing = sum(not any(one.service == TRITON for one in found[trace]) for trace in traces)
    sys.stdout.write(f"{missing} of {len(traces)} without Triton's part\n")
    return missing / len(traces)


@pytest.mark.long
@pytest.mark.by_hand
def test_few_streams_are_left_out_by_triton(text: tuple[Receiver, Server]) -> None:
    there, server = text
    body: Any = {"text": PROMPT, "parameters": {"max_new_tokens": 3}}
    assert left_out(there, server, "text", body, 7) < 0.2


@pytest.mark.long
@pytest.mark.by_hand
@pytest.mark.parametrize("transport", ["http", "grpc"])
def test_few_texts_are_left_out_by_triton(traced: Traced, transport: str) -> None:
    """Each is an engine call of its own."""
    more = {"TRANSFORMER_SERVING_TRANSPORT": transport}
    gateway = traced.serving.gateway(**settings(traced.receiver, **more)).start()
    try:
        gateway.wait_for("/health/ready")
        assert left_out(traced.receiver, gateway, "texts", {"text": "tea"}, 7) < 0.2
    finally:
        gateway.stop()


def test_every_model_is_served_still(traced: Traced) -> None:
    """Triton has lived through all of this."""
    assert traced.serving.triton.live()
    assert all(
        traced.gateway.post(name, {"text": "tea"}).status in (200, 422) for name in MODELS
        if name not in ("faulty", "ranked")
    )  # fmt: skip
