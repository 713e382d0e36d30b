"""zero-shot-classification: every label as a hypothesis, all pairs of a request in shared calls.

Tested by tests/preprocess/answers/test_equality.py and tests/preprocess/answers/test_refusals.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from string import Formatter
from typing import Any

import tokenizers

from preprocess.answers.classification import LABELS_A_PIECE, softmax
from preprocess.answers.gist import Gist, ranked
from preprocess.answers.work import CHARACTERS_A_PIECE, Work, rows_cost, tokens_at_most
from preprocess.body_form import BodyForm, TextField
from preprocess.parameters import (
    CHARACTERS_A_TEXT,
    FLAG,
    Parameter,
    Parameters,
    read_parameters,
    text,
    texts,
)
from preprocess.request import Request, check_repeats
from preprocess.rows import Row, logits_of
from preprocess.tensors import Array
from preprocess.tokens import Encoded, TokenTotal, too_long
from preprocess.windows import Windows, rows_of
from transformer_serving.contract.endpoint import Endpoint
from transformer_serving.contract.errors import ServingError

TEMPLATE = "This example is {}."


@dataclass(frozen=True)
class ZeroShotParameters(Parameters):
    """`longest` is the most tokens of a row."""

    labels: tuple[str, ...]
    hypotheses: tuple[str, ...]
    multi_label: bool
    longest: int

    @property
    def characters(self) -> int:  # type: ignore[override]
        return sum(map(len, self.hypotheses)) + CHARACTERS_A_TEXT * len(self.hypotheses)

    def rows(self, first: Sequence[str], second: Sequence[str]) -> int:
        """Each text beside each hypothesis."""
        read = sum(min(tokens_at_most(text), self.longest) for text in first)
        asked = sum(map(tokens_at_most, self.hypotheses))
        tokens = len(self.hypotheses) * read + len(first) * asked
        return rows_cost(len(first) * len(self.hypotheses), tokens)


class ZeroShotClassification:
    """Rows of logits, shape [labels of the model]: one a text and candidate label."""

    form = BodyForm(
        TextField("text"), beside=("candidate_labels", "hypothesis_template", "multi_label")
    )
    tokenizer = Windows

    def __init__(self, endpoint: Endpoint) -> None:
        if endpoint.classification is None or endpoint.classification.entailment is None:
            raise ValueError("endpoint.json has no 'classification.entailment'")
        self._entailment = endpoint.classification.entailment
        self._tokens = endpoint.tokens
        self._limits = endpoint.limits
        self.parameters = (
            Parameter("candidate_labels", texts(endpoint.limits.max_characters), required=True),
            Parameter("hypothesis_template", text(endpoint.limits.max_characters), TEMPLATE),
            Parameter("multi_label", FLAG, False),
        )

    def read_parameters(self, values: Mapping[str, Any]) -> ZeroShotParameters:
        read = read_parameters(values, self.parameters)
        labels = read["candidate_labels"]
        if isinstance(labels, str):
            labels = [label.strip() for label in labels.split(",") if label.strip()]
        self._check_count(len(labels))
        template = read["hypothesis_template"]
        check_repeats("hypothesis_template", _characters(template, labels), self._limits)
        hypotheses = tuple(template.format(label) for label in labels)
        longest = self._tokens.max_length
        return ZeroShotParameters(tuple(labels), hypotheses, read["multi_label"], longest)

    def _check_count(self, pairs: int) -> None:
        if not pairs:
            raise ServingError(
                "impossible",
                "there is no candidate label to choose from",
                field="candidate_labels",
                limit=1,
                got=0,
            )
        if pairs > self._limits.max_texts:
            raise ServingError(
                "too_large",
                "texts times candidate labels are too many; send them in several requests",
                field="candidate_labels",
                limit=self._limits.max_texts,
                got=pairs,
            )

    def encode(self, request: Request, windows: Windows) -> Work:
        parameters: ZeroShotParameters = request.parameters
        self._check_count(len(request.texts) * len(parameters.labels))
        # Each text's answer has all labels.
        repeated = len(request.texts) * sum(map(len, parameters.labels))
        check_repeats("candidate_labels", repeated, self._limits)
        if "" in request.texts:
            raise ServingError("impossible", "an empty text has nothing to classify", field="text")
        truncate = self._tokens.truncate if request.truncate is None else request.truncate
        premises = windows.pieces(request.texts)
        hypotheses = windows.second_pieces(parameters.hypotheses)
        total = TokenTotal(self._limits, self._tokens.known_ids)
        most = self._tokens.max_length - windows.special_tokens(pair=True)
        rooms = [most - len(asked) for asked in hypotheses]
        longest = max(map(len, premises))
        for at, room in enumerate(rooms):
            if room < 1 and longest > room:
                raise _no_room(parameters, at, most - 1, most - room)
        # All of them, before one is made: a refusal must cost little.
        total.check(sum(self._sizes(premises, rooms, truncate, request.text_field)))
        rows = [
            total.add(row)
            for premise in premises
            for row in _pairs(premise, hypotheses, rooms, windows)
        ]
        pieces = (
            len(rows) // LABELS_A_PIECE
            + (repeated + sum(map(len, request.texts))) // CHARACTERS_A_PIECE
        )
        return Work(request, rows, pieces=pieces)

    def _sizes(
        self,
        premises: Sequence[tokenizers.Encoding],
        rooms: Sequence[int],
        truncate: bool,
        field: str,
    ) -> Iterator[int]:
        """The tokens of each pair, given the room that each hypothesis leaves. Raises ServingError
        `too_large` where a premise does not fit and is not to be cut.
        """
        longest = self._tokens.max_length
        for at, size in enumerate(map(len, premises)):
            for room in rooms:
                if size > room and not truncate:
                    raise too_long(longest, longest - room + size, field, at, len(premises))
                yield longest - room + min(size, room)

    def render(self, rows: Sequence[Row], work: Work) -> Any:
        request = work.request
        count = len(request.parameters.labels)
        logits = logits_of(rows)
        answers = [
            self._answer(text, logits[at * count : (at + 1) * count], request.parameters)
            for at, text in enumerate(request.texts)
        ]
        return answers if request.many else answers[0]

    def gist(self, answer: Any, rows: Sequence[Row], work: Work) -> Gist:
        """The labels of each text by their score."""
        answers = answer if work.request.many else [answer]
        return ranked([(one["labels"], one["scores"]) for one in answers])

    def _answer(self, text: str, logits: Array, parameters: ZeroShotParameters) -> dict[str, Any]:
        """`logits` has one row a candidate label."""
        if parameters.multi_label or len(parameters.labels) == 1:
            contradiction = -1 if self._entailment == 0 else 0
            scores = softmax(logits[:, [contradiction, self._entailment]])[:, 1]
        else:
            scores = softmax(logits[:, self._entailment])
        order = scores.argsort()[::-1]
        return {
            "sequence": text,
            "labels": [parameters.labels[at] for at in order],
            "scores": scores[order].tolist(),
        }


def _no_room(parameters: ZeroShotParameters, at: int, limit: int, got: int) -> ServingError:
    """The refusal of the hypothesis at that place, by whichever has more of its characters."""
    label, hypothesis = parameters.labels[at], parameters.hypotheses[at]
    by_label = 2 * len(label) >= len(hypothesis)
    return ServingError(
        "too_large",
        "a candidate label in its hypothesis leaves no room for the text; shorten the label or "
        "hypothesis_template",
        field="candidate_labels" if by_label else "hypothesis_template",
        limit=limit,
        got=got,
    )


def _pairs(
    premise: tokenizers.Encoding,
    hypotheses: Sequence[tokenizers.Encoding],
    rooms: Sequence[int],
    windows: Windows,
) -> Iterator[Encoded]:
    """The pairs, their premise cut if it must be; the hypothesis is what is asked."""
    cuts: dict[int, tokenizers.Encoding] = {}
    for hypothesis, room in zip(hypotheses, rooms, strict=True):
        if room not in cuts:
            cuts[room] = windows.first(premise, room)
        [row] = rows_of([windows.join(cuts[room], hypothesis)])
        yield row


def _characters(template: str, labels: Sequence[str]) -> int:
    """Of all hypotheses together, before one is made. Raises ServingError for a template that does
    not name the label, or names more: str.format would also follow attributes and pad to any
    width that a caller writes.
    """
    try:
        parts = list(Formatter().parse(template))
        fields = [field for field in parts if field[1] is not None]
        if not fields or any(
            name not in ("", "0") or spec or conversion for _, name, spec, conversion in fields
        ):
            raise ValueError("no field, or more than a plain one")
        # Both kinds of field in one template, or a second that counts on: format says no.
        template.format("")
    except (ValueError, IndexError):
        raise ServingError(
            "impossible",
            "the template must have {} where the label goes, and no other field",
            field="hypothesis_template",
        ) from None
    literal = sum(len(text) for text, _, _, _ in parts)
    return sum(literal + len(fields) * len(label) for label in labels)
