"""What the operator can set on the inference container; each one declared once, in SETTINGS."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from preprocess.triton.addresses import read_addresses


@dataclass(frozen=True)
class Setting:
    """One environment variable: its name, its default as text, and the sentence for the docs."""

    name: str
    default: str
    help: str


SETTINGS = (
    Setting(
        "TRANSFORMER_SERVING_TRANSPORT",
        "http",
        "How Triton is called: http (cheaper) or grpc.",
    ),
    Setting(
        "TRANSFORMER_SERVING_TRITON_HTTP",
        "",
        "Triton's HTTP address as host:port or unix:/path. Several with commas, or a name of "
        "several hosts, share the calls. Empty: the host of CLEARML_DEFAULT_TRITON_GRPC_ADDR with "
        "port 8000.",
    ),
    Setting(
        "TRANSFORMER_SERVING_TRITON_GRPC",
        "",
        "Triton's gRPC address in the same forms, for transport grpc. Empty: "
        "CLEARML_DEFAULT_TRITON_GRPC_ADDR.",
    ),
    Setting(
        "TRANSFORMER_SERVING_TIMEOUT_S",
        "30",
        "Seconds after which a request that brings no timeout_ms of its own is answered with 504.",
    ),
    Setting(
        "TRANSFORMER_SERVING_MAX_WAIT_S",
        "2",
        "Seconds that a request without timeout_ms may wait for others. It gets 503 at once where "
        "that would take longer at the rate measured lately.",
    ),
    Setting(
        "TRANSFORMER_SERVING_MAX_WAITING_TOKENS",
        "400000",
        "Tokens that may wait or be computed in one worker; beyond its share an endpoint gets 503.",
    ),
    Setting(
        "TRANSFORMER_SERVING_CALLS_IN_FLIGHT",
        "2",
        "Calls of one endpoint and worker that one Triton may have at the same time.",
    ),
    Setting(
        "TRANSFORMER_SERVING_MAX_STREAMS",
        "128",
        "Sequences that text-generation may have running in one worker; beyond it 503.",
    ),
    Setting(
        "TRANSFORMER_SERVING_GENERATION_TIMEOUT_S",
        "600",
        "Seconds that text-generation may take where the request brings no timeout_ms.",
    ),
    Setting(
        "TRANSFORMER_SERVING_FIRST_TOKEN_S",
        "60",
        "Seconds that a sequence may wait for its first token; then 504.",
    ),
    Setting(
        "TRANSFORMER_SERVING_TOKEN_GAP_S",
        "30",
        "Seconds without a token of a sequence that runs, after which it is given up as stalled.",
    ),
    Setting(
        "TRANSFORMER_SERVING_METRICS_PORT",
        "0",
        "Port with the worker's figures for Prometheus, where no gateway serves them "
        "at /metrics; 0: none. Several workers need PROMETHEUS_MULTIPROC_DIR.",
    ),
    Setting(
        "TRANSFORMER_SERVING_METRICS_HOST",
        "127.0.0.1",
        "Address that the port above listens on.",
    ),
)


@dataclass(frozen=True)
class PreprocessSettings:
    """`triton` is the address for the chosen transport, `triton_grpc` what streams come from."""

    transport: str
    triton: str
    triton_grpc: str
    timeout_s: float
    max_wait_s: float
    max_waiting_tokens: int
    calls_in_flight: int
    max_streams: int
    generation_timeout_s: float
    first_token_s: float
    token_gap_s: float
    metrics_port: int
    metrics_host: str


def read_settings(environment: Mapping[str, str] = os.environ) -> PreprocessSettings:
    """The settings as the environment has them. Raises ValueError naming a wrong variable."""
    values = {row.name: environment.get(row.name) or row.default for row in SETTINGS}
    transport = values["TRANSFORMER_SERVING_TRANSPORT"]
    if transport not in _ADDRESSES:
        raise ValueError(f"TRANSFORMER_SERVING_TRANSPORT must be one of {', '.join(_ADDRESSES)}")
    return PreprocessSettings(
        transport=transport,
        triton=_ADDRESSES[transport](values, environment),
        triton_grpc=_grpc_address(values, environment),
        timeout_s=_seconds(values, "TRANSFORMER_SERVING_TIMEOUT_S", 86_400),
        max_wait_s=_seconds(values, "TRANSFORMER_SERVING_MAX_WAIT_S", 86_400),
        max_waiting_tokens=_whole(values, "TRANSFORMER_SERVING_MAX_WAITING_TOKENS", 1, 10**9),
        calls_in_flight=_whole(values, "TRANSFORMER_SERVING_CALLS_IN_FLIGHT", 1, 64),
        max_streams=_whole(values, "TRANSFORMER_SERVING_MAX_STREAMS", 1, 100_000),
        generation_timeout_s=_seconds(values, "TRANSFORMER_SERVING_GENERATION_TIMEOUT_S", 86_400),
        first_token_s=_seconds(values, "TRANSFORMER_SERVING_FIRST_TOKEN_S", 86_400),
        token_gap_s=_seconds(values, "TRANSFORMER_SERVING_TOKEN_GAP_S", 86_400),
        metrics_port=_whole(values, "TRANSFORMER_SERVING_METRICS_PORT", 0, 65_535),
        metrics_host=values["TRANSFORMER_SERVING_METRICS_HOST"],
    )


def _whole(values: Mapping[str, str], name: str, low: int, high: int) -> int:
    text = values[name].strip()
    # Longer digits are no number that is meant, and int() would refuse thousands of them.
    if not (text.isdecimal() and len(text) < 20 and low <= int(text) <= high):
        raise ValueError(f"{name} must be a whole number from {low} to {high}")
    return int(text)


def _seconds(values: Mapping[str, str], name: str, high: int) -> float:
    try:
        number = float(values[name])
    except ValueError:
        number = -1.0
    if not 0 < number <= high:
        raise ValueError(f"{name} must be a number above 0, at most {high}")
    return number


def _http_address(values: Mapping[str, str], environment: Mapping[str, str]) -> str:
    return _checked(
        "TRANSFORMER_SERVING_TRITON_HTTP",
        values["TRANSFORMER_SERVING_TRITON_HTTP"]
        or f"{_stock_address(environment).rsplit(':', 1)[0]}:8000",
    )


def _grpc_address(values: Mapping[str, str], environment: Mapping[str, str]) -> str:
    return _checked(
        "TRANSFORMER_SERVING_TRITON_GRPC",
        values["TRANSFORMER_SERVING_TRITON_GRPC"] or _stock_address(environment),
    )


def _stock_address(environment: Mapping[str, str]) -> str:
    return environment.get("CLEARML_DEFAULT_TRITON_GRPC_ADDR") or "127.0.0.1:8001"


def _checked(name: str, address: str) -> str:
    try:
        read_addresses(address)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    return address


_ADDRESSES = {"http": _http_address, "grpc": _grpc_address}
