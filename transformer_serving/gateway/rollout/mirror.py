"""Requests that the old bundle of a rollout answered, asked of the candidate too.

Only where that keeps nobody waiting: after the answer has left, while no text waits before either
engine, one request at a time, and no longer than the rollout's share of the worker's time. What
comes meanwhile is left out and counted. Of a request nothing but counts leaves the worker.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import prometheus_client as prometheus
from starlette.responses import Response

from transformer_serving.contract.naming import VERSION_HEADER
from transformer_serving.contract.panics import ENDS
from transformer_serving.contract.rollout import NEW, OLD, Arm, Arms, Plan
from transformer_serving.contract.worker.log_lines import trace_of
from transformer_serving.contract.worker.process_wide import process_wide
from transformer_serving.contract.worker.request_context import (
    current_arrival,
    current_caller,
    current_endpoint,
    mirrored_body,
)
from transformer_serving.gateway.asked import Asked
from transformer_serving.gateway.host.building import preprocess_of
from transformer_serving.gateway.rollout.likeness import are_alike

log = logging.getLogger("transformer_serving.gateway")
SAME, DIFFERS, FAILED, LEFT_OUT = "same", "differs", "failed", "left_out"
# What is held of the one request that is under way: bytes of its body, and of its answer.
MOST_BODY, MOST_ANSWER = 65_536, 1_000_000
# Of how many a list keeps what nobody has counted yet.
_MOST_NOTED = 50_000
_OK, _FIRST_ERROR = 200, 400
_TELL_S = 10.0
_VERSION = VERSION_HEADER.encode()


class Reply(NamedTuple):
    """What one bundle said to a mirrored request, after how many seconds."""

    response: Any
    tokens: int
    seconds: float


class Noted(NamedTuple):
    """One mirrored request; in a shadow with status, tokens and seconds of each bundle."""

    outcome: str
    arms: tuple[tuple[str, int, int, float], ...] = ()


@dataclass
class Mirror:
    """What is mirrored of one endpoint, in this worker.

    `bundle` is the candidate's version, `cosine` below which vectors differ, `asks_both` whether
    the old bundle is asked once more beside it: only then both have the same to do meanwhile, and
    their times can be compared. `left_out` grows in the event loop alone.
    """

    rollout: str
    candidate: str
    bundle: str
    share: float
    cosine: float
    asks_both: bool = False
    noted: deque[Noted] = field(default_factory=lambda: deque(maxlen=_MOST_NOTED))
    left_out: int = 0
    _told: int = 0

    @classmethod
    def of(cls, plan: Plan) -> Mirror:
        return cls(
            plan.id,
            plan.candidate,
            str(plan.bundle_version),
            plan.mirror,
            plan.allowed.cosine,
            asks_both=plan.shadow,
        )

    def count(self, arms: Arms) -> None:
        """What came since the last time, into the arms; in the sync thread."""
        new = arms.setdefault(NEW, Arm())
        left_out = self.left_out
        new.left_out += left_out - self._told
        self._told = left_out
        # Requests go on being noted at the other end.
        for noted in [self.noted.popleft() for _ in range(len(self.noted))]:
            new.compared += noted.outcome != FAILED
            new.differ += noted.outcome == DIFFERS
            for name, status, tokens, seconds in noted.arms:
                arms.setdefault(name, Arm()).count(status, tokens, seconds)


# By endpoint; the sync thread writes them, and mostly there are none.
MIRRORS: dict[str, Mirror] = {}


class Mirroring:
    """Of one worker, in its event loop. `processor` gives the host's, which may be replaced."""

    def __init__(self, processor: Callable[[], Any], mirrors: dict[str, Mirror] = MIRRORS) -> None:
        self._processor = processor
        self.mirrors = mirrors
        self._task: asyncio.Task[None] | None = None
        self._resumes = 0.0
        self._told = -_TELL_S
        self._counter = process_wide("gateway_mirrored", _mirrored)
        # A look-up costs more than a count.
        self._counters: dict[tuple[str, str], Any] = {}

    def stop(self) -> None:
        """The worker leaves: nothing more is asked."""
        self.mirrors = {}
        if self._task is not None:
            self._task.cancel()

    def forget(self, endpoints: Collection[str]) -> None:
        """These are gone for good, and their figures go."""
        self._counters = {
            row: one for row, one in self._counters.items() if row[0] not in endpoints
        }

    def offer(self, asked: Asked, response: Response, held: int) -> None:
        """A request whose answer has left, with `held` bytes of body."""
        mirror = self.mirrors.get(asked.target.name)
        if mirror is None or response.status_code != _OK:
            return
        if _bundle_of(response) == mirror.bundle:
            return
        fits = held <= MOST_BODY and len(response.body) <= MOST_ANSWER
        if not fits or not self._is_free() or not self._are_idle(asked.target.name, mirror):
            self._leave_out(mirror)
            return
        self._task = asyncio.get_running_loop().create_task(self._run(mirror, asked, response))

    def _is_free(self) -> bool:
        return self._task is None and time.monotonic() >= self._resumes

    def _are_idle(self, endpoint: str, mirror: Mirror) -> bool:
        return self._is_idle(endpoint) and self._is_idle(mirror.candidate)

    def _is_idle(self, url: str) -> bool:
        """False of what is not built yet, which is others' to do, and of older code."""
        is_idle = getattr(preprocess_of(self._processor(), url), "is_idle", None)
        return is_idle is not None and bool(is_idle())

    def _leave_out(self, mirror: Mirror) -> None:
        mirror.left_out += 1
        self._count(mirror, LEFT_OUT)

    def _count(self, mirror: Mirror, outcome: str) -> None:
        key = mirror.candidate, outcome
        if key not in self._counters:
            self._counters[key] = self._counter.labels(*key)
        self._counters[key].inc()

    async def _run(self, mirror: Mirror, asked: Asked, response: Response) -> None:
        begun = time.monotonic()
        # Of the request's own context the dialect is still wanted; its caller and its time are not.
        current_caller.set(None)
        current_arrival.set(None)
        current_endpoint.set(mirror.candidate)
        noted: Noted | None = None
        try:
            noted = await self._compared(mirror, asked, response)
        except ENDS:
            raise
        except BaseException as error:
            log.error("a mirrored request could not be compared: %s", trace_of(error))
        finally:
            ended = time.monotonic()
            self._resumes = ended + (ended - begun) * (1 / mirror.share - 1)
            self._task = None
        if noted is None:
            self._leave_out(mirror)
        else:
            mirror.noted.append(noted)
            self._count(mirror, noted.outcome)

    async def _compared(self, mirror: Mirror, asked: Asked, response: Response) -> Noted | None:
        """None where it was not asked in the end, or nobody knows how to compare the answers."""
        gist = getattr(response, "gist", lambda: None)()
        if gist is None:
            return None
        bundle = _bundle_of(response)
        wanted = {NEW: (mirror.candidate, mirror.bundle)}
        if mirror.asks_both:
            wanted[OLD] = (asked.target.name, bundle)
        replies: dict[str, Reply] = {}
        for arm in random.sample(sorted(wanted), len(wanted)):
            url, version = wanted[arm]
            if not self._are_idle(asked.target.name, mirror):
                return None
            replies[arm] = await self._ask(url, asked.body)
            if _bundle_of(replies[arm].response) != version:
                return None
        return self._judged(mirror, gist, replies)

    async def _ask(self, url: str, body: Any) -> Reply:
        """By the three steps that the host would take, which limits nothing of it."""
        processor = self._processor()
        preprocess = preprocess_of(processor, url)
        state: dict[str, Any] = {}
        begun = time.monotonic()
        # As the host counts each: what works on it takes it out of that count meanwhile.
        processor._request_processing_state.inc()
        try:
            request = preprocess.preprocess(mirrored_body(body), state, None)
            outcome = await preprocess.process(request, state, None)
            response = preprocess.postprocess(outcome, state, None)
        finally:
            processor._request_processing_state.dec()
        tokens = getattr(state.get("passage"), "tokens", 0)
        return Reply(response, tokens, time.monotonic() - begun)

    def _judged(self, mirror: Mirror, gist: Any, replies: dict[str, Reply]) -> Noted | None:
        new = replies[NEW].response
        arms = tuple(
            (arm, reply.response.status_code, reply.tokens, reply.seconds)
            for arm, reply in replies.items()
        ) if mirror.asks_both else ()  # fmt: skip
        if new.status_code >= _FIRST_ERROR:
            self._tell(mirror, new)
            return Noted(FAILED, arms)
        alike = are_alike(gist, new.gist(), mirror.cosine)
        return None if alike is None else Noted(SAME if alike else DIFFERS, arms)

    def _tell(self, mirror: Mirror, failed: Any) -> None:
        """Why the candidate fails; a line in ten seconds at most."""
        now = time.monotonic()
        if now - self._told >= _TELL_S:
            self._told = now
            code = getattr(failed, "code", "")
            log.warning(
                "the candidate %s answers a mirrored request with %d %s",
                mirror.candidate, failed.status_code, code,
            )  # fmt: skip


def _bundle_of(response: Any) -> str:
    """The version that answered; by the plain headers, as this is done for every answer."""
    named = (value for name, value in response.raw_headers if name == _VERSION)
    return str(next(named, b"").decode())


def _mirrored() -> prometheus.Counter:
    return prometheus.Counter(
        "transformer_serving_gateway_mirrored",
        "Requests of the old bundle in a rollout, by what became of asking the candidate too.",
        ("endpoint", "outcome"),
    )
