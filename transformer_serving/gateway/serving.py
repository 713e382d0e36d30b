"""How a request for an endpoint that was let in is answered: read, asked, sent.

Tested by tests/gateway/test_front_door.py.
"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from starlette.responses import Response

from transformer_serving.contract.body_memory import Share
from transformer_serving.contract.errors import UNKNOWN_ENDPOINT, ServingError, worker_leaves
from transformer_serving.contract.keys import Key
from transformer_serving.contract.worker.request_context import current_caller, current_endpoint
from transformer_serving.gateway.asgi import Receive, is_stream, send_response
from transformer_serving.gateway.asked import Asked, Reader
from transformer_serving.gateway.body.incoming import ClientGoneError, Incoming
from transformer_serving.gateway.callers import Caller, Callers
from transformer_serving.gateway.crowd import Crowd
from transformer_serving.gateway.exchange import Exchange
from transformer_serving.gateway.figures.metrics import Metrics
from transformer_serving.gateway.figures.traffic import Visit
from transformer_serving.gateway.host.errors import unknown_response
from transformer_serving.gateway.paths_by_setting import at_its_own_path
from transformer_serving.gateway.rollout.mirror import Mirroring
from transformer_serving.gateway.routes import Call
from transformer_serving.gateway.short_way import Kind, ShortWay


class Taken(NamedTuple):
    """A request for an endpoint, let in."""

    call: Call
    exchange: Exchange
    visit: Visit
    key: Key | None


class Serving:
    """Of one worker. `callers` are those whose requests run; `mirroring` asks the candidate of a
    rollout what was answered.
    """

    def __init__(
        self, host: Any, short_way: ShortWay, reader: Reader, crowd: Crowd, metrics: Metrics
    ) -> None:
        self._host = host
        self._short_way = short_way
        self._reader = reader
        self._metrics = metrics
        self._crowd = crowd
        self.callers = Callers()
        self.mirroring = Mirroring(lambda: host.processor)

    async def answer(self, taken: Taken, incoming: Incoming, share: Share) -> ServingError | None:
        """Answers, or says why the request is refused."""
        call, exchange, visit, key = taken
        try:
            raw = await incoming.read(exchange.headers, share)
            asked = await self._reader.read(call, raw, exchange.headers, key)
        except ServingError as error:
            return error.without_frames()
        except ClientGoneError:
            visit.answered("left", 0)
            await exchange.tell_cut_off()
            return None
        if asked.kind is not Kind.UNKNOWN:
            current_endpoint.set(asked.target.name)
        visit.asks(asked.target)
        if asked.refusal is not None:
            self._crowd.gave(call, asked.refusal, visit.endpoint)
            return await self._send(asked.refusal, exchange, visit)
        self._crowd.let_in(call, raw)
        caller = self.callers.enter(exchange.receive)
        current_caller.set(caller.left)
        try:
            if asked.kind is Kind.HOSTS:
                scope, receive, send = exchange.for_the_host(raw, caller)
                scope = at_its_own_path(scope, asked.target)
                await self._host.app(scope, receive, visit.watching(send))
                return None
            del raw
            response = await self._answer_of(asked)
            if is_stream(response):
                share.give_back(share.held)
                del asked
                await self._stream(response, exchange, visit, caller)
                return None
        finally:
            self.callers.leave(caller)
        refusal = await self._send(response, exchange, visit, caller)
        if self.mirroring.mirrors:
            self.mirroring.offer(asked, response, share.held)
        return refusal

    async def _answer_of(self, asked: Asked) -> Response:
        if asked.kind is Kind.OURS:
            return await self._short_way.answer(asked.target, asked.body)
        # Not the host's answer, which repeats up to 60 kB of the name. Nor is the host asked: after
        # a change in that moment it would answer, from a body that was not read for it.
        self._metrics.refused(UNKNOWN_ENDPOINT)
        return unknown_response()

    async def _stream(
        self, response: Response, exchange: Exchange, visit: Visit, caller: Caller
    ) -> None:
        """Its caller is watched to its end."""
        await self._forward(response, exchange, visit, caller.receive_end)
        if caller.is_missed_by(response):
            # Nothing in it says so: it is not to look whole.
            raise asyncio.CancelledError
        visit.answered(getattr(response, "code", None), response.status_code)

    async def _send(
        self, response: Response, exchange: Exchange, visit: Visit, caller: Caller | None = None
    ) -> ServingError | None:
        """Or say why it is not the answer."""
        if caller is not None and caller.is_missed_by(response):
            return worker_leaves()
        visit.answered(getattr(response, "code", None), response.status_code)
        # Nobody reads the answer of one who left; a server may even object to it.
        left = caller is not None and caller.has_left
        if not left or response.background is not None:
            await self._forward(response, exchange, visit, exchange.receive)
        return None

    async def _forward(
        self, response: Response, exchange: Exchange, visit: Visit, receive: Receive
    ) -> None:
        visit.begun = True
        await send_response(
            response, exchange.scope, receive, exchange.send, exchange.answer_headers
        )
