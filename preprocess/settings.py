"""The operator's settings of the inference container, as a bundle's code reads them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from transformer_serving.contract.preprocess_settings import (
    CALLS_IN_FLIGHT,
    FIRST_TOKEN_S,
    GENERATION_TIMEOUT_S,
    MAX_STREAMS,
    MAX_WAIT_S,
    MAX_WAITING_TOKENS,
    METRICS_HOST,
    METRICS_PORT,
    TIMEOUT_S,
    TOKEN_GAP_S,
    TRANSPORT,
    TRITON_GRPC,
    TRITON_HTTP,
    checked_address,
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
    transport = TRANSPORT.text(environment)
    grpc = _grpc_address(environment)
    return PreprocessSettings(
        transport=transport,
        triton=grpc if transport == "grpc" else _http_address(environment),
        triton_grpc=grpc,
        timeout_s=TIMEOUT_S.number(environment),
        max_wait_s=MAX_WAIT_S.number(environment),
        max_waiting_tokens=MAX_WAITING_TOKENS.whole(environment),
        calls_in_flight=CALLS_IN_FLIGHT.whole(environment),
        max_streams=MAX_STREAMS.whole(environment),
        generation_timeout_s=GENERATION_TIMEOUT_S.number(environment),
        first_token_s=FIRST_TOKEN_S.number(environment),
        token_gap_s=TOKEN_GAP_S.number(environment),
        metrics_port=METRICS_PORT.whole(environment),
        metrics_host=METRICS_HOST.text(environment),
    )


def _http_address(environment: Mapping[str, str]) -> str:
    stock = f"{_stock_address(environment).rsplit(':', 1)[0]}:8000"
    return checked_address(TRITON_HTTP, TRITON_HTTP.text(environment) or stock)


def _grpc_address(environment: Mapping[str, str]) -> str:
    given = TRITON_GRPC.text(environment)
    return checked_address(TRITON_GRPC, given or _stock_address(environment))


def _stock_address(environment: Mapping[str, str]) -> str:
    return environment.get("CLEARML_DEFAULT_TRITON_GRPC_ADDR") or "127.0.0.1:8001"
