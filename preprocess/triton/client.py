"""The Tritons behind an address: they share the calls, and one may go away and come back.

A call goes to the server with the fewest calls in flight, of those that have room for one more of
its model: a server that hangs holds no more than its own. One that cannot be reached, or lacks the
model, is set aside and asked again in the background; meanwhile the others answer.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextvars import Context
from itertools import count
from typing import Any, Protocol, TypeVar, cast
from weakref import WeakSet

from preprocess.tensors import Array, Tensor
from preprocess.triton.addresses import is_fixed, resolve
from preprocess.triton.errors import AwayError
from preprocess.triton.http import HttpTriton
from preprocess.triton.member import (
    PROBE_EVERY_S,
    PROBE_LIMIT_S,
    Member,
    Model,
    Server,
    StreamingServer,
)
from preprocess.triton.replies import Arrived, Replies
from preprocess.triton.running import RunningCalls
from preprocess.triton.streamed_request import StreamedRequest
from transformer_serving.contract.endpoint import OutputTensor
from transformer_serving.contract.errors import ServingError, too_late
from transformer_serving.contract.settings.triton_addresses import read_addresses

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
        # Those that a name no longer has, on which calls still run.
        self._departed: list[Member] = []
        self._running = RunningCalls()
        # Where each address led when it was looked up last.
        self._known: dict[str, set[str]] = {}
        self._fixed = all(map(is_fixed, self._addresses))
        self._resolved = float("-inf")
        self._turns = count()
        self._partly_ready: dict[Model, float] = {}
        # The loop holds tasks weakly: one that nobody else holds may vanish while it waits.
        self._tasks: set[asyncio.Task[None]] = set()
        self._resolving: asyncio.Task[None] | None = None
        # Those that are woken when a Triton is back: there are more slots then.
        self.queues: WeakSet[Queue] = WeakSet()

    def slots(self, model: str, version: int, most: int) -> int:
        """How many calls of that model version may run now, `most` on each Triton that has it."""
        members = self._members
        if len(members) < 2 and not self._departed:
            # Every request asks, and most have one Triton.
            return most
        key = (model, version)
        return self._running.slots(key, self._here(key), members.values(), most)

    async def infer(
        self,
        model: str,
        version: int,
        inputs: Sequence[Tensor],
        outputs: Sequence[OutputTensor],
        deadline: float,
        most: float = math.inf,
    ) -> list[Array]:
        """The outputs of exactly that model version, first axis the batch: float32 or integers.

        `deadline` is on time.monotonic's clock; `most` calls of it may run on one Triton while
        another has room. Raises ServingError: `unavailable`, `overloaded`,
        `deadline` or `engine_failed`.
        """
        left = deadline - time.monotonic()
        if left <= 0:
            raise too_late()

        key = (model, version)

        async def call(member: Member) -> list[Array]:
            self._running.begin(key, member)
            try:
                return await member.server.infer(model, version, inputs, outputs)
            finally:
                self._running.end(key, member)

        try:
            async with asyncio.timeout(left):
                return await self._ask(key, call, most)
        except TimeoutError:
            raise too_late() from None

    async def open(
        self, model: str, version: int, request: StreamedRequest, left_s: float, arrived: Arrived
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
                replies = await server.open(model, version, request, left_s, arrived)
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
            async with asyncio.timeout(PROBE_LIMIT_S):
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

    async def _ask(
        self, model: Model, call: Callable[[Member], Awaitable[Answer]], most: float = math.inf
    ) -> Answer:
        await self._look_up()
        tried: set[Member] = set()
        begun = False
        while True:
            member = self._pick(model, tried, most)
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

    def _here(self, model: Model) -> list[Member]:
        """Those that may be called; whether the others are back, somebody looks meanwhile."""
        members = self._members.values()
        if len(members) > 1:
            for member in members:
                if member.aside:
                    self._look_again(member, model)
        return [member for member in members if not (member.aside and member.is_aside(model))]

    def _pick(self, model: Model, tried: set[Member], most: float = math.inf) -> Member:
        """The least busy that was not tried.

        Those set aside, and those with `most` calls of the model, only when there is no other.
        """
        members = list(self._members.values())
        if len(members) == 1:
            return members[0]
        left = [member for member in members if member not in tried] or members
        here = [member for member in self._here(model) if member in left] or left
        free = self._running.with_room(model, here, most) or here
        return min(free, key=lambda member: (member.in_flight, member.turn))

    def _set_aside(self, member: Member, model: Model, error: AwayError) -> None:
        now = time.monotonic()
        # Versions that were replaced are asked for no more, and nobody looks whether they are back.
        for old in [old for old, due in member.aside.items() if due < now - _FORGOTTEN_AFTER_S]:
            del member.aside[old]
        member.aside[None if error.whole else model] = now + PROBE_EVERY_S
        if error.whole:
            # It may have moved; but names are not asked for at every refused call.
            oldest = now - (_RESOLVE_EVERY_S - _RESOLVE_AT_MOST_EVERY_S)
            self._resolved = min(self._resolved, oldest)
        if len(self._members) > 1:
            self._look_again(member, model)

    def _look_again(self, member: Member, model: Model) -> None:
        """Have somebody look whether the server, or its model that is to be called, is back."""
        for what in (None, model):
            if what in member.aside and what not in member.watched:
                member.watched.add(what)
                self._start(self._watch(member) if what is None else self._look(member, what))

    async def _watch(self, member: Member) -> None:
        """Until it is back: with calls that hang on the others, none may leave that would look."""
        try:
            while None in member.aside:
                await asyncio.sleep(PROBE_EVERY_S)
                if member not in self._members.values():
                    return
                await member.probe(None)
        finally:
            member.watched.discard(None)
        self._wake()

    async def _look(self, member: Member, model: Model) -> None:
        """Once, when it is due. Who waits for the model asks for its slots then, and so for the
        next look: nobody waits for a version that was replaced.
        """
        try:
            await asyncio.sleep(member.aside.get(model, 0.0) - time.monotonic())
            if model in member.aside and member in self._members.values():
                await member.probe(model)
        finally:
            member.watched.discard(model)
        self._wake()

    def _wake(self) -> None:
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
        gone = [member for address, member in before.items() if address not in self._members]
        for member in gone:
            member.server.close()
        self._departed = [member for member in (*self._departed, *gone) if member.in_flight]

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        # It is no request's: else the calls that it leads to would be handed on in its trace.
        task = asyncio.get_running_loop().create_task(work, context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
