"""Prompts as token ids, and whether they and the new tokens have room in the model.

Tested by tests/preprocess/generation/test_prompt.py and
tests/preprocess/generation/test_request.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from preprocess.generation.chat import render_chat
from preprocess.generation.detokenizer import silent_tokens
from preprocess.generation.request import Wanted
from preprocess.tokens import Tokenizer, check_ids, check_total
from transformer_serving.contract.endpoint import Limits
from transformer_serving.contract.errors import ServingError
from transformer_serving.contract.generation import Generation


@dataclass(frozen=True)
class Prompt:
    """`ids` as the engine takes them, and how many new tokens are asked of it.

    `text` for an engine that tokenizes itself: one that has these ids, with the special tokens that
    the tokenizer puts around it; None where nobody asked, or no such text was found. `field` is the
    one of the body that it came in.
    """

    ids: list[int]
    new_tokens: int
    text: str | None = None
    field: str = "text"

    @cached_property
    def array(self) -> NDArray[np.int32]:
        """The ids, made once for all sequences of the prompt."""
        return np.array(self.ids, np.int32)


def read_prompts(
    wanted: Wanted, tokenizer: Tokenizer, generation: Generation, limits: Limits, *, with_text: bool
) -> list[Prompt]:
    """`with_text` for an engine that takes no ids.

    Raises ServingError: `too_large` with both numbers, where one has no room in the model or all
    together are too many tokens, `impossible` for no tokens at all or one that the model does not
    know.
    """
    texts, special = wanted.prompts, wanted.messages is None
    if wanted.messages is not None:
        # The template has written the special tokens itself.
        texts = (render_chat(wanted.messages, generation),)
    cut = wanted.parameters.truncate
    prompts, total = [], 0
    for text in texts:
        # One by one: those behind one that is refused are not read.
        [encoding] = tokenizer.whole((text,), special=special)
        ids = encoding.ids if cut is None else encoding.ids[-cut:]
        if not ids:
            raise ServingError(
                "impossible",
                "the prompt has no tokens, so the model has nothing to go on with",
                field=wanted.field,
            )
        check_ids(ids, tokenizer.known_ids, wanted.field)
        new = _new_tokens(len(ids), wanted, generation)
        total += len(ids)
        check_total(total, limits, wanted.field)
        as_sent = special and len(ids) == len(encoding)
        taken = text if as_sent or not with_text else _text_of(ids, encoding, text, tokenizer)
        prompts.append(Prompt(ids, new, taken if with_text else None, wanted.field))
    return prompts


def _text_of(ids: list[int], encoding: Any, text: str, tokenizer: Tokenizer) -> str | None:
    """`ids` are the last of `encoding`, which is the tokenizer's own of `text`."""

    def encode(candidate: str) -> list[int]:
        made: list[int] = tokenizer.whole((candidate,), special=True)[0].ids
        return made

    # As it was written first: what a decoder makes of tokens may have other spaces.
    ends = [0, *(end for _, end in encoding.offsets)]
    cut = len(encoding) - len(ids)
    starts = _starts(ids, tokenizer.library)
    written = (text[ends[cut + start] :] for start in starts)
    found = next((one for one in written if one and encode(one) == ids), None)
    return found or text_of(ids, tokenizer.library, encode)


def text_of(ids: Sequence[int], library: Any, encode: Callable[[str], Sequence[int]]) -> str | None:
    """The text of which `encode`, with the tokenizer's special tokens around it, makes these ids:
    what they say after those.

    `library` is the tokenizers library's own object.
    """
    for start in _starts(ids, library):
        text = str(library.decode(list(ids[start:]), skip_special_tokens=False))
        if text and list(encode(text)) == list(ids):
            return text
    return None


def _starts(ids: Sequence[int], library: Any) -> range:
    """Where the text of these ids may begin, the likeliest first: behind special tokens, as many as
    the tokenizer adds. Others behind those are a template's, and part of the text.
    """
    silent = silent_tokens(library)
    leading = next((at for at, one in enumerate(ids) if one not in silent), len(ids))
    return range(min(leading, library.num_special_tokens_to_add(False)), -1, -1)


def _new_tokens(prompt: int, wanted: Wanted, generation: Generation) -> int:
    """What was asked for; the model's own number, as far as there is room, where nothing was."""
    asked = wanted.parameters.max_new_tokens
    room = generation.max_positions - prompt
    if room < (asked or 1):
        raise ServingError(
            "too_large",
            f"the prompt's {prompt} tokens and {asked or 1} new ones are more than the model has "
            "positions for; shorten the prompt or ask for fewer",
            field="max_new_tokens" if room > 0 else wanted.field,
            limit=generation.max_positions,
            got=prompt + (asked or 1),
        )
    return asked or min(generation.default_new_tokens, room)
