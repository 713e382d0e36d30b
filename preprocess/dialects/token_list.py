"""Which tokens a text is made of: a task that needs no engine.

Tested by tests/preprocess/test_dialects.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import tokenizers

from preprocess.answers.embedding import default_prompt_of, prompt_name, prompted, prompts_of
from preprocess.answers.work import Work
from preprocess.body_form import BodyForm, TextField
from preprocess.parameters import FLAG, Parameter, Parameters, read_parameters
from preprocess.request import Request
from preprocess.rows import Row
from preprocess.tokens import Tokenizer, check_total
from preprocess.windows import Windows
from transformer_serving.contract.endpoint import Endpoint

Token = dict[str, Any]
# As JSON so many take about as long as a piece of a task's answer.
_TOKENS_A_PIECE = 16


@dataclass(frozen=True)
class ListParameters(Parameters):
    prompt: str | None
    special: bool


class TokenList:
    """Whole texts, however long: nothing is cut."""

    form = BodyForm(TextField("text", one=False))

    def __init__(self, endpoint: Endpoint) -> None:
        self._limits = endpoint.limits
        self._prompts = prompts_of(endpoint)
        self.parameters = (
            Parameter("add_special_tokens", FLAG, True),
            Parameter("prompt_name", prompt_name(self._prompts), default_prompt_of(endpoint)),
        )

    def read_parameters(self, values: Mapping[str, Any]) -> ListParameters:
        read = read_parameters(values, self.parameters)
        prompt = self._prompts.get(read["prompt_name"] or "")
        return ListParameters(prompt, read["add_special_tokens"])

    def encode(self, request: Request, tokenizer: Tokenizer | Windows) -> Work:
        texts = prompted(request.texts, request.parameters.prompt)
        encodings = tokenizer.whole(texts, special=request.parameters.special)
        total = sum(len(encoding) for encoding in encodings)
        check_total(total, self._limits)
        answer = [
            tokens_of(text, encoding) for text, encoding in zip(texts, encodings, strict=True)
        ]
        return Work(request, (), answer, total // _TOKENS_A_PIECE)

    def render(self, rows: Sequence[Row], work: Work) -> Any:
        return work.context


def tokens_of(text: str, encoding: tokenizers.Encoding) -> list[Token]:
    """With their places in the text as UTF-8; of the tokenizer's own around it none."""
    columns = zip(
        encoding.ids, encoding.tokens, encoding.offsets, encoding.special_tokens_mask, strict=True
    )
    at = _places(text)
    return [
        {"id": token, "text": name, "special": True, "start": None, "stop": None}
        if special
        else {
            "id": token, "text": text[start:stop], "special": False,
            "start": at[start], "stop": at[stop],
        }
        for token, name, (start, stop), special in columns
    ]  # fmt: skip


def _places(text: str) -> Sequence[int]:
    """Where each character begins, and the last ends, in UTF-8: the places of the tokenizers
    library in Rust, which its server tells; Python's are in characters.
    """
    if text.isascii():
        return range(len(text) + 1)
    sizes = (len(character.encode()) for character in text)
    return list(accumulate(sizes, initial=0))
