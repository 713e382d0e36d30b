"""How an answer is said in the caller's dialect: whole, or as events.

Tested by tests/preprocess/generation/test_voice.py and
tests/preprocess/generation/test_voices.py.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence as Rows
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import orjson

from preprocess.generation.request import Wanted
from preprocess.generation.sequence import Ending, Piece, Sequence
from transformer_serving.contract.errors import ServingError

DONE = b"data: [DONE]\n\n"
# JSON leaves them as they are, and str.splitlines, by which httpx reads lines, ends one at each. As
# escapes they are the same text to every client.
_LINE_ENDS = tuple((end.encode(), b"\\u%04x" % ord(end)) for end in "\x85\u2028\u2029")


@dataclass(frozen=True)
class Spoken:
    """What was asked, of whom: `body` as the caller sent it, `name` and `version` as served, the
    `bundle` by its version.
    """

    body: Mapping[str, Any]
    wanted: Wanted
    name: str
    version: str | None
    bundle: int
    request_id: str
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def rows(self) -> int:
        """Sequences of each prompt."""
        return self.wanted.parameters.sequences

    def text(self, at: int, sequence: Sequence) -> str:
        """A sequence's text, behind its prompt where that is wanted."""
        if not self.wanted.with_prompt:
            return sequence.text
        return self.prompt(at) + sequence.text

    def prompt(self, at: int) -> str:
        """Of the sequence at that place; a conversation's is not shown."""
        prompts = self.wanted.prompts
        return prompts[at // self.rows] if prompts else ""

    def by_prompt(self, sequences: Rows[Sequence]) -> list[list[tuple[int, Sequence]]]:
        """Each with its place, in a list a prompt."""
        every = list(enumerate(sequences))
        return [every[at : at + self.rows] for at in range(0, len(every), self.rows)]


class Voice(Protocol):
    """One answer. Events are whole, with the empty line at their end; b"" is none."""

    def whole(self, sequences: Rows[Sequence]) -> Any:
        """The answer's JSON-ready body, once every sequence is whole."""

    def begin(self) -> bytes: ...

    def piece(self, at: int, piece: Piece, sequence: Sequence) -> bytes: ...

    def end(self, at: int, sequence: Sequence) -> bytes: ...

    def last(self, sequences: Rows[Sequence]) -> bytes: ...

    def fault(self, error: ServingError) -> bytes: ...


def event(data: Any, name: str | None = None) -> bytes:
    """One server-sent event."""
    head = b"" if name is None else b"event: %s\n" % name.encode()
    return head + b"data: " + _one_line(orjson.dumps(data)) + b"\n\n"


def _one_line(raw: bytes) -> bytes:
    """The JSON as one line to every client."""
    if not raw.isascii():
        for end, escape in _LINE_ENDS:
            raw = raw.replace(end, escape)
    return raw


class Usage(NamedTuple):
    """Tokens; of several sequences of one prompt that counts once."""

    prompt: int
    new: int


def usage_of(spoken: Spoken, sequences: Rows[Sequence]) -> Usage:
    prompts = sum(row[0][1].prompt_tokens for row in spoken.by_prompt(sequences))
    return Usage(prompts, sum(one.new_tokens for one in sequences))


def ending_of(sequence: Sequence) -> str:
    return (sequence.ending or Ending.LENGTH).value
