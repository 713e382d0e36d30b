"""What the operator can set on the inference container; each one declared once, in SETTINGS."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Setting:
    """One environment variable: its name, its default as text, and the sentence for the docs."""

    name: str
    default: str
    help: str


SETTINGS = (
    Setting(
        "TRANSFORMER_SERVING_TRITON_HTTP",
        "",
        "Triton's HTTP address as host:port or unix:/path; empty: the host of "
        "CLEARML_DEFAULT_TRITON_GRPC_ADDR with port 8000.",
    ),
    Setting(
        "TRANSFORMER_SERVING_TIMEOUT_S",
        "30",
        "Seconds after which a request that brings no timeout_ms of its own is answered with 504.",
    ),
    Setting(
        "TRANSFORMER_SERVING_MAX_WAITING_TOKENS",
        "400000",
        "Tokens that may wait or be computed in one worker; beyond it requests get 503.",
    ),
    Setting(
        "TRANSFORMER_SERVING_CALLS_IN_FLIGHT",
        "2",
        "Engine calls of one endpoint and worker that may run at the same time.",
    ),
)


@dataclass(frozen=True)
class Settings:
    triton_http: str
    timeout_s: float
    max_waiting_tokens: int
    calls_in_flight: int


def read_settings(environment: Mapping[str, str] = os.environ) -> Settings:
    """The settings as the environment has them. Raises ValueError naming a wrong variable."""
    values = {row.name: environment.get(row.name) or row.default for row in SETTINGS}
    return Settings(
        triton_http=values["TRANSFORMER_SERVING_TRITON_HTTP"] or _beside_grpc(environment),
        timeout_s=_number(values, "TRANSFORMER_SERVING_TIMEOUT_S", 86_400),
        max_waiting_tokens=int(_number(values, "TRANSFORMER_SERVING_MAX_WAITING_TOKENS", 10**9)),
        calls_in_flight=int(_number(values, "TRANSFORMER_SERVING_CALLS_IN_FLIGHT", 64)),
    )


def _number(values: Mapping[str, str], name: str, high: int) -> float:
    """A number above 0 and at most `high`; whole ones are cut by the caller."""
    try:
        number = float(values[name])
    except ValueError:
        number = 0.0
    if not 0 < number <= high:
        raise ValueError(f"{name} must be a number above 0, at most {high}")
    return number


def _beside_grpc(environment: Mapping[str, str]) -> str:
    address = environment.get("CLEARML_DEFAULT_TRITON_GRPC_ADDR") or "127.0.0.1:8001"
    return f"{address.rsplit(':', 1)[0]}:8000"
