"""Our own form, and the pipeline's where `inputs` holds the prompt.

Tested by tests/preprocess/generation/test_voices.py.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows
from typing import Any

from preprocess.generation.sequence import Piece, Sequence
from preprocess.generation.voice import DONE, Spoken, ending_of, event
from transformer_serving.contract.errors import ServingError


class OwnVoice:
    """{"text": prompt and continuation}, a list of them for several, and pieces as events."""

    def __init__(self, spoken: Spoken) -> None:
        self._spoken = spoken

    def whole(self, sequences: Rows[Sequence]) -> Any:
        spoken = self._spoken
        name = "generated_text" if spoken.wanted.pipeline_shape else "text"
        rows = [
            [{name: spoken.text(at, one)} for at, one in row] for row in spoken.by_prompt(sequences)
        ]
        if spoken.wanted.pipeline_shape:
            return rows if spoken.wanted.many else rows[0]
        if spoken.rows == 1:
            flat = [row[0] for row in rows]
            return flat if spoken.wanted.many else flat[0]
        return rows if spoken.wanted.many else rows[0]

    def begin(self) -> bytes:
        return b""

    def piece(self, at: int, piece: Piece, sequence: Sequence) -> bytes:
        """Without the prompt, which the caller has."""
        return event({"index": at, "text": piece.text}) if piece.text else b""

    def end(self, at: int, sequence: Sequence) -> bytes:
        return event(
            {
                "index": at,
                "text": "",
                "finish_reason": ending_of(sequence),
                "prompt_tokens": sequence.prompt_tokens,
                "generated_tokens": sequence.new_tokens,
                "seed": sequence.seed,
            }
        )

    def last(self, sequences: Rows[Sequence]) -> bytes:
        return DONE

    def fault(self, error: ServingError) -> bytes:
        return event(error.body(), "error")
