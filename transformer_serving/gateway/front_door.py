"""Every request's way through the gateway: health, the short way, or the host's app."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from transformer_serving.contract.errors import ServingError, worker_leaves
from transformer_serving.contract.keys import Key
from transformer_serving.contract.worker.deferred import do_all_now, end_all
from transformer_serving.contract.worker.log_lines import write_json_lines
from transformer_serving.contract.worker.request_context import current_key
from transformer_serving.contract.worker.tracing import read_tracing
from transformer_serving.gateway.asgi import Message, Receive, Scope, Send, adding
from transformer_serving.gateway.asked import Reader
from transformer_serving.gateway.body.incoming import Incoming
from transformer_serving.gateway.body.json_body import Parser
from transformer_serving.gateway.body.memory import body_memory
from transformer_serving.gateway.cards import Cards
from transformer_serving.gateway.connections import KEPT_SECONDS, Connections
from transformer_serving.gateway.crowd import Crowd
from transformer_serving.gateway.descriptions import DESCRIPTIONS
from transformer_serving.gateway.descriptions.description import Question, tell
from transformer_serving.gateway.exchange import Exchange
from transformer_serving.gateway.figures.metrics import PATH as METRICS, Metrics
from transformer_serving.gateway.figures.traffic import NOBODY, Traffic, Visit
from transformer_serving.gateway.golden_rounds import GoldenResult, GoldenRounds
from transformer_serving.gateway.health import PLAIN, PREFIX, Health
from transformer_serving.gateway.idle_collection import collect_if_due
from transformer_serving.gateway.keys import WITHOUT_KEY, Keys, check_may_ask
from transformer_serving.gateway.page.files import PageFiles
from transformer_serving.gateway.paths_by_setting import PathsBySetting, nobody_there
from transformer_serving.gateway.request_lines import RefusalLines, RequestLine
from transformer_serving.gateway.request_trace import trace_of
from transformer_serving.gateway.routes import Call, call_of
from transformer_serving.gateway.serving import Serving, Taken
from transformer_serving.gateway.settings import GatewaySettings
from transformer_serving.gateway.short_way import ShortWay
from transformer_serving.gateway.shutdown import Lifespan, Shutdown, end_running

_POLICY_VIOLATION = 1008


class FrontDoor:
    """The ASGI app around `host`, which is clearml_serving.serving.main or its like.

    `keys` None lets everybody ask everything.
    """

    def __init__(
        self, host: Any, settings: GatewaySettings, keys: Keys | None = None, *,
        kept_seconds: float = KEPT_SECONDS,
    ) -> None:  # fmt: skip
        self._host = host
        self._settings = settings
        self._keys = keys
        self._shutdown = Shutdown(settings.drain_seconds)
        self._short_way = ShortWay(host)
        self._traffic = Traffic(self._short_way)
        self._tracing = read_tracing()
        way, traced = self._short_way, self._tracing is not None
        self._metrics = Metrics(way.names, self._tell, way.generating, self._forget, traced=traced)
        self._refusals = RefusalLines()
        self._crowd = Crowd(settings, keys, self._traffic.durations, self._metrics.asked)
        reader = Reader(self._short_way, Parser(settings.max_body_elements))
        self._serving = Serving(host, self._short_way, reader, self._crowd, self._metrics)
        self.bodies = body_memory(settings.body_memory_bytes)
        self._running: set[asyncio.Task[Any] | None] = set()
        self._ending: asyncio.Future[None] | None = None
        self._connections = Connections(kept_seconds)
        self._rounds = GoldenRounds(host, self._short_way, self._note_round)
        self._lifespan = Lifespan(
            self._shutdown, started=self._rounds.start,
            stopping=(self._rounds.stop, self._serving.mirroring.stop), ended=self._end,
        )  # fmt: skip
        self._health = Health(host, self._rounds, self._shutdown)
        self._cards = Cards(host, self._short_way)
        self._page = PageFiles(shown=settings.page)
        self._by_setting = PathsBySetting(settings)
        write_json_lines()

    async def _note_round(self, results: Mapping[str, GoldenResult]) -> None:
        await self._metrics.goldens(results)
        if not self._running:
            collect_if_due()

    def _tell(self) -> None:
        """Every figure that was kept back, now."""
        self._crowd.tell()
        do_all_now()

    def _end(self) -> None:
        """The same after the last answer, with what would wait for more of its kind."""
        self._crowd.tell()
        end_all()

    def _forget(self, endpoints: Collection[str]) -> None:
        """What is kept for figures of endpoints that are gone for good."""
        for keeper in (self._short_way, self._traffic, self._serving.mirroring):
            keeper.forget(endpoints)

    def turns_away(self, scope: Scope, raw: bytes) -> Iterable[Message] | None:
        """The answer of a request that need not come into the loop; asked in Granian's thread."""
        if self._shutdown.leaving or self._connections.is_old(scope):
            return None
        return self._crowd.refusal(scope, raw)

    def make_way(self) -> None:
        """Answers are their connections' last from now on: other workers take the new ones."""
        self._shutdown.make_way()

    def end_running(self) -> None:
        """The requests that run have had their time: what is not answered yet is `unavailable`."""
        self._shutdown.give_up()
        self._traffic.ends = True
        self._serving.callers.give_up()
        self._ending = asyncio.ensure_future(end_running(list(self._running)))

    def note_start(self, since: float) -> None:
        """For the figures: when this worker's supervisor was started, in Unix time."""
        self._metrics.note_start(since)

    def not_ready(self) -> str | None:
        """Why /health/ready would answer 503, else None."""
        return self._health.not_ready()

    def check_key(self, headers: Mapping[bytes, bytes]) -> None:
        """Of a caller of gRPC, before its message is read. Raises ServingError (401)."""
        if self._keys is not None:
            self._keys.key_of(headers)

    def count_refusal(self, error: ServingError) -> None:
        """Of a call of gRPC that does not come to be a request."""
        self._metrics.refused(error.kind.code)
        self._refusals.write(error, None, "")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._host.app(scope, *self._lifespan.around(receive, send))
        elif self._keys is not None:
            # No endpoint of the host speaks anything else; a websocket gets 403.
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION})
        else:
            await self._host.app(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange.of(scope, receive, send)
        if self._connections.ends_with(scope) or self._shutdown.leaving:
            exchange = exchange.as_one_of_the_last()
        call = call_of(scope) or self._by_setting.call_of(scope)
        exchange.enter(None if call is None else call.operation)
        if call is not None and call.target is not None and call.may_mean_itself:
            # Before its key is looked at: rights are those of the endpoint that is asked.
            call = call._replace(target=self._short_way.meant(call.target))
        if call is None or call.is_question or not self._settings.log_requests:
            await self._let_in(call, exchange)
            return
        line = RequestLine(exchange)
        try:
            await self._let_in(call, exchange._replace(send=line.send))
        finally:
            line.write()

    async def _let_in(self, call: Call | None, exchange: Exchange) -> None:
        if call is None and (file := self._page.file(exchange.scope)) is not None:
            # Nothing of it is secret, and a browser brings no key when it asks for a page.
            await file.answer(exchange.headers, adding(exchange.send, exchange.answer_headers))
            return
        if call is not None and not call.is_question:
            task = asyncio.current_task()
            self._running.add(task)
            try:
                with self._traffic.visit(call.target, exchange.arrived) as visit:
                    await self._serve(call, exchange, visit)
            finally:
                self._running.discard(task)
            return
        try:
            key = self._key_of(call, exchange)
        except ServingError as error:
            await self._refuse_unread(error, exchange)
            return
        if call is not None:
            await self._describe(call, exchange, key)
        else:
            await self._tell_of_itself(exchange)

    async def _tell_of_itself(self, exchange: Exchange) -> None:
        """What names no endpoint, and is no question in a dialect."""
        send = adding(exchange.send, exchange.answer_headers)
        if exchange.path == PLAIN or exchange.path.startswith(PREFIX):
            await self._health.answer(exchange.path, send)
        elif exchange.path == METRICS:
            await self._metrics.answer(send, exchange.headers.get(b"accept", b""))
        elif not await exchange.asks(self._host.app):
            await self._refuse_unread(nobody_there(exchange.scope), exchange)

    def _key_of(self, call: Call | None, exchange: Exchange) -> Key | None:
        """The key that lets the request in, None where none is asked for.

        Raises ServingError (401, 403). Whom a body asks, `Reader` compares with the key.
        """
        path = METRICS if call and call.wants_figures else exchange.path
        if self._keys is None or path in WITHOUT_KEY:
            return None
        key = self._keys.key_of(exchange.headers)
        if path != METRICS:
            self._metrics.asked(key.name)
        # Of one that may not ask this, too: its refusal names whom to ask about it.
        current_key.set(key.name)
        if call is None or call.target is not None or key.metrics:
            check_may_ask(key, path, None if call is None else call.target)
        return key

    async def _refuse(
        self, error: ServingError, exchange: Exchange, incoming: Incoming, visit: Visit | None
    ) -> None:
        code = error.kind.code
        if visit is not None:
            visit.answered(code, error.kind.status)
        endpoint = NOBODY if visit is None else visit.told_of
        self._metrics.refused(code, endpoint)
        self._refusals.write(error, exchange.id, endpoint)
        await exchange.refuse(error, incoming)

    async def _refuse_unread(
        self, error: ServingError, exchange: Exchange, visit: Visit | None = None
    ) -> None:
        """Before anybody asked for the body."""
        incoming = Incoming(exchange.receive, self._settings, none_comes=exchange.has_no_body)
        await self._refuse(error.without_frames(), exchange, incoming, visit)

    async def _describe(self, call: Call, exchange: Exchange, key: Key | None) -> None:
        by_setting = self._by_setting.endpoints
        about = (self._cards, self._health, self._metrics, self._host, by_setting)
        question = Question(call.target, key, *about)
        try:
            status, body = await DESCRIPTIONS[call.operation or ""](question)
        except ServingError as error:
            await self._refuse_unread(error, exchange)
        else:
            await tell(exchange.send, status, body, exchange.answer_headers())

    async def _serve(self, call: Call, exchange: Exchange, visit: Visit) -> None:
        try:
            key = self._key_of(call, exchange)
        except ServingError as error:
            # Not traced: anybody could use up what callers with a key may have traced.
            await self._refuse_unread(error, exchange, visit)
            return
        if self._tracing is not None:
            visit.trace = trace_of(self._tracing, exchange, call)
        incoming = Incoming(exchange.receive, self._settings)
        taken = Taken(call, exchange, visit, key)
        with self.bodies.share() as share:
            try:
                refusal = await self._serving.answer(taken, incoming, share)
            except asyncio.CancelledError:
                if visit.begun or not self._traffic.ends:
                    raise
                refusal = worker_leaves()
        # The body is let go of before its caller is told, which may take a while.
        if refusal is not None:
            await self._refuse(refusal, exchange, incoming, visit)
