"""A request's spans at a collector, and the log lines that name its trace."""

from __future__ import annotations

import http.server
import json
import threading
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.engine.triton_server import wait_until
from tests.gateway.text_serving import TextServing, text_serving as text_serving


class Collector(http.server.BaseHTTPRequestHandler):
    """Takes OTLP spans."""

    received: list[bytes] = []

    def do_POST(self) -> None:
        self.received.append(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *arguments: Any) -> None:
        pass


def test_log_lines_and_spans(text_serving: TextServing) -> None:
    """One log line a fault, JSON and without the request; a span a request below the caller's."""
    collector = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=collector.serve_forever, daemon=True).start()
    server = text_serving.gateway(
        OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{collector.server_port}",
        OTEL_BSP_SCHEDULE_DELAY="100",
        OTEL_SERVICE_NAME="texts",
    ).start()
    trace = "0af7651916cd43dd8448eb211c80319c"
    try:
        server.wait_for("/health/ready")
        headers = {"traceparent": f"00-{trace}-b7ad6b7169203331-01", "x-request-id": "mine"}
        assert server.post("texts", {"text": "secret tea"}, headers).status == 200
        for _ in range(3):
            assert server.post("texts", {"text": "[FAIL] secret"}, headers).status == 502
        slow = {"text": "[SLOW]", "timeout_ms": 500}
        assert server.post("texts", slow, {"x-request-id": "alone"}).status == 504

        def spans() -> list[Any]:
            """Those below the caller's trace, as they came over the wire."""
            groups = [
                scope
                for raw in list(Collector.received)
                for resource in ExportTraceServiceRequest.FromString(raw).resource_spans
                for scope in resource.scope_spans
            ]
            found = [span for group in groups for span in group.spans]
            return [span for span in found if span.trace_id == bytes.fromhex(trace)]

        def roots() -> list[Any]:
            return [span for span in spans() if span.name == "serve texts"]

        wait_until(lambda: len(roots()) == 4, 120)
        for root in roots():
            assert root.parent_span_id == bytes.fromhex("b7ad6b7169203331")
            stages = [span for span in spans() if span.parent_span_id == root.span_id]
            stages.sort(key=lambda span: int(span.start_time_unix_nano))
            seen = [span.name for span in stages]
            # One that failed came no further than the engine.
            assert seen in (["tokenize", "queue", "infer", "post"], ["tokenize", "queue", "infer"])
            assert stages[-1].end_time_unix_nano <= root.end_time_unix_nano
        wait_until(lambda: b"alone" in b"".join(Collector.received), 60)
        sent = b"".join(Collector.received)
        assert b"mine" in sent
        assert b"secret" not in sent
    finally:
        server.stop()
        collector.shutdown()
        collector.server_close()
    text = server.log.read_text()
    assert "secret" not in text
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    (alone,) = [line for line in lines if line.get("request_id") == "alone"]
    # A request that brought no trace is told of with the one that its span began.
    assert bytes.fromhex(alone["trace_id"]) in sent
    faults = [line for line in lines if line.get("code") == "engine_failed"]
    assert all(line["trace_id"] == trace for line in faults)
    # A line a second at most: the others are counted.
    assert 1 <= len(faults) <= 3
    assert faults[0]["request_id"] == "mine"
    assert (faults[0]["endpoint"], faults[0]["status"], faults[0]["level"]) == (
        "texts",
        502,
        "warning",
    )
