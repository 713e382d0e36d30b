"""What the operator can set on the gateway; each one declared once, in SETTINGS."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from transformer_serving.contract.body_limits import USUAL_ELEMENTS
from transformer_serving.contract.naming import ASKED
from transformer_serving.contract.settings.setting import Setting, TextSetting

MAX_BODY_BYTES = Setting(
    "TRANSFORMER_SERVING_MAX_BODY_BYTES",
    "2000000",
    1,
    2**31 - 1,
    "Bytes of a request's body, as sent and after gunzip; larger ones are answered with 413.",
    is_whole=True,
)
MAX_BODY_ELEMENTS = Setting(
    "TRANSFORMER_SERVING_MAX_BODY_ELEMENTS",
    str(USUAL_ELEMENTS),
    1,
    2**31 - 1,
    "Lists, objects and values in a JSON body; one with more is answered with 413, unparsed.",
    is_whole=True,
)
BODY_MEMORY_BYTES = Setting(
    "TRANSFORMER_SERVING_BODY_MEMORY_BYTES",
    "67108864",
    1,
    2**39,
    "Bytes of bodies that a worker holds, of all requests together; beyond it bodies get 503. "
    "At least TRANSFORMER_SERVING_MAX_BODY_BYTES.",
    is_whole=True,
)
BODY_SECONDS = Setting(
    "TRANSFORMER_SERVING_BODY_SECONDS",
    "60",
    0.01,
    86_400,
    "Seconds within which a whole body must have come; a slower one is answered with 400.",
)
BODY_STALL_SECONDS = Setting(
    "TRANSFORMER_SERVING_BODY_STALL_SECONDS",
    "10",
    0.01,
    86_400,
    "Seconds without a byte of a body that is not whole; it is answered with 400.",
)
DRAIN_SECONDS = Setting(
    "TRANSFORMER_SERVING_DRAIN_SECONDS",
    "0",
    0,
    3_600,
    "Seconds between SIGTERM, from when /health/ready answers 503, and the listener's closing.",
)
GRACEFUL_SECONDS = Setting(
    "TRANSFORMER_SERVING_GRACEFUL_SECONDS",
    "30",
    1,
    3_600,
    "Seconds that requests and streams still have once the listener has closed; then requests are "
    "answered with 503, and streams end with an error event.",
)
PAGE = Setting(
    "TRANSFORMER_SERVING_PAGE",
    "1",
    0,
    1,
    "1: pages for a browser, at / to try the endpoints and at /docs of their API; 0: none.",
    is_whole=True,
)
GRPC_PORT = Setting(
    "TRANSFORMER_SERVING_GRPC_PORT",
    "0",
    0,
    65_535,
    "Port of the Open Inference Protocol's gRPC, on the front's own address; 0: none.",
    is_whole=True,
)
# Paths of recipes that serve one model: that of generated text, and that of the queue before a
# pipeline. Each asks the endpoint that its setting names.
GENERATE, ROOT = "/generate", "/"
GENERATE_ENDPOINT = TextSetting(
    "TRANSFORMER_SERVING_GENERATE_ENDPOINT",
    "",
    "Name of the endpoint, or NAME/VERSION, that POST /generate asks; empty: none.",
    rule=ASKED,
)
ROOT_ENDPOINT = TextSetting(
    "TRANSFORMER_SERVING_ROOT_ENDPOINT",
    "",
    "Name of the endpoint, or NAME/VERSION, that POST / asks; empty: none.",
    rule=ASKED,
)
LOG_REQUESTS = Setting(
    "TRANSFORMER_SERVING_LOG_REQUESTS",
    "0",
    0,
    1,
    "1: a log line for every request of an endpoint; 0: for faults alone, one a second and code.",
    is_whole=True,
)
# A pod of the official chart has it as a variable; compose, our chart and `up` give --workers.
WORKERS = Setting(
    "CLEARML_SERVING_NUM_PROCESS",
    "1",
    1,
    1_000,
    "Worker processes in each inference container.",
    is_whole=True,
)
SETTINGS = (
    MAX_BODY_BYTES,
    MAX_BODY_ELEMENTS,
    BODY_MEMORY_BYTES,
    BODY_SECONDS,
    BODY_STALL_SECONDS,
    DRAIN_SECONDS,
    GRACEFUL_SECONDS,
    PAGE,
    GRPC_PORT,
    GENERATE_ENDPOINT,
    ROOT_ENDPOINT,
    LOG_REQUESTS,
)


@dataclass(frozen=True)
class GatewaySettings:
    max_body_bytes: int
    max_body_elements: int
    body_memory_bytes: int
    body_seconds: float
    body_stall_seconds: float
    drain_seconds: float
    page: bool
    grpc_port: int
    generate_endpoint: str
    root_endpoint: str
    log_requests: bool
    graceful_seconds: float


def read_settings(environment: Mapping[str, str] = os.environ) -> GatewaySettings:
    """The settings as the environment has them. Raises ValueError naming a wrong variable."""
    settings = GatewaySettings(
        max_body_bytes=MAX_BODY_BYTES.whole(environment),
        max_body_elements=MAX_BODY_ELEMENTS.whole(environment),
        body_memory_bytes=BODY_MEMORY_BYTES.whole(environment),
        body_seconds=BODY_SECONDS.number(environment),
        body_stall_seconds=BODY_STALL_SECONDS.number(environment),
        drain_seconds=DRAIN_SECONDS.number(environment),
        page=PAGE.number(environment) == 1,
        grpc_port=GRPC_PORT.whole(environment),
        generate_endpoint=GENERATE_ENDPOINT.text(environment),
        root_endpoint=ROOT_ENDPOINT.text(environment),
        log_requests=LOG_REQUESTS.number(environment) == 1,
        graceful_seconds=GRACEFUL_SECONDS.number(environment),
    )
    if settings.body_memory_bytes < settings.max_body_bytes:
        raise ValueError(f"{BODY_MEMORY_BYTES.name} must be at least {MAX_BODY_BYTES.name}")
    return settings
