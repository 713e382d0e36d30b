"""What the operator can set on the code of bundles; each one declared once, in SETTINGS.

A bundle brings its own copy, and reads its settings only where the host makes its endpoint. So the
gateway, which knows this one, checks the rows that it knows before it starts.

Tested by tests/preprocess/test_settings.py and tests/gateway/test_settings.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from transformer_serving.contract.settings.setting import Setting, TextSetting
from transformer_serving.contract.settings.triton_addresses import (
    is_unix,
    read_addresses,
    split_addresses,
)

# clearml-serving's own, in whatever form its client takes.
STOCK_GRPC = "CLEARML_DEFAULT_TRITON_GRPC_ADDR"
_HOST = re.compile(r"(\[[^\[\]/]+\]|[^:/\[\]\s]+)(:[0-9]+)?")
_SOCKET = re.compile(r"(unix:.+)(:[0-9]+)")
_SECONDS = (0.001, 86_400)
TRANSPORT = TextSetting(
    "TRANSFORMER_SERVING_TRANSPORT",
    "http",
    "How Triton is called: http (cheaper) or grpc.",
    choices=("http", "grpc"),
)
TRITON_HTTP = TextSetting(
    "TRANSFORMER_SERVING_TRITON_HTTP",
    "",
    "Triton's HTTP address as host:port or unix:/path. Several with commas, or a name of "
    "several hosts, share the calls. Empty: the host of CLEARML_DEFAULT_TRITON_GRPC_ADDR with "
    "port 8000.",
)
TRITON_GRPC = TextSetting(
    "TRANSFORMER_SERVING_TRITON_GRPC",
    "",
    "Triton's gRPC address in the same forms, for transport grpc. Empty: "
    "CLEARML_DEFAULT_TRITON_GRPC_ADDR.",
)
TIMEOUT_S = Setting(
    "TRANSFORMER_SERVING_TIMEOUT_S",
    "30",
    *_SECONDS,
    "Seconds after which a request that brings no timeout_ms of its own is answered with 504.",
)
MAX_WAIT_S = Setting(
    "TRANSFORMER_SERVING_MAX_WAIT_S",
    "2",
    *_SECONDS,
    "Seconds that a request without timeout_ms may wait for others. It gets 503 at once where "
    "that would take longer at the rate measured lately.",
)
MAX_WAITING_TOKENS = Setting(
    "TRANSFORMER_SERVING_MAX_WAITING_TOKENS",
    "400000",
    1,
    10**9,
    "Tokens that may wait or be computed in one worker; beyond its share an endpoint gets 503.",
    is_whole=True,
)
CALLS_IN_FLIGHT = Setting(
    "TRANSFORMER_SERVING_CALLS_IN_FLIGHT",
    "2",
    1,
    64,
    "Calls of one endpoint and worker that one Triton may have at the same time.",
    is_whole=True,
)
MAX_STREAMS = Setting(
    "TRANSFORMER_SERVING_MAX_STREAMS",
    "128",
    1,
    100_000,
    "Sequences that text-generation may have running in one worker; beyond it 503.",
    is_whole=True,
)
GENERATION_TIMEOUT_S = Setting(
    "TRANSFORMER_SERVING_GENERATION_TIMEOUT_S",
    "600",
    *_SECONDS,
    "Seconds that text-generation may take where the request brings no timeout_ms.",
)
FIRST_TOKEN_S = Setting(
    "TRANSFORMER_SERVING_FIRST_TOKEN_S",
    "60",
    *_SECONDS,
    "Seconds that a sequence may wait for its first token, counted from the newest token of any "
    "other one of the same request; then 504.",
)
TOKEN_GAP_S = Setting(
    "TRANSFORMER_SERVING_TOKEN_GAP_S",
    "30",
    *_SECONDS,
    "Seconds without a token of a sequence that runs, after which it is given up as stalled.",
)
METRICS_PORT = Setting(
    "TRANSFORMER_SERVING_METRICS_PORT",
    "0",
    0,
    65_535,
    "Port with the worker's figures for Prometheus, where no gateway serves them "
    "at /metrics; 0: none. Several workers need PROMETHEUS_MULTIPROC_DIR.",
    is_whole=True,
)
METRICS_HOST = TextSetting(
    "TRANSFORMER_SERVING_METRICS_HOST",
    "127.0.0.1",
    "Address that the port above listens on.",
)
SETTINGS = (
    TRANSPORT,
    TRITON_HTTP,
    TRITON_GRPC,
    TIMEOUT_S,
    MAX_WAIT_S,
    MAX_WAITING_TOKENS,
    CALLS_IN_FLIGHT,
    MAX_STREAMS,
    GENERATION_TIMEOUT_S,
    FIRST_TOKEN_S,
    TOKEN_GAP_S,
    METRICS_PORT,
    METRICS_HOST,
)


def check_settings(environment: Mapping[str, str]) -> None:
    """Raises ValueError naming a wrong variable."""
    for row in SETTINGS:
        if isinstance(row, Setting):
            row.number(environment)
        else:
            row.text(environment)
    for row in (TRITON_HTTP, TRITON_GRPC):
        _address(row, environment)


def triton_http(environment: Mapping[str, str]) -> str:
    """Triton's HTTP, as set or at the host of its gRPC. Raises ValueError naming the variable."""
    return _address(TRITON_HTTP, environment) or ",".join(
        f"{host}:8000" for host, _ in _stock(TRITON_HTTP, environment)
    )


def triton_grpc(environment: Mapping[str, str]) -> str:
    """Triton's gRPC likewise. Raises ValueError naming the variable."""
    own = _address(TRITON_GRPC, environment)
    stock = environment.get(STOCK_GRPC, "")
    if not own and is_unix(stock):
        return stock
    return own or _checked(TRITON_GRPC, ",".join(map("".join, _stock(TRITON_GRPC, environment))))


def _stock(row: TextSetting, environment: Mapping[str, str]) -> list[tuple[str, str]]:
    """Hosts, or sockets without what tells them apart, with the port of gRPC behind a colon.

    Raises ValueError naming the variable of `row`, which can be set in its place.
    """
    found = []
    for address in split_addresses(environment.get(STOCK_GRPC) or "127.0.0.1:8001"):
        pattern = _SOCKET if is_unix(address) else _HOST
        # gRPC's own word for a name, which its client is free to write.
        read = pattern.fullmatch(address.removeprefix("dns:").removeprefix("///"))
        if read is None:
            raise ValueError(
                f"{row.name} is empty, and {STOCK_GRPC} is not host:port, from which it would "
                f"follow: set {row.name}"
            )
        found.append((read[1], read[2] or ":8001"))
    return found


def _address(row: TextSetting, environment: Mapping[str, str]) -> str:
    """Empty where none is set. Raises ValueError naming the variable."""
    given = row.text(environment)
    return _checked(row, given) if given else ""


def _checked(row: TextSetting, address: str) -> str:
    """Raises ValueError naming the variable."""
    try:
        read_addresses(address)
    except ValueError as error:
        raise ValueError(f"{row.name}: {error}") from None
    return address
