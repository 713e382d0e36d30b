"""/health/live, /health/ready and /health/endpoints of one worker."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import orjson
from starlette.responses import Response

from contract.request_context import GoldenBody
from gateway.asgi import Send, send_json
from gateway.building import preprocess_of, serves_responses
from gateway.short_way import ShortWay, Target
from gateway.shutdown import Shutdown

PREFIX = "/health/"
# For endpoints that bring no golden body of their own.
_SHORT_TEXT = {"text": "ready"}
_GOLDEN_TIMEOUT_S = 10.0
_ROUND_EVERY_S = 15.0


@dataclass(frozen=True)
class Golden:
    """An endpoint's last golden request: 'ok', 'failed' with a reason, or 'not asked'."""

    endpoint: str
    state: str
    time: str
    reason: str | None


class Health:
    """Golden requests to the endpoints that are ours, and what they say of the worker."""

    def __init__(self, host: Any, short_way: ShortWay, shutdown: Shutdown) -> None:
        self._host = host
        self._short_way = short_way
        self._shutdown = shutdown
        self._results: dict[str, Golden] = {}
        self._first_round_done = False
        self._last_round = float("-inf")
        self._round: asyncio.Task[None] | None = None

    async def answer(self, path: str, send: Send) -> None:
        name = path.removeprefix(PREFIX)
        if name == "live":
            await send_json(send, 200, {"live": True})
        elif name == "ready":
            self.start_round()
            reason = self.not_ready()
            status = 200 if reason is None else 503
            await send_json(send, status, {"ready": reason is None, "reason": reason})
        elif name == "endpoints":
            self.start_round()
            rows = [asdict(self._results[url]) for url in sorted(self._results)]
            await send_json(send, 200, {"endpoints": rows})
        else:
            routes = "health routes: /health/live, /health/ready, /health/endpoints"
            await send_json(send, 404, {"detail": routes})

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
        return None if self._first_round_done else "first golden requests under way"

    def start_round(self) -> None:
        """Ask every endpoint in the background, unless one round is under way or just was."""
        now = time.monotonic()
        if self._host.processor is None or now - self._last_round < _ROUND_EVERY_S:
            return
        if self._round is None or self._round.done():
            self._last_round = now
            self._round = asyncio.get_running_loop().create_task(self._ask_all())

    async def _ask_all(self) -> None:
        try:
            urls = list(self._host.processor.get_endpoints())
            results = {url: await self._built(url) for url in urls}
            for golden in await asyncio.gather(
                *(self._ask(url) for url, failed in results.items() if failed is None)
            ):
                results[golden.endpoint] = golden
            # Replaced as a whole, so that removed endpoints leave.
            self._results = {url: golden for url, golden in results.items() if golden is not None}
        finally:
            self._first_round_done = True

    async def _ask(self, url: str) -> Golden:
        if not serves_responses(self._host.processor, url):
            return _result(url, "not asked", "not known to run this project's preprocess code")
        try:
            answer = await asyncio.wait_for(
                self._short_way.answer(Target(url, None), self._body(url)), _GOLDEN_TIMEOUT_S
            )
        except TimeoutError:
            return _result(url, "failed", f"no answer within {_GOLDEN_TIMEOUT_S:g} s")
        if answer.status_code == 200:
            return _result(url, "ok", None)
        return _result(url, "failed", _reason(answer))

    def _body(self, url: str) -> GoldenBody:
        """What the bundle says that it must be able to answer."""
        endpoint = getattr(preprocess_of(self._host.processor, url), "endpoint", None)
        return GoldenBody(getattr(endpoint, "golden", None) or _SHORT_TEXT)

    async def _built(self, url: str) -> Golden | None:
        """None when the endpoint is ready to be asked, else why not."""
        failure = await self._short_way.build(url)
        # Building blocks the loop: requests get their turn between two endpoints.
        await asyncio.sleep(0)
        return None if failure is None else _result(url, "failed", _reason(failure))


def _result(url: str, state: str, reason: str | None) -> Golden:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return Golden(url, state, now, reason)


def _reason(answer: Response) -> str:
    """Status and, where the answer is one of our errors, its code and message."""
    try:
        body = orjson.loads(answer.body)
        return f"{answer.status_code} {body['code']}: {body['message']}"
    except (ValueError, KeyError, TypeError):
        return f"answers {answer.status_code}"
