"""The operator's settings of the inference container, as a bundle's code reads them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from transformer_serving.contract.settings.preprocess import (
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
    triton_grpc,
    triton_http,
)
from transformer_serving.contract.settings.setting import TextSetting


@dataclass(frozen=True)
class PreprocessSettings:
    """`triton` is the address for the chosen transport, `triton_grpc` what streams come from; the
    one that an endpoint does not use is empty where none follows from clearml-serving's own."""

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


def read_settings(
    environment: Mapping[str, str] = os.environ, *, has_streams: bool = False
) -> PreprocessSettings:
    """The settings as the environment has them. Raises ValueError naming a wrong variable, and for
    an endpoint that `has_streams` where none says where they come from."""
    transport = TRANSPORT.text(environment)
    is_by_grpc = transport == "grpc"
    grpc = _address(TRITON_GRPC, triton_grpc, environment, is_needed=has_streams or is_by_grpc)
    if is_by_grpc:
        triton = grpc
    else:
        triton = _address(TRITON_HTTP, triton_http, environment, is_needed=not has_streams)
    return PreprocessSettings(
        transport=transport,
        triton=triton,
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


def _address(
    row: TextSetting,
    read: Callable[[Mapping[str, str]], str],
    environment: Mapping[str, str],
    *,
    is_needed: bool,
) -> str:
    """Empty where none follows and none is needed. Raises ValueError naming a wrong variable."""
    if is_needed or row.text(environment):
        return read(environment)
    with suppress(ValueError):
        return read(environment)
    return ""
