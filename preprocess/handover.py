"""From one bundle to the next without a failed request.

Workers and controller poll separately, so a new preprocess.py may be here before its engine is
loaded, and a bad engine never is. Until the new bundle's version answers, the endpoint's last good
Preprocess goes on serving, old tokenizer with old engine, so every answer is of exactly one bundle.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import cached_property
from typing import Any, NamedTuple

from preprocess import Collect, Preprocess
from preprocess.dialects import OPERATIONS, is_spoken_by
from preprocess.generation import TextGeneration
from preprocess.generation.openings import unless_left
from preprocess.passage import Passage
from transformer_serving.contract.dialects import PLAINER
from transformer_serving.contract.endpoint import read_endpoint
from transformer_serving.contract.errors import ServingError
from transformer_serving.contract.heads import GENERATION
from transformer_serving.contract.worker.process_wide import process_wide
from transformer_serving.contract.worker.request_context import current_operation
from transformer_serving.contract.worker.request_counts import uncounted

_PROBE_EVERY_S = 0.25
# A Preprocess that nobody asked for so long is not kept for a later handover.
_KEEP_S = 900.0


class Live:
    """A Preprocess that has served its endpoint, and when it was last asked."""

    def __init__(self, preprocess: Any) -> None:
        self.preprocess = preprocess
        self.made = self.asked = time.monotonic()


def _registry() -> dict[str, Live]:
    """Found from every version of the code in the process: an update may bring new code."""
    return process_wide("live", dict)


class Handover:
    """Who serves an endpoint: this Preprocess, or the one before it until this one can."""

    def __init__(self, endpoint: str, preprocess: Any, is_ready: Callable[[], Awaitable[bool]]):
        self._endpoint = endpoint
        self._preprocess = preprocess
        self._is_ready = is_ready
        self._next_probe = 0.0
        self._looking: asyncio.Task[bool] | None = None
        self._live = Live(preprocess)
        before = _registry().get(endpoint)
        self.predecessor: Any = before.preprocess if before else None
        if before is None or self._same_bundle(before.preprocess):
            self.take_over()

    def _same_bundle(self, other: Any) -> bool:
        """A rebuild of the host's own: nothing has to be loaded first."""
        mine = self._preprocess.endpoint.bundle_version
        return bool(getattr(other, "endpoint", None) and other.endpoint.bundle_version == mine)

    def take_over(self) -> None:
        """From now on this Preprocess serves; forget those that nobody asks any more.

        One that was made later and has taken over keeps its place: nobody asks this one any more.
        """
        self.predecessor = None
        registry = _registry()
        # What code before this one has put there does not say when it was made.
        if getattr(registry.get(self._endpoint), "made", 0.0) <= self._live.made:
            registry[self._endpoint] = self._live
        oldest = time.monotonic() - _KEEP_S
        for name in [name for name, live in registry.items() if live.asked < oldest]:
            del registry[name]

    def heir(self) -> Any:
        """Another bundle's Preprocess that has taken over from this one since, else None."""
        live = _registry().get(self._endpoint)
        if live is None or self._same_bundle(live.preprocess):
            return None
        return live.preprocess

    def server(self) -> Any:
        """The predecessor while it must serve, else None."""
        self._live.asked = time.monotonic()
        return self.predecessor

    def look(self) -> None:
        """Ask, a few times a second at most, whether this bundle's engine is there now.

        Nobody waits for the answer, which one Triton of several may owe for seconds.
        """
        now = time.monotonic()
        if self._looking is not None and not self._looking.done():
            return
        if self.predecessor is not None and now >= self._next_probe:
            self._next_probe = now + _PROBE_EVERY_S
            self._looking = asyncio.get_running_loop().create_task(self.probe())

    async def probe(self) -> bool:
        """Whether this bundle's engine is there now."""
        if self.predecessor is not None and await self._is_ready():
            self.take_over()
        return self.predecessor is None


class Lent(NamedTuple):
    """A request that another bundle serves, the predecessor or who took over since: its body, in
    case we must after all, and the state of the other's own three steps.
    """

    server: Any
    body: Any
    state: dict[str, Any]


# In the state that the host keeps of a request. The other bundle may be of any version of this
# code, so it never sees ours.
_LENT, _BODY = "lent", "body"


def _code(outcome: Any) -> str | None:
    """Of an error, whichever version of the code made it; None of anything else."""
    code: str | None = getattr(getattr(outcome, "kind", None), "code", None)
    return code


def _is_refusal(outcome: Any) -> bool:
    """Whether the caller is told that the request is at fault, and not to come again."""
    kind: Any = getattr(outcome, "kind", None)
    return 400 <= getattr(kind, "status", 0) < 500 and getattr(kind, "retry_after_s", None) is None


class Successor:
    """What the generated preprocess.py is for the host: this bundle, behind its handover."""

    # The gateway may send what postprocess returns as it is.
    serves_responses = True
    # What can be asked of it in other dialects, by name.
    operations = frozenset(OPERATIONS)

    def __init__(self, endpoint_json: bytes, tokenizer_json: Callable[[], bytes]) -> None:
        is_text = read_endpoint(endpoint_json).task == GENERATION
        own = TextGeneration if is_text else Preprocess
        # Either; as different as their engines are, they are asked the same.
        self.own: Any = own(endpoint_json, tokenizer_json)
        # The next bundle's code and the gateway look here.
        self.endpoint = self.own.endpoint

    @property
    def model_endpoint(self) -> Any:
        return self.own.model_endpoint

    @model_endpoint.setter
    def model_endpoint(self, named: Any) -> None:
        self.own.model_endpoint = named

    def card(self) -> dict[str, Any]:
        """What the gateway tells of the endpoint."""
        card: dict[str, Any] = self.own.card()
        return card

    @cached_property
    def handover(self) -> Handover:
        """Made at the first request: a bundle that nobody asked replaces none that serves."""
        engine = self.own.engine
        return Handover(engine.model, self, engine.is_ready)

    def turned_away(self, raw: bytes) -> Any:
        """As Preprocess has it; while another bundle serves, its own code decides."""
        return None if self.handover.server() is not None else self.own.turned_away(raw)

    def is_idle(self) -> bool:
        """Whether this bundle serves, and what is asked now would keep nobody waiting."""
        return self.handover.server() is None and bool(self.own.is_idle())

    def preprocess(self, body: Any, state: dict[str, Any], collect: Collect = None) -> Any:
        predecessor = self.handover.server()
        if predecessor is None:
            state[_BODY] = body
            return self.own.preprocess(body, state, collect)
        return self._lend(predecessor, body, state, collect)

    def _lend(self, server: Any, body: Any, state: dict[str, Any], collect: Collect) -> Any:
        """What the other bundle makes of the body, or the ServingError that it cannot be asked."""
        operation = self.own.begin(body, state).operation
        if not is_spoken_by(server, operation):
            plainer = PLAINER.get(operation.name)
            if plainer is None or not is_spoken_by(server, OPERATIONS[plainer]):
                return ServingError(
                    "unavailable", "the bundle before this one does not speak the dialect; this "
                    "one does as soon as its engine is loaded",
                )  # fmt: skip
            current_operation.set((plainer, b""))
        state[_LENT] = lent = Lent(server, body, {})
        return server.preprocess(body, lent.state, collect)

    async def process(self, request: Any, state: dict[str, Any], collect: Collect = None) -> Any:
        """Of one bundle: the old one's outcome, or ours where the engine dropped the old one for
        ours; and where it dropped ours meanwhile, that of who took over.
        """
        lent: Lent | None = state.get(_LENT)
        if lent is None:
            return await self._own(request, state, collect)
        self.handover.look()
        outcome = await lent.server.process(request, lent.state, collect)
        # What one of another task does not take is no fault of a body that is for this one.
        if _is_refusal(outcome) and self._is_of_another_task(lent.server):
            return await self._own_outcome(lent, state, collect)
        if _code(outcome) == "unavailable" and await self._is_here(request, state):
            return await self._own_outcome(lent, state, collect)
        return outcome

    async def _is_here(self, request: Any, state: dict[str, Any]) -> bool:
        """Whether this bundle's engine is, as far as it is told while the caller waits: one Triton
        of several may owe it for seconds.
        """
        passage: Passage = state["passage"]
        left_s = passage.arrived + self.own.limit_s(request) - time.monotonic()
        # Who waits no longer gets the old bundle's error: its code, which knows no other, answers.
        with uncounted(), suppress(TimeoutError, ServingError):
            async with asyncio.timeout(left_s):
                return await unless_left(self.handover.probe(), passage.caller)
        return False

    async def _own_outcome(self, lent: Lent, state: dict[str, Any], collect: Collect) -> Any:
        """Of what this bundle's engine is not asked for before it is known to be there."""
        del state[_LENT]
        request = self.own.preprocess(lent.body, state, collect)
        if _code(request) is None and self.handover.server() is not None:
            return ServingError(
                "unavailable", "the bundle before this one has another task; this one answers as "
                "soon as its engine is loaded",
            )  # fmt: skip
        return await self.own.process(request, state, collect)

    def _is_of_another_task(self, server: Any) -> bool:
        theirs = getattr(getattr(server, "endpoint", None), "task", None)
        return theirs is not None and theirs != self.endpoint.task

    async def _own(self, request: Any, state: dict[str, Any], collect: Collect) -> Any:
        outcome = await self.own.process(request, state, collect)
        # What was refused before anybody was asked has no body here.
        is_gone = _BODY in state and _code(outcome) == "unavailable"
        heir = self.handover.heir() if is_gone else None
        # One of another task reads other bodies: who comes again is told so, and by it alone.
        if heir is None or self._is_of_another_task(heir):
            return outcome
        # From its beginning, also a list of which some are done: no answer is of two bundles.
        request = self._lend(heir, state[_BODY], state, collect)
        if _LENT not in state:
            return outcome
        return await heir.process(request, state[_LENT].state, collect)

    def postprocess(self, outcome: Any, state: dict[str, Any], collect: Collect = None) -> Any:
        lent: Lent | None = state.get(_LENT)
        if lent is None:
            return self.own.postprocess(outcome, state, collect)
        return lent.server.postprocess(outcome, lent.state, collect)
