"""How the controller reaches its Triton: never through a proxy of the environment, which would ask
its own 127.0.0.1.
"""

from __future__ import annotations

import urllib.request

# Of every gRPC client.
CHANNEL = [
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.max_receive_message_length", -1),
]
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def read_page(url: str, timeout_s: float) -> str:
    """Triton's page of figures. Raises OSError, HTTPException."""
    with _opener.open(url, timeout=timeout_s) as answer:
        return str(answer.read().decode("utf-8", "replace"))
