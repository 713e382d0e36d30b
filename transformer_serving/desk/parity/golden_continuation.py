"""The golden request of a language model: the text that it is the surest to continue.

Another processor rounds otherwise, and where two tokens are about as likely it takes the other one:
of several texts the one is asked for ever after whose closest choice is the least close.

Tested by tests/test_language_model.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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


def golden_continuation(
    source: LanguageModelSource, reference: Reference
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The body and its answer: greedy, of a few tokens."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_buffer(source.tokenizer.content)
    new = min(_NEW, source.generation.max_positions // 4 or 1)
    found = []
    for text in _TEXTS:
        prompt = tokenizer.encode(text).ids
        if prompt and len(prompt) + new <= source.generation.max_positions:
            row = reference.row(prompt, new, source.generation.eos_ids)
            written = _written(tokenizer, row.prompt, row.continuation)
            # A model of bytes may end within a character, or write what is none.
            found.append((_BROKEN not in written, min(row.margins), text, written))
    _, _, text, written = max(found)
    body = {"text": text, "parameters": {"do_sample": False, "max_new_tokens": new}}
    return body, {"text": text + written}


def _written(tokenizer: Any, prompt: Sequence[int], new: Sequence[int]) -> str:
    """What the new tokens add to the text: by themselves they may lose the space before them."""
    before = str(tokenizer.decode(list(prompt)))
    whole = str(tokenizer.decode([*prompt, *new]))
    return whole.removeprefix(before)
