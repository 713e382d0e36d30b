"""The Tritons behind an address: they share the calls, and one may go away and come back.

A call goes to the server with the fewest calls in flight. One that cannot be reached, or lacks the
model, is set aside and asked again in the background; meanwhile the others answer.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from itertools import count
from typing import Any, Protocol, TypeVar, cast
from weakref import WeakSet

from preprocess.tensors import Array, Tensor
from preprocess.triton.addresses import is_fixed, resolve
from preprocess.triton.errors import AwayError
from preprocess.triton.http import HttpTriton
from preprocess.triton.member import Member, Model, Server, StreamingServer
from preprocess.triton.replies import Replies
from preprocess.triton.streamed_request import StreamedRequest
from transformer_serving.contract.endpoint import OutputTensor
from transformer_serving.contract.errors import ServingError, too_late
from transformer_serving.contract.triton_addresses import read_addresses

_PROBE_EVERY_S = 0.5
_PROBE_LIMIT_S = 2.0
_FORGOTTEN_AFTER_S = 60.0
_RESOLVE_EVERY_S = 5.0
_RESOLVE_AT_MOST_EVERY_S = 1.0
# A Triton that cannot load a version holds up an update no longer than this.
_PATIENCE_S = 30.0

Answer = TypeVar("Answer")


class Queue(Protocol):
    """What waits for calls."""

    def wake(self) -> None: ...


class TritonClient:
    """All Tritons of one address, used from one event loop."""

    def __init__(self, address: str, server: type[Server] = HttpTriton) -> None:
        self._addresses = read_addresses(address)
        self._server = server
        self._members: dict[str, Member] = {}
        # Where each address led when it was looked up last.
        self._known: dict[str, set[str]] = {}
        self._fixed = all(map(is_fixed, self._addresses))
        self._resolved = float("-inf")
        self._turns = count()
        self._partly_ready: dict[Model, float] = {}
        # The loop holds tasks weakly: one that nobody else holds may vanish while it waits.
        self._tasks: set[asyncio.Task[None]] = set()
        self._resolving: asyncio.Task[None] | None = None
        # Those that are woken when a Triton is back, of which there is a call more for each then.
        self.queues: WeakSet[Queue] = WeakSet()

    @property
    def servers(self) -> int:
        """How many Tritons are there to be called, at least one."""
        return max(1, sum(not member.is_aside() for member in self._members.values()))

    async def infer(
        self,
        model: str,
        version: int,
        inputs: Sequence[Tensor],
        outputs: Sequence[OutputTensor],
        deadline: float,
    ) -> list[Array]:
        """The outputs of exactly that model version, first axis the batch: float32 or integers.

        `deadline` is on time.monotonic's clock. Raises ServingError: `unavailable`, `overloaded`,
        `deadline` or `engine_failed`.
        """
        left = deadline - time.monotonic()
        if left <= 0:
            raise too_late()

        async def call(member: Member) -> list[Array]:
            member.in_flight += 1
            try:
                return await member.server.infer(model, version, inputs, outputs)
            finally:
                member.in_flight -= 1

        try:
            async with asyncio.timeout(left):
                return await self._ask((model, version), call)
        except TimeoutError:
            raise too_late() from None

    async def open(
        self, model: str, version: int, request: StreamedRequest, left_s: float
    ) -> Replies:
        """The answers of one request to exactly that model version, the first of which is here.

        Only over gRPC. To be closed. Raises ServingError as `infer`; who waits sets the limit.
        """

        async def call(member: Member) -> Replies:
            def ended() -> None:
                member.in_flight -= 1

            member.in_flight += 1
            try:
                server = cast("StreamingServer", member.server)
                replies = await server.open(model, version, request, left_s)
            except BaseException:
                ended()
                raise
            replies.when_closed(ended)
            return replies

        return await self._ask((model, version), call)

    async def is_ready(self, model: str, version: int) -> bool:
        """Whether that version may be called: every Triton that can be reached has loaded it.

        One that does not answer counts for nothing. After half a minute one that has is enough: a
        Triton that cannot load it must not hold it back.
        """
        try:
            await self._look_up()
        except AwayError:
            return False
        every = list(self._members.values())
        members = [member for member in every if not member.is_aside()] or every
        said = await asyncio.gather(
            *(self._is_ready(member, (model, version)) for member in members)
        )
        found = [ready for ready in said if ready is not None]
        if not any(found):
            self._partly_ready.pop((model, version), None)
            return False
        since = self._partly_ready.setdefault((model, version), time.monotonic())
        enough = all(found) or time.monotonic() - since > _PATIENCE_S
        if enough:
            del self._partly_ready[model, version]
        return enough

    async def _is_ready(self, member: Member, model: Model) -> bool | None:
        """None when the server does not answer."""
        try:
            async with asyncio.timeout(_PROBE_LIMIT_S):
                ready = await member.server.is_ready(*model)
        except TimeoutError:
            return None
        except AwayError as error:
            self._set_aside(member, model, error)
            return None if error.whole else False
        except ServingError:
            return False
        member.aside.pop(None, None)
        if ready:
            member.aside.pop(model, None)
        return ready

    def close(self) -> None:
        """Let go of every connection, from whatever thread."""
        for member in self._members.values():
            member.server.close()
        self._members = {}
        self._resolved = float("-inf")

    async def _ask(self, model: Model, call: Callable[[Member], Awaitable[Answer]]) -> Answer:
        await self._look_up()
        tried: set[Member] = set()
        begun = False
        while True:
            member = self._pick(model, tried)
            try:
                return await self._call(member, model, call)
            except AwayError as error:
                self._set_aside(member, model, error)
                tried.add(member)
                if (begun and error.begun) or tried >= set(self._members.values()):
                    raise
                begun = begun or error.begun

    async def _call(
        self, member: Member, model: Model, call: Callable[[Member], Awaitable[Answer]]
    ) -> Answer:
        member.turn = next(self._turns)
        answer = await call(member)
        if member.aside:
            member.aside.pop(None, None)
            member.aside.pop(model, None)
        return answer

    def _pick(self, model: Model, tried: set[Member]) -> Member:
        """The least busy that was not tried; those set aside only when there is no other."""
        members = list(self._members.values())
        if len(members) == 1:
            return members[0]
        for member in members:
            if member.aside:
                self._look_again(member, model)
        left = [member for member in members if member not in tried]
        here = [member for member in left if not member.is_aside(model)]
        return min(here or left or members, key=lambda member: (member.in_flight, member.turn))

    def _set_aside(self, member: Member, model: Model, error: AwayError) -> None:
        now = time.monotonic()
        # Versions that were replaced are asked for no more, and nobody looks whether they are back.
        for old in [old for old, due in member.aside.items() if due < now - _FORGOTTEN_AFTER_S]:
            del member.aside[old]
        member.aside[None if error.whole else model] = now + _PROBE_EVERY_S
        if error.whole:
            # It may have moved; but names are not asked for at every refused call.
            oldest = now - (_RESOLVE_EVERY_S - _RESOLVE_AT_MOST_EVERY_S)
            self._resolved = min(self._resolved, oldest)
            if len(self._members) > 1:
                self._look_again(member, model)

    def _look_again(self, member: Member, model: Model) -> None:
        """Have somebody look whether the server, or its model that is to be called, is back."""
        now = time.monotonic()
        if member.aside.get(model, math.inf) <= now:
            # Nobody else looks meanwhile.
            member.aside[model] = now + _PROBE_LIMIT_S + _PROBE_EVERY_S
            self._start(_probe(member, model))
        if None in member.aside and not member.is_watched:
            member.is_watched = True
            self._start(self._watch(member))

    async def _watch(self, member: Member) -> None:
        """Until it is back: with calls that hang on the others, none may leave that would look."""
        try:
            while None in member.aside:
                await asyncio.sleep(_PROBE_EVERY_S)
                if member not in self._members.values():
                    return
                await _probe(member, None)
        finally:
            member.is_watched = False
        for queue in list(self.queues):
            queue.wake()

    async def _look_up(self) -> None:
        """Know the servers; names are looked up again from time to time, in the background."""
        if self._members and (self._fixed or time.monotonic() - self._resolved < _RESOLVE_EVERY_S):
            return
        if self._resolving is None or self._resolving.done():
            self._resolved = time.monotonic()
            self._resolving = self._start(self._resolve())
        if not self._members:
            await asyncio.wait([self._resolving])
            if not self._members:
                raise AwayError("the engine's address is not known", whole=True, begun=False)

    async def _resolve(self) -> None:
        try:
            found = await resolve(self._addresses, self._known)
        except (OSError, UnicodeError):
            # Nothing can be looked up now, and nothing is known.
            return
        before = self._members
        self._members = {
            address: before.get(address) or Member(self._server(address)) for address in found
        }
        for address, member in before.items():
            if address not in self._members:
                member.server.close()

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


async def _probe(member: Member, what: Model | None) -> None:
    """Ask a server that was set aside whether it is back."""
    try:
        async with asyncio.timeout(_PROBE_LIMIT_S):
            back = await (
                member.server.is_live() if what is None else member.server.is_ready(*what)
            )
    except (TimeoutError, ServingError):
        back = False
    if back:
        member.aside.pop(what, None)
    else:
        member.aside[what] = time.monotonic() + _PROBE_EVERY_S


def _http() -> type[Server]:
    return HttpTriton


def _grpc() -> type[Server]:
    # Only where it is chosen: the import alone costs a worker half a second and 30 MB.
    from preprocess.triton.grpc import GrpcTriton

    return GrpcTriton


TRANSPORTS: dict[str, Callable[[], type[Server]]] = {"http": _http, "grpc": _grpc}

_clients: dict[tuple[str, str], TritonClient] = {}


def shared_client(transport: str, address: str) -> TritonClient:
    """The worker's one client of that address, so that endpoints share connections."""
    key = transport, address
    if key not in _clients:
        _clients[key] = TritonClient(address, TRANSPORTS[transport]())
    return _clients[key]


def close_clients() -> None:
    """Close every kept connection, from whatever thread."""
    while _clients:
        _clients.popitem()[1].close()
