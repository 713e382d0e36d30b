"""A sequence from its call to its last token: what came, what was sent, and why it ended.

Tested by tests/engine/test_generation_engine.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from transformer_serving.contract.generation import Finish
from transformer_serving.engine.backends.generation.calls import Call, CallRefused

# How often a caller is asked for that may have gone without a word, and all of them together: each
# question takes a tenth of a millisecond of the thread that makes the tokens.
_ASK_S = 0.1
_ASKS_A_SECOND = 500


def ask_again_s(among: int) -> float:
    """Seconds until a caller is asked for again, where so many are."""
    return max(_ASK_S, among / _ASKS_A_SECOND)


@dataclass(frozen=True)
class Part:
    """Tokens that came since the last look, with their log-probabilities where asked for."""

    ids: Sequence[int]
    logprobs: Sequence[float]
    finish: Finish = Finish.RUNNING


class Handle(Protocol):
    """A sequence inside the pipeline."""

    def take(self) -> Part:
        """What came since the last time."""
        ...

    def cancel(self) -> None:
        """End it: its blocks are free once the pipeline's next step is over, and not within it."""
        ...


class Pipeline(Protocol):
    """What makes tokens: each `step` one for every sequence that was started, or a part of its
    prompt. Whatever `step` raises, nothing in it is to be trusted afterwards."""

    def start(self, call: Call) -> Handle: ...

    def step(self) -> None: ...

    def busy(self) -> bool:
        """Whether a step has anything to do, be it to free what was cancelled."""
        ...

    def cache_use(self) -> float:
        """Of the cache's blocks that callers share, from 0 to 1, at the last step."""
        ...


class Answers(Protocol):
    """The way back to one caller. Only its last message is a refusal, or has another finish than
    RUNNING. Neither raises, also for a caller that has gone: what cannot be sent ends the call."""

    def send(self, part: Part, prompt: int, generated: int) -> None: ...

    def refuse(self, refusal: CallRefused) -> None: ...

    def gone(self, among: int) -> bool:
        """Whether the caller is; `among` is how many callers there are."""
        ...


@dataclass(eq=False)
class Waiting:
    """A call that is not in the pipeline yet."""

    call: Call
    answers: Answers


@dataclass(eq=False)
class Running:
    """A sequence in the pipeline. `sent_at` is 0.0 before its first message."""

    call: Call
    answers: Answers
    handle: Handle
    generated: int = 0
    sent_at: float = 0.0
    _ids: list[int] = field(default_factory=list)
    _logprobs: list[float] = field(default_factory=list)

    def look(self) -> Part:
        """Take what came, and keep it until it is sent."""
        part = self.handle.take()
        self._ids += part.ids
        self._logprobs += part.logprobs
        self.generated += len(part.ids)
        return part

    @property
    def unsent(self) -> bool:
        return bool(self._ids)

    def send(self, finish: Finish, now: float) -> None:
        """All that is kept, as one message."""
        part = Part(self._ids, self._logprobs, finish)
        self._ids, self._logprobs = [], []
        self.sent_at = now
        self.answers.send(part, len(self.call.ids), self.generated)
