"""The golden request of a language model: the text that it is the surest to continue.

Another processor rounds otherwise, and where two tokens are about as likely it takes the other one:
of several texts the one is asked for ever after whose closest choice is the least close, among
those that the finished engine continues as the reference does.

Tested by tests/test_language_model.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from preprocess.generation.detokenizer import BROKEN, Detokenizer
from transformer_serving.contract.generation import Options, Sampling
from transformer_serving.contract.manifest import Golden
from transformer_serving.desk.failure import ConversionRefused
from transformer_serving.desk.parity.continuations import Reference
from transformer_serving.desk.source.language_model import LanguageModelSource
from transformer_serving.engine.proof.greedy import Asked, Generate
from transformer_serving.engine.proof.greedy_set import GreedyRow

_TEXTS = (
    "My name is",
    "The train left early because of snow and we",
    "Once upon a time there was",
    "The capital of France is",
    "1 2 3 4 5 6 7",
    "Rain fell on the roof all night and",
)
_NEW = 8


@dataclass(frozen=True)
class GoldenContinuation:
    """A text, and what the reference goes on with under the endpoint's own `sampling` but chance.

    `new_tokens` is how many are asked for, and `written` the text of those that came.
    """

    text: str
    row: GreedyRow
    written: str
    sampling: Sampling
    new_tokens: int

    @property
    def golden(self) -> Golden:
        parameters = {"do_sample": False, "max_new_tokens": self.new_tokens}
        body = {"text": self.text, "parameters": parameters}
        # Of texts nothing is a little different.
        return Golden(body, {"text": self.text + self.written}, 0.0)

    @property
    def asked(self) -> Asked:
        """As preprocess will ask the engine for it."""
        options = Options(self.new_tokens, self.row.eos_ids, self.sampling, 0)
        return Asked(self.row.prompt, options)

    @property
    def margin(self) -> float:
        """Of its closest choice."""
        return min(self.row.margins)


def check_golden_fits(source: LanguageModelSource) -> None:
    """Raises ConversionRefused where the positions are too few for any of the texts."""
    _prompts(source.tokenizer.library(), source.generation.max_positions)


def golden_continuations(
    source: LanguageModelSource, reference: Reference
) -> tuple[GoldenContinuation, ...]:
    """Of every text that fits: greedy, of a few tokens. Raises ConversionRefused as the check."""
    tokenizer, generation = source.tokenizer.library(), source.generation
    new = _new_tokens(generation.max_positions)
    sampling = replace(generation.sampling, do_sample=False)
    found = []
    for text, prompt in _prompts(tokenizer, generation.max_positions):
        options = Options(new, generation.eos_ids, sampling, 0)
        penalty, least = sampling.repetition_penalty, options.min_new_tokens
        row = reference.row(prompt, new, options.eos_ids, penalty, least)
        written = _written(tokenizer, row)
        found.append(GoldenContinuation(text, row, written, sampling, new))
    return tuple(found)


def continued_alike(
    found: Sequence[GoldenContinuation], engine: Generate
) -> list[GoldenContinuation]:
    """Those that the engine goes on with as the reference, alone and beside each other."""
    asked = [one.asked for one in found]
    alone = [engine([one])[0] for one in asked]
    return [
        one
        for one, *answers in zip(found, alone, engine(asked), strict=True)
        if all(answer.ids == one.row.continuation for answer in answers)
    ]


def surest(found: Sequence[GoldenContinuation], margin: float) -> GoldenContinuation:
    """One whose choices are all beyond `margin`, in scores, where there is one; of those one
    without a broken character, as a model of bytes writes them."""
    return max(found, key=lambda one: (one.margin > margin, BROKEN not in one.written, one.margin))


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


def _written(tokenizer: Any, row: GreedyRow) -> str:
    """The new tokens' text as preprocess tells it: that of the end is none."""
    new = row.continuation
    if new[-1] in row.eos_ids:
        new = new[:-1]
    detokenizer = Detokenizer(tokenizer, row.prompt)
    return "".join([*map(detokenizer.step, new), detokenizer.rest()])
