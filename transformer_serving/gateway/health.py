"""/health/live, /health/ready, /health/endpoints of one worker; /health is the second of them.

Tested by tests/gateway/test_front_door.py.
"""

from __future__ import annotations

from typing import Any

from transformer_serving.contract.errors import UNKNOWN_ENDPOINT, ServingError, unknown_endpoint
from transformer_serving.gateway.asgi import Send, send_json
from transformer_serving.gateway.golden_rounds import EVERY_S, GoldenRounds
from transformer_serving.gateway.shutdown import Shutdown

PREFIX = "/health/"
# Where compose files and probes of servers of one model ask.
PLAIN = "/health"
_ONE = "endpoints/"
OF_AN_ENDPOINT = PREFIX + _ONE
# A result this old says nothing any more. A round may wait for a change of the configuration, which
# waits for the requests that run, so it is far more than a round takes.
_STALE_S = 8 * EVERY_S
_NO_ROUTE = ServingError(
    UNKNOWN_ENDPOINT,
    "health is told at /health/live, /health/ready, /health/endpoints and /health/endpoints/NAME",
)


class Health:
    """What the golden requests say of the worker and of each endpoint; asking starts none."""

    def __init__(self, host: Any, rounds: GoldenRounds, shutdown: Shutdown) -> None:
        self._host = host
        self._rounds = rounds
        self._shutdown = shutdown

    async def answer(self, path: str, send: Send) -> None:
        name = path.removeprefix(PREFIX)
        results = self._rounds.results
        if name == "live":
            await send_json(send, 200, {"live": True})
        elif name in ("ready", PLAIN):
            reason = self.not_ready()
            status = 200 if reason is None else 503
            await send_json(send, status, {"ready": reason is None, "reason": reason})
        elif name == "endpoints":
            rows = [results[url].row() for url in sorted(results)]
            await send_json(send, 200, {"endpoints": rows})
        elif name.startswith(_ONE):
            await self._endpoint(name.removeprefix(_ONE).rstrip("/"), send)
        else:
            await _refuse(_NO_ROUTE, send)

    async def _endpoint(self, url: str, send: Send) -> None:
        try:
            status, row = self.of(url)
        except ServingError as error:
            await _refuse(error, send)
        else:
            await send_json(send, status, row)

    def of(self, url: str) -> tuple[int, dict[str, Any]]:
        """An endpoint's row: 200 where its requests may be sent to this worker, else 503.

        Raises ServingError (404).
        """
        processor = self._host.processor
        result = self._rounds.results.get(url)
        if processor is not None and url not in processor.get_endpoints():
            raise unknown_endpoint()
        row = {"endpoint": url, "state": "not asked"} if result is None else result.row()
        reason = self.not_ready()
        if reason is None and result is None:
            reason = "its first golden request is under way"
        elif reason is None and result is not None:
            reason = result.reason if result.state == "failed" else None
            if result.age_s > _STALE_S:
                reason = "its last golden request is too long ago"
        # Of a good one, what its row says beside it.
        told = {} if reason is None else {"reason": reason}
        return 200 if reason is None else 503, {**row, **told}

    def not_ready(self) -> str | None:
        """Why no requests should be sent here; None when they should.

        One bad endpoint does not count: with all workers alike it would empty the balancer.
        """
        if self._shutdown.stopping:
            return "shutting down"
        sync = getattr(self._host.processor, "_sync_daemon_thread", None)
        if sync is None:
            return "starting"
        if not sync.is_alive():
            return "the configuration's sync thread has ended"
        return None if self._rounds.first_done else "first golden requests under way"


async def _refuse(error: ServingError, send: Send) -> None:
    await send_json(send, error.kind.status, error.body())
