"""fill-mask: the graph's best fillings of every mask, or the scores of the caller's targets.

Tested by tests/preprocess/answers/test_equality.py and tests/preprocess/answers/test_refusals.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from preprocess.answers.gist import Gist, words
from preprocess.answers.work import Work
from preprocess.body_form import BodyForm, TextField
from preprocess.parameters import (
    CHARACTERS_A_TEXT,
    Parameter,
    Parameters,
    read_parameters,
    texts,
    whole,
)
from preprocess.request import Request
from preprocess.rows import Row
from preprocess.tokens import Encoded, Tokenizer, check_ids
from transformer_serving.contract.endpoint import Endpoint
from transformer_serving.contract.errors import ServingError
from transformer_serving.contract.meanings import Masks

# What transformers takes out of decoded text, in its order, where a tokenizer asks for it.
_CLEANED = (
    (" .", "."),
    (" ?", "?"),
    (" !", "!"),
    (" ,", ","),
    (" ' ", "'"),
    (" n't", "n't"),
    (" 'm", "'m"),
    (" 's", "'s"),
    (" 've", "'ve"),
    (" 're", "'re"),
)


# A call is computed with as many places for masks as its row with the most has, each of them over
# the whole vocabulary.
MOST_IN_A_ROW = 4


@dataclass(frozen=True)
class FillMaskParameters(Parameters):
    top_k: int
    targets: tuple[str, ...] | None

    @property
    def characters(self) -> int:  # type: ignore[override]
        targets = self.targets or ()
        return sum(map(len, targets)) + CHARACTERS_A_TEXT * len(targets)


@dataclass(frozen=True)
class Context:
    """`targets` are token ids, without repeats.

    `texts` has the rows of each text: the same ids, and each time the next of its masks.
    """

    tokenizer: Tokenizer
    targets: list[int] | None
    texts: list[list[Encoded]]


class FillMask:
    """Rows of best scores and ids, [masks, best], and of the targets' scores [masks, targets].

    A text of many masks is several rows.
    """

    form = BodyForm(TextField("text"))
    tokenizer = Tokenizer

    def __init__(self, endpoint: Endpoint) -> None:
        if endpoint.masks is None:
            raise ValueError("endpoint.json has no 'masks'")
        self._masks: Masks = endpoint.masks
        self._tokens = endpoint.tokens
        self._limits = endpoint.limits
        self.parameters = (
            Parameter("top_k", whole(1, endpoint.masks.best), min(5, endpoint.masks.best)),
            Parameter("targets", texts(endpoint.limits.max_characters)),
        )

    def read_parameters(self, values: Mapping[str, Any]) -> FillMaskParameters:
        read = read_parameters(values, self.parameters)
        targets = read["targets"]
        if isinstance(targets, str):
            targets = [targets]
        if targets is not None and len(targets) > self._limits.max_texts:
            raise ServingError(
                "too_large",
                "there are too many targets; send them in several requests",
                field="targets",
                limit=self._limits.max_texts,
                got=len(targets),
            )
        return FillMaskParameters(read["top_k"], None if targets is None else tuple(targets))

    def encode(self, request: Request, tokenizer: Tokenizer) -> Work:
        parameters: FillMaskParameters = request.parameters
        targets = None
        if parameters.targets is not None:
            targets = self._target_ids(parameters.targets, tokenizer)
        rows = tokenizer.encode(request.texts, request.truncate, self._limits, request.text_field)
        positions = [
            [at for at, token in enumerate(row.ids) if token == self._masks.mask_id] for row in rows
        ]
        self._check_masks(rows, positions)
        written = sum(
            parameters.top_k * len(at) * len(row.ids)
            for at, row in zip(positions, rows, strict=True)
        )
        if written > self._limits.max_tokens:
            raise ServingError(
                "too_large",
                "masks times top_k make too much text to answer with; ask for less",
                field="top_k",
                limit=self._limits.max_tokens,
                got=written,
            )
        # An input has at least one column; the scores of this one are not looked at.
        candidates = targets or [self._tokens.pad_id]
        parts = [
            [
                Encoded(row.ids, row.type_ids, {"mask_positions": some, "candidates": candidates})
                for some in (
                    at[first : first + MOST_IN_A_ROW] for first in range(0, len(at), MOST_IN_A_ROW)
                )
            ]
            for at, row in zip(positions, rows, strict=True)
        ]
        encoded = list(chain.from_iterable(parts))
        # There are no more tokens in them than `written`, which has been looked at.
        return Work(request, encoded, Context(tokenizer, targets, parts), written)

    def _check_masks(self, rows: Sequence[Encoded], positions: Sequence[Sequence[int]]) -> None:
        """Raises ServingError `impossible` for a text without one."""
        without = [row for row, at in zip(rows, positions, strict=True) if not at]
        if not without:
            return
        # Where one is of full length its mask may have stood in what is cut.
        may_be_cut = any(len(row.ids) == self._tokens.max_length for row in without)
        among = " among the tokens that the model takes" if may_be_cut else ""
        raise ServingError(
            "impossible",
            f"a text has no {self._masks.mask_token} to fill in{among}",
            field="text",
            limit=self._masks.mask_token,
        )

    def _target_ids(self, targets: Iterable[str], tokenizer: Tokenizer) -> list[int]:
        """A word's own token or, as in the pipeline, the first of its tokens."""
        library, found = tokenizer.library, []
        for target in targets:
            token = library.token_to_id(target)
            if token is None:
                pieces = library.encode(target, add_special_tokens=False).ids
                if not pieces:
                    continue
                token = pieces[0 if self._tokens.truncation_side == "right" else -1]
            found.append(token)
        if not found:
            raise ServingError(
                "impossible", "no target is in the vocabulary", field="targets", limit=1, got=0
            )
        check_ids(found, tokenizer.known_ids, "targets")
        return list(set(found))

    def render(self, rows: Sequence[Row], work: Work) -> Any:
        request, context = work.request, work.context
        left = iter(rows)
        answers = [
            self._answer([next(left) for _ in parts], parts, request.parameters.top_k, context)
            for parts in context.texts
        ]
        # The pipeline unpacks a list of one text, too.
        unpacks = request.pipeline_shape and len(answers) == 1
        return answers[0] if unpacks or not request.many else answers

    def gist(self, answer: Any, rows: Sequence[Row], work: Work) -> Gist:
        """The best proposal for each mask."""
        return words(list(_best(answer)))

    def _answer(
        self, rows: Sequence[Row], parts: Sequence[Encoded], top_k: int, context: Context
    ) -> Any:
        """Of one text, whose rows these are."""
        best, best_ids, chosen = (np.concatenate(arrays) for arrays in zip(*rows, strict=True))
        if context.targets is not None:
            order = np.argsort(-chosen, axis=-1, kind="stable")
            best = np.take_along_axis(chosen, order, -1)
            best_ids = np.asarray(context.targets)[order]
        ids = parts[0].ids
        positions = [at for part in parts for at in part.extras["mask_positions"]]
        answers = [
            [
                self._filling(ids, at, token, score, len(positions) == 1, context)
                for token, score in zip(tokens[:top_k], scores[:top_k], strict=True)
            ]
            for at, tokens, scores in zip(positions, best_ids.tolist(), best.tolist(), strict=True)
        ]
        return answers[0] if len(answers) == 1 else answers

    def _filling(
        self, ids: list[int], at: int, token: int, score: float, only: bool, context: Context
    ) -> dict[str, Any]:
        """One proposal; `only` that there is no other mask, which a clean text would lose."""
        filled = [*ids[:at], token, *ids[at + 1 :]]
        kept = [one for one in filled if one != self._tokens.pad_id]
        return {
            "score": score,
            "token": token,
            "token_str": self._decode([token], context, skip_special=False),
            "sequence": self._decode(kept, context, skip_special=only),
        }

    def _decode(self, ids: list[int], context: Context, *, skip_special: bool) -> str:
        text: str = context.tokenizer.library.decode(ids, skip_special_tokens=skip_special)
        if self._masks.cleans_up_spaces:
            for before, after in _CLEANED:
                text = text.replace(before, after)
        return text


def _best(answer: Any) -> Iterator[str]:
    """The texts that stand first, of lists of proposals within lists."""
    if answer and isinstance(answer[0], Mapping):
        yield answer[0]["token_str"]
        return
    for part in answer:
        yield from _best(part)
