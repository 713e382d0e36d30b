"""One sequence as it comes: the engine's tokens, the text of each, and why it ended.

Tested by tests/preprocess/generation/test_text_generation.py.
"""

from __future__ import annotations

import asyncio
import time
from asyncio import Future
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from preprocess.generation.detokenizer import Detokenizer, silent_tokens, token_text
from preprocess.generation.figures import TextFigures
from preprocess.generation.step import EngineStep
from preprocess.generation.stops import Stops
from preprocess.stats import DISCONNECT, GIVEN_UP
from preprocess.triton.replies import Outputs, Replies
from transformer_serving.contract.errors import ServingError, too_late
from transformer_serving.contract.generation import Finish, Options
from transformer_serving.contract.panics import ENDS
from transformer_serving.contract.worker.request_context import why_nobody_waits


class Ending(Enum):
    """Why a sequence is whole, in TGI's words."""

    EOS = "eos_token"
    STOP = "stop_sequence"
    LENGTH = "length"


_ENDINGS = {Finish.STOP: Ending.EOS, Finish.LENGTH: Ending.LENGTH}


class Token(NamedTuple):
    """`text` is what became certain with it; `logprob` None where none were asked for. `offset`
    characters are before its own text, which a stop string may hold back.
    """

    id: int
    text: str
    logprob: float | None
    special: bool
    offset: int = 0


class Piece(NamedTuple):
    """What came at once."""

    text: str
    tokens: tuple[Token, ...]


@dataclass
class Patience:
    """Of one request: `deadline` is on time.monotonic's clock, as is when tokens of any of its
    sequences `came` last; `gap_s` is the longest silence of one. `caller` is done when nobody waits
    any more, None where nobody would know.
    """

    deadline: float
    gap_s: float
    caller: Future[None] | None = None
    came: float = 0.0

    def arrived(self, at: float) -> None:
        """Also of a sequence that nobody reads yet, as of a stream whose others have not begun."""
        self.came = at

    @property
    def left_by(self) -> str:
        """Why a sequence is cut that nobody reads any more."""
        if self.caller is None or not self.caller.done():
            return DISCONNECT
        code = why_nobody_waits(self.caller).kind.code
        return GIVEN_UP.get(code, code)


class Sequence:
    """To be read once, by `pieces`, and closed. `ending` is None until it is whole.

    `read_step` makes a step of each message. Raises ServingError where the first one is an error,
    which is then told before any status is.
    """

    # Until it is made whole: what could not be made has nothing to close.
    _open = False

    def __init__(
        self, replies: Replies, read_step: Callable[[Outputs], EngineStep], library: Any,
        prompt: list[int], stop: tuple[str, ...], options: Options, patience: Patience,
        figures: TextFigures,
    ) -> None:  # fmt: skip
        self.seed = options.seed
        self.prompt_tokens = len(prompt)
        self.new_tokens = 0
        self.text = ""
        # Kept where they are told of one by one: in an answer with their log-probabilities.
        self.tokens: list[Token] = []
        self.ending: Ending | None = None
        self._replies = replies
        self._read_step = read_step
        self._library = library
        self._silent = silent_tokens(library)
        self._detokenizer = Detokenizer(library, prompt)
        self._stops = Stops(stop)
        # Characters of all tokens so far, with those that are held back for a stop string.
        self._decoded = 0
        self._eos_ids = options.eos_ids
        # Special tokens have no text in which a stop string could be found.
        named = map(library.token_to_id, stop)
        self._stop_ids = self._silent.intersection(named).difference(options.eos_ids)
        self._with_logprobs = options.logprobs
        self._patience = patience
        self._figures = figures
        self._last = replies.came()
        self._first = self._read(replies.first)
        if not self._first.ids and self._first.finish not in _ENDINGS:
            _check(self._first.finish)
        self._open = True

    async def pieces(self) -> AsyncIterator[Piece]:
        """As they come. Raises ServingError: `deadline`, `unavailable` for a stall, and others."""
        step = self._first
        try:
            while True:
                piece = self._piece(step)
                if piece.tokens or piece.text:
                    yield piece
                if self.ending is not None:
                    return
                _check(step.finish)
                step = self._read(await self._next())
        except ENDS:
            raise
        except BaseException as error:
            self.close(cut_by(error))
            raise
        finally:
            self.close()

    async def whole(self) -> None:
        """Read it to its end. Raises as `pieces` does."""
        async for _ in self.pieces():
            pass

    def close(self, reason: str = DISCONNECT) -> None:
        """Let the engine stop, where it is not done; `reason` is why nobody waits any more."""
        if not self._open:
            return
        self._open = False
        if reason == DISCONNECT:
            reason = self._patience.left_by
        self._replies.close(failed=self.ending is None and reason != DISCONNECT)
        if self.ending is None:
            self._figures.cut(reason)

    def __del__(self) -> None:
        # One that nobody came to read: its engine and its seat are not held for it.
        self.close()

    def _read(self, outputs: Outputs | None) -> EngineStep:
        if outputs is None:
            raise ServingError(
                "engine_failed", "the engine's answers ended before the sequence did"
            )
        return self._read_step(outputs)

    async def _next(self) -> Outputs | None:
        patience = self._patience
        left = patience.deadline - time.monotonic()
        try:
            async with asyncio.timeout(max(0.0, min(left, patience.gap_s))):
                outputs = await self._replies.next()
        except TimeoutError:
            if left <= patience.gap_s:
                raise too_late() from None
            raise ServingError(
                "unavailable",
                "the engine has sent nothing of this sequence for too long; "
                "TRANSFORMER_SERVING_TOKEN_GAP_S sets how long is waited",
                limit=f"{patience.gap_s:g} s",
            ) from None
        if not self._open:
            # Closed at the deadline, by whoever sends it on. Behind a caller who reads slowly there
            # is always a message, so that no wait ends; else it may be the engine's word to that.
            raise too_late()
        return outputs

    def _piece(self, step: EngineStep) -> Piece:
        """The step's tokens up to a stop string; at the end with all that was held back."""
        tokens = self._tokens(step)
        self._told(len(tokens))
        # What came behind a stop string in the same message is as if it had not been generated.
        self.new_tokens = step.new_tokens - (len(step.ids) - len(tokens))
        self.ending = Ending.STOP if self._stops.found else _ENDINGS.get(step.finish)
        rest = ""
        if self.ending is not None:
            rest = self._stops.feed(self._detokenizer.rest()) + self._stops.rest()
            if self._stops.found:
                self.ending = Ending.STOP
        if tokens:
            tokens[-1] = tokens[-1]._replace(text=tokens[-1].text + rest)
        text = "".join([token.text for token in tokens]) if tokens else rest
        piece = Piece(text, tuple(tokens))
        self.text += text
        if self._with_logprobs:
            self.tokens.extend(piece.tokens)
        return piece

    def _tokens(self, step: EngineStep) -> list[Token]:
        """Up to the one with which a stop string is whole, or which is one."""
        tokens: list[Token] = []
        for at, token in enumerate(step.ids):
            own = self._text(at, step)
            text = self._stops.feed(own)
            if token in self._stop_ids:
                text += self._stops.feed(self._detokenizer.rest()) + self._stops.end()
            tokens.append(self._token(at, text, step))
            self._decoded += len(own)
            if self._stops.found:
                break
        return tokens

    def _text(self, at: int, step: EngineStep) -> str:
        token = step.ids[at]
        is_end = step.finish is Finish.STOP and at == len(step.ids) - 1 and token in self._eos_ids
        return "" if is_end else self._detokenizer.step(token)

    def _token(self, at: int, text: str, step: EngineStep) -> Token:
        logprob = step.logprobs[at] if step.logprobs and self._with_logprobs else None
        return Token(step.ids[at], text, logprob, step.ids[at] in self._silent, self._decoded)

    def _told(self, tokens: int) -> None:
        # Not now: that would be the pace at which a caller reads.
        came = self._replies.came()
        self._figures.came(tokens)
        if self.new_tokens:
            self._figures.gap(came - self._last, tokens)
        self._last = came

    def token_text(self, token: int) -> str:
        """A token alone, as a list of tokens names it."""
        return token_text(self._library, token)


def cut_by(error: BaseException) -> str:
    """The code of what ended a sequence, and others beside it."""
    return error.kind.code if isinstance(error, ServingError) else "internal"


def _check(finish: Finish) -> None:
    """Raises ServingError where the engine gave the sequence up."""
    if finish is Finish.CACHE_FULL:
        raise ServingError(
            "overloaded", "the engine's cache is full; ask for fewer tokens, or come back later"
        )
    if finish is not Finish.RUNNING:
        raise ServingError("unavailable", "the engine gave the sequence up; try again shortly")
