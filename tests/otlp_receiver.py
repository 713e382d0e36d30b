"""A receiver of OTLP over HTTP: reads the messages of opentelemetry-proto, binary and as JSON."""

from __future__ import annotations

import base64
import contextlib
import http.server
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.json_format import ParseDict  # type: ignore[import-untyped]
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.engine.triton_server import wait_until

# Ids are hexadecimal in OTLP's JSON, and base64 in that of protobuf.
_IDS = ("traceId", "spanId", "parentSpanId")


@dataclass(frozen=True)
class Received:
    """One span; ids in hexadecimal digits, `parent` empty for a root."""

    service: str
    span: Any

    @property
    def name(self) -> str:
        return str(self.span.name)

    @property
    def trace(self) -> str:
        return bytes(self.span.trace_id).hex()

    @property
    def id(self) -> str:
        return bytes(self.span.span_id).hex()

    @property
    def parent(self) -> str:
        return bytes(self.span.parent_span_id).hex()

    @property
    def links(self) -> set[tuple[str, str]]:
        return {(bytes(link.trace_id).hex(), bytes(link.span_id).hex()) for link in self.span.links}

    @property
    def attributes(self) -> dict[str, Any]:
        return {
            row.key: getattr(row.value, row.value.WhichOneof("value"))
            for row in self.span.attributes
        }


@dataclass
class Receiver:
    """`status` is what it answers; while `hangs` is set, nothing."""

    port: int = 0
    status: int = 200
    bodies: list[bytes] = field(default_factory=list)
    messages: list[Any] = field(default_factory=list)
    asked: threading.Event = field(default_factory=threading.Event)
    goes_on: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.goes_on.set()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def spans(self, trace: str | None = None) -> list[Received]:
        found = [
            Received(_service(group.resource), span)
            for message in list(self.messages)
            for group in message.resource_spans
            for scope in group.scope_spans
            for span in scope.spans
        ]
        return [span for span in found if trace in (None, span.trace)]

    def wait_for(self, count: int, trace: str | None = None, seconds: float = 60) -> list[Received]:
        """All spans, of that trace, once there are so many."""
        wait_until(
            lambda: len(self.spans(trace)) >= count, seconds,
            lambda: str([(span.service, span.name) for span in self.spans(trace)]),
        )  # fmt: skip
        return self.spans(trace)


@contextlib.contextmanager
def receiver() -> Iterator[Receiver]:
    made = Receiver()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            made.asked.set()
            made.goes_on.wait()
            if made.status == 200:
                assert self.path == "/v1/traces"
                made.bodies.append(body)
                made.messages.append(_message(body, self.headers["content-type"]))
            with contextlib.suppress(OSError):
                self.send_response(made.status)
                self.send_header("content-length", "0")
                self.end_headers()

        def log_message(self, *arguments: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    made.port = server.server_port
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    try:
        yield made
    finally:
        made.goes_on.set()
        server.shutdown()
        serving.join()
        server.server_close()


def _message(body: bytes, media_type: str) -> Any:
    if media_type.startswith("application/x-protobuf"):
        return ExportTraceServiceRequest.FromString(body)
    assert media_type.startswith("application/json"), media_type
    return ParseDict(_base64_ids(json.loads(body)), ExportTraceServiceRequest())


def _base64_ids(value: Any) -> Any:
    if isinstance(value, list):
        return [_base64_ids(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {
        name: base64.b64encode(bytes.fromhex(one)).decode() if name in _IDS else _base64_ids(one)
        for name, one in value.items()
    }


def _service(resource: Any) -> str:
    return next(
        (row.value.string_value for row in resource.attributes if row.key == "service.name"), ""
    )
