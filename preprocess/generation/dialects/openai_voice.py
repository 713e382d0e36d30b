"""The answers of OpenAI's completions and chat completions, whole and in chunks.

Tested by tests/preprocess/generation/test_voices.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence as Rows
from typing import Any

from preprocess.generation.detokenizer import BROKEN
from preprocess.generation.sequence import Ending, Piece, Sequence, Token
from preprocess.generation.voice import DONE, Spoken, event, usage_of
from transformer_serving.contract.dialects import dialect_of
from transformer_serving.contract.errors import ServingError

_REASONS = {Ending.EOS: "stop", Ending.STOP: "stop", Ending.LENGTH: "length", None: None}


class _OpenAIVoice(ABC):
    """What both have in common: the frame, its chunks and the usage."""

    kind = chunk_kind = prefix = ""

    def __init__(self, spoken: Spoken) -> None:
        self.spoken = spoken
        body = spoken.body
        self._with_usage = bool((body.get("stream_options") or {}).get("include_usage"))
        self.logprobs = spoken.wanted.parameters.logprobs
        # Of the tokens that were listed, by their ids: texts say the same ones again.
        self._names: dict[int, str] = {}

    def whole(self, sequences: Rows[Sequence]) -> Any:
        choices = [
            {**self.choice(at, one), "finish_reason": _REASONS[one.ending]}
            for at, one in enumerate(sequences)
        ]
        return {**self._frame(self.kind), "choices": choices, "usage": self._usage(sequences)}

    @abstractmethod
    def choice(self, at: int, sequence: Sequence) -> dict[str, Any]:
        """A sequence that is whole."""

    @abstractmethod
    def delta(self, at: int, text: str, logprobs: Any) -> dict[str, Any]:
        """What came of one."""

    @abstractmethod
    def listed(self, tokens: Rows[Token], sequence: Sequence) -> Any:
        """Tokens with their log-probabilities. Where those are asked for, the text begins with no
        prompt."""

    def name_of(self, token: Token, sequence: Sequence) -> str:
        """The token's own text, whatever stands before it."""
        name = self._names.get(token.id)
        if name is None:
            name = self._names[token.id] = sequence.token_text(token.id)
        return name

    def _frame(self, kind: str) -> dict[str, Any]:
        spoken = self.spoken
        return {
            "id": f"{self.prefix}-{spoken.request_id}",
            "object": kind,
            "created": spoken.created,
            "model": spoken.body.get("model") or spoken.name,
            # Changes with what may make another text of the same seed.
            "system_fingerprint": f"fp_{spoken.bundle}",
        }

    def _usage(self, sequences: Rows[Sequence]) -> dict[str, int]:
        usage = usage_of(self.spoken, sequences)
        return {
            "prompt_tokens": usage.prompt,
            "completion_tokens": usage.new,
            "total_tokens": usage.prompt + usage.new,
        }

    def _chunk(self, *choices: dict[str, Any], **more: Any) -> bytes:
        usage = {"usage": None} if self._with_usage else {}
        return event({**self._frame(self.chunk_kind), "choices": choices, **usage, **more})

    def piece(self, at: int, piece: Piece, sequence: Sequence) -> bytes:
        listed = None
        if self.logprobs:
            listed = self.listed(piece.tokens, sequence)
        if not piece.text and not listed:
            return b""
        return self._chunk({**self.delta(at, piece.text, listed), "finish_reason": None})

    def end(self, at: int, sequence: Sequence) -> bytes:
        reason = _REASONS[sequence.ending]
        return self._chunk({**self.delta(at, "", None), "finish_reason": reason})

    def last(self, sequences: Rows[Sequence]) -> bytes:
        if not self._with_usage:
            return DONE
        return self._chunk(usage=self._usage(sequences)) + DONE

    def fault(self, error: ServingError) -> bytes:
        return event(dialect_of("openai").error_body(error))


class CompletionVoice(_OpenAIVoice):
    kind = chunk_kind = "text_completion"
    prefix = "cmpl"

    def choice(self, at: int, sequence: Sequence) -> dict[str, Any]:
        listed = None
        if self.logprobs:
            listed = self.listed(sequence.tokens, sequence)
        return {"index": at, "text": self.spoken.text(at, sequence), "logprobs": listed}

    def begin(self) -> bytes:
        """The prompt, where it is to be echoed."""
        spoken = self.spoken
        if not spoken.wanted.with_prompt:
            return b""
        choices = [
            {**self.delta(at, spoken.prompt(at), None), "finish_reason": None}
            for at in range(len(spoken.wanted.prompts) * spoken.rows)
        ]
        return self._chunk(*choices)

    def delta(self, at: int, text: str, logprobs: Any) -> dict[str, Any]:
        return {"index": at, "text": text, "logprobs": logprobs}

    def listed(self, tokens: Rows[Token], sequence: Sequence) -> Any:
        return {
            "tokens": [self.name_of(token, sequence) for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": None,
            "text_offset": [token.offset for token in tokens],
        }


class ChatVoice(_OpenAIVoice):
    kind, chunk_kind, prefix = "chat.completion", "chat.completion.chunk", "chatcmpl"
    # Of the delta of every chunk. OpenAI's own clients put the strings of deltas together, so that
    # a role stands in the first alone.
    in_each: Mapping[str, Any] = {}

    def choice(self, at: int, sequence: Sequence) -> dict[str, Any]:
        listed = self.listed(sequence.tokens, sequence) if self.logprobs else None
        message = {"role": "assistant", "content": sequence.text, "refusal": None}
        return {"index": at, "message": message, "logprobs": listed}

    def begin(self) -> bytes:
        roles = [
            {
                "index": at, "delta": {"role": "assistant", "content": "", **self.in_each},
                "logprobs": None, "finish_reason": None,
            }
            for at in range(self.spoken.rows)
        ]  # fmt: skip
        return self._chunk(*roles)

    def delta(self, at: int, text: str, logprobs: Any) -> dict[str, Any]:
        delta = {**self.in_each, "content": text} if text else dict(self.in_each)
        return {"index": at, "delta": delta, "logprobs": logprobs}

    def listed(self, tokens: Rows[Token], sequence: Sequence) -> Any:
        rows = []
        for token in tokens:
            text = self.name_of(token, sequence)
            rows.append(
                {
                    "token": text,
                    "logprob": token.logprob,
                    # A token of a part of a character has bytes that the text does not tell.
                    "bytes": None if BROKEN in text else list(text.encode()),
                    "top_logprobs": [],
                }
            )
        return {"content": rows, "refusal": None}


class TgiChatVoice(ChatVoice):
    """As text-generation-inference streams it: its clients ask of each delta for the role, and
    llama-index for calls of tools."""

    in_each: Mapping[str, Any] = {"role": "assistant", "content": "", "tool_calls": None}
