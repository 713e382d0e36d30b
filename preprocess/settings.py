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
)


@dataclass(frozen=True)
class Settings:
    triton_http: str
    timeout_s: float


def read_settings(environment: Mapping[str, str] = os.environ) -> Settings:
    """The settings as the environment has them. Raises ValueError naming a wrong variable."""
    values = {row.name: environment.get(row.name) or row.default for row in SETTINGS}
    timeout = values["TRANSFORMER_SERVING_TIMEOUT_S"]
    try:
        timeout_s = float(timeout)
    except ValueError:
        timeout_s = 0.0
    if not 0 < timeout_s <= 86_400:
        raise ValueError("TRANSFORMER_SERVING_TIMEOUT_S must be seconds from 0 to 86400")
    return Settings(
        values["TRANSFORMER_SERVING_TRITON_HTTP"] or _beside_grpc(environment), timeout_s
    )


def _beside_grpc(environment: Mapping[str, str]) -> str:
    address = environment.get("CLEARML_DEFAULT_TRITON_GRPC_ADDR") or "127.0.0.1:8001"
    return f"{address.rsplit(':', 1)[0]}:8000"
