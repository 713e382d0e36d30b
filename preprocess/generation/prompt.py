"""Prompts as token ids, and whether they and the new tokens have room in the model.

Tested by tests/preprocess/generation/test_request.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from preprocess.generation.chat import render_chat
from preprocess.generation.request import Wanted
from preprocess.tokens import Tokenizer
from transformer_serving.contract.errors import ServingError
from transformer_serving.contract.generation import Generation


@dataclass(frozen=True)
class Prompt:
    """`ids` as the engine takes them, and how many new tokens are asked of it."""

    ids: list[int]
    new_tokens: int


def read_prompts(wanted: Wanted, tokenizer: Tokenizer, generation: Generation) -> list[Prompt]:
    """Raises ServingError: `too_large` with both numbers, `impossible` for no tokens at all."""
    if wanted.messages is None:
        encodings = tokenizer.whole(wanted.prompts, special=True)
    else:
        text = render_chat(wanted.messages, generation)
        # The template has written the special tokens itself.
        encodings = tokenizer.whole((text,), special=False)
    return [_prompt(encoding.ids, wanted, generation) for encoding in encodings]


def _prompt(ids: list[int], wanted: Wanted, generation: Generation) -> Prompt:
    if wanted.parameters.truncate is not None:
        ids = ids[-wanted.parameters.truncate :]
    if not ids:
        raise ServingError(
            "impossible", "the prompt has no tokens, so the model has nothing to go on with",
            field="text",
        )  # fmt: skip
    return Prompt(ids, _new_tokens(len(ids), wanted.parameters.max_new_tokens, generation))


def _new_tokens(prompt: int, asked: int | None, generation: Generation) -> int:
    """What was asked for; the model's own number, as far as there is room, where nothing was."""
    room = generation.max_positions - prompt
    if room < (asked or 1):
        raise ServingError(
            "too_large",
            f"the prompt's {prompt} tokens and {asked or 1} new ones are more than the model has "
            "positions for; shorten the prompt or ask for fewer",
            field="max_new_tokens" if room > 0 else "text",
            limit=generation.max_positions,
            got=prompt + (asked or 1),
        )
    return asked or min(generation.default_new_tokens, room)
