"""The golden request of a language model: the text that it is the surest to continue.

Another processor rounds otherwise, and where two tokens are about as likely it takes the other one:
of several texts the one is asked for ever after whose closest choice is the least close.

Tested by tests/test_language_model.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

from transformer_serving.desk.failure import ConversionRefused
from transformer_serving.desk.parity.continuations import Reference
from transformer_serving.desk.source.language_model import LanguageModelSource

_TEXTS = (
    "My name is",
    "The train left early because of snow and we",
    "Once upon a time there was",
    "The capital of France is",
    "1 2 3 4 5 6 7",
    "Rain fell on the roof all night and",
)
_NEW = 8
_BROKEN = "\ufffd"


def check_golden_fits(source: LanguageModelSource) -> None:
    """Raises ConversionRefused where the positions are too few for any of the texts."""
    _prompts(source.tokenizer.library(), source.generation.max_positions)


def golden_continuation(
    source: LanguageModelSource, reference: Reference
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The body and its answer: greedy, of a few tokens. Raises ConversionRefused as the check."""
    tokenizer, positions = source.tokenizer.library(), source.generation.max_positions
    new = _new_tokens(positions)
    found = []
    for text, prompt in _prompts(tokenizer, positions):
        row = reference.row(prompt, new, source.generation.eos_ids)
        written = _written(tokenizer, row.prompt, row.continuation)
        # A model of bytes may end within a character, or write what is none.
        found.append((_BROKEN not in written, min(row.margins), text, written))
    _, _, text, written = max(found)
    body = {"text": text, "parameters": {"do_sample": False, "max_new_tokens": new}}
    return body, {"text": text + written}


def _new_tokens(positions: int) -> int:
    return min(_NEW, positions // 4 or 1)


def _prompts(tokenizer: Any, positions: int) -> list[tuple[str, list[int]]]:
    """The texts that fit, each with its tokens."""
    prompts = [(text, ids) for text in _TEXTS if (ids := tokenizer.encode(text).ids)]
    if not prompts:
        raise ConversionRefused(
            "the tokenizer gives no token for any golden request; give a tokenizer that knows "
            "common words, or has an unknown token"
        )
    fitting = [one for one in prompts if len(one[1]) + _new_tokens(positions) <= positions]
    if fitting:
        return fitting
    shortest = min(len(ids) for _, ids in prompts)
    least = next(size for size in count(shortest) if shortest + _new_tokens(size) <= size)
    raise ConversionRefused(
        f"--max-length is too small for any golden request: {positions} positions for a prompt of "
        f"{shortest} tokens and what follows; give at least {least}"
    )


def _written(tokenizer: Any, prompt: Sequence[int], new: Sequence[int]) -> str:
    """What the new tokens add to the text: by themselves they may lose the space before them."""
    before = str(tokenizer.decode(list(prompt)))
    whole = str(tokenizer.decode([*prompt, *new]))
    return whole.removeprefix(before)
