"""The port itself: each worker listens on it in its own loop, with the front's own TLS files.

Tested by tests/gateway/test_grpc.py and tests/gateway/test_grpc_port.py.
"""

from __future__ import annotations

import asyncio

import grpc

from transformer_serving.gateway.connections import KEPT_SECONDS
from transformer_serving.gateway.grpc_port.service import Door, Service
from transformer_serving.gateway.server.tls import Tls
from transformer_serving.gateway.settings import GatewaySettings

# Of a call whose message nobody reads yet gRPC holds what fits into the stream's window, 64 KiB as
# long as that does not grow by itself: 32 MiB of all these.
_MAX_CALLS = 512
# Clients of gRPC's own library ping once a second at the most. Its servers take one in five minutes
# of a call that waits, in two hours beside none, and end the connection at the third too many.
_PING_INTERVAL_MS = 500


class GrpcPort:
    """Serves `app` on `address` from `start` to `stop`; `ended` is set after the last answer."""

    def __init__(
        self,
        app: Door,
        address: str,
        settings: GatewaySettings,
        *,
        graceful_seconds: float,
        tls: Tls | None = None,
        kept_seconds: float = KEPT_SECONDS,
    ) -> None:
        self.ended = asyncio.Event()
        self._graceful_seconds = graceful_seconds
        self._server = grpc.aio.server(
            maximum_concurrent_rpcs=_MAX_CALLS,
            options=(
                ("grpc.max_receive_message_length", settings.max_body_bytes),
                ("grpc.max_send_message_length", -1),
                ("grpc.so_reuseport", 1),
                ("grpc.http2.bdp_probe", 0),
                ("grpc.http2.min_ping_interval_without_data_ms", _PING_INTERVAL_MS),
                ("grpc.keepalive_permit_without_calls", 1),
                # Callers are asked to connect anew, first and in good time; what runs then ends,
                # however long it takes: no grace is said, and gRPC's own is endless.
                ("grpc.max_connection_age_ms", int(1000 * kept_seconds)),
            ),
        )
        service = Service(app, settings)
        self._server.add_generic_rpc_handlers((service.handler(),))
        self._address = address
        # Read here, so that files which are gone end a worker before it makes its endpoints.
        self._credentials = None if tls is None else _credentials(tls)
        self._stopping: asyncio.Task[None] | None = None

    async def start(self) -> None:
        # gRPC listens from here on: the system gives it its share of new connections at once.
        if self._credentials is None:
            self._server.add_insecure_port(self._address)
        else:
            self._server.add_secure_port(self._address, self._credentials)
        await self._server.start()

    def stop(self) -> None:
        """Take no more calls, and give those that run their time."""
        if self._stopping is None:
            self._stopping = asyncio.get_running_loop().create_task(self._stop())

    async def _stop(self) -> None:
        await self._server.stop(self._graceful_seconds)
        self.ended.set()


def _credentials(tls: Tls) -> grpc.ServerCredentials:
    pair = (tls.key.read_bytes(), tls.cert.read_bytes())
    authorities = None if tls.client_ca is None else tls.client_ca.read_bytes()
    return grpc.ssl_server_credentials(
        [pair], authorities, require_client_auth=authorities is not None
    )
