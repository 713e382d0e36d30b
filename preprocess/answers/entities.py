"""token-classification: a label a token, or groups of tokens that name one thing.

Tested by tests/preprocess/answers/test_equality.py and tests/preprocess/answers/test_refusals.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tokenizers

from preprocess.answers.classification import softmax
from preprocess.answers.gist import Gist, words
from preprocess.answers.work import Work, tokens_at_most, windows_cost
from preprocess.body_form import BodyForm, TextField
from preprocess.parameters import Parameter, Parameters, choice, read_parameters, texts, whole
from preprocess.request import Request
from preprocess.rows import Row
from preprocess.tensors import Array
from preprocess.tokens import TokenTotal, too_long
from preprocess.windows import Windows, rows_of
from transformer_serving.contract.endpoint import Endpoint
from transformer_serving.contract.errors import ServingError

STRATEGIES = ("none", "simple", "first", "average", "max")

Entity = dict[str, Any]


@dataclass(frozen=True)
class EntityParameters(Parameters):
    """`stride` None: a text is one window; else the tokens that two windows share.

    `longest` is the most tokens of a window, `most` of all together.
    """

    strategy: str
    ignore_labels: frozenset[str]
    stride: int | None
    longest: int
    most: int

    def rows(self, first: Sequence[str], second: Sequence[str]) -> int:
        """The windows of each text."""
        if self.stride is None:
            return 0
        sizes = map(tokens_at_most, first)
        return sum(windows_cost(size, self.longest, self.stride, self.most) for size in sizes)


@dataclass(frozen=True)
class Context:
    """The windows of each text, in the order of the engine's rows."""

    windows: list[list[tokenizers.Encoding]]
    words: WordReader


@dataclass(frozen=True)
class Token:
    """One token of a text: `word` as the vocabulary writes it, `scores` one a label."""

    word: str
    scores: Array
    start: int
    end: int
    index: int
    is_subword: bool


class WordReader:
    """Which tokens go on with a word, decided as the pipeline does."""

    def __init__(self, windows: Windows, unknown: int | None) -> None:
        self._library = windows.library
        self._knows_words = bool(getattr(self._library.model, "continuing_subword_prefix", None))
        self._unknown = unknown

    def tokens(self, text: str, window: tokenizers.Encoding, scores: Array) -> list[Token]:
        """The window's tokens but the special ones; `scores` is [tokens, labels]."""
        found = []
        columns = zip(window.ids, window.offsets, window.special_tokens_mask, strict=True)
        for index, (token, (start, end), special) in enumerate(columns):
            if special:
                continue
            word, part = self._library.id_to_token(token), text[start:end]
            if self._knows_words:
                is_subword = len(word) != len(part)
            else:
                is_subword = start > 0 and " " not in text[start - 1 : start + 1]
            if token == self._unknown:
                word, is_subword = part, False
            found.append(Token(word, scores[index], start, end, index, is_subword))
        return found

    def join(self, words: list[str]) -> str:
        """Tokens as the text that they stand for."""
        decoder = self._library.decoder
        return " ".join(words) if decoder is None else str(decoder.decode(words))


class TokenClassification:
    """Rows of logits, shape [tokens, labels]."""

    form = BodyForm(TextField("text"))
    tokenizer = Windows

    def __init__(self, endpoint: Endpoint) -> None:
        if endpoint.classification is None:
            raise ValueError("endpoint.json has no 'classification'")
        self._labels = endpoint.classification.labels
        self._tokens = endpoint.tokens
        self._limits = endpoint.limits
        self.parameters = (
            Parameter("aggregation_strategy", choice(STRATEGIES)),
            Parameter("ignore_labels", texts(endpoint.limits.max_characters), ["O"]),
            Parameter("stride", whole(0, endpoint.tokens.max_length - 1)),
        )

    def read_parameters(self, values: Mapping[str, Any]) -> EntityParameters:
        read = read_parameters(values, self.parameters)
        named = read["aggregation_strategy"]
        ignored = read["ignore_labels"]
        if read["stride"] is not None and named is not None and named.lower() == "none":
            raise ServingError(
                "invalid_field",
                "parameter 'stride' needs an aggregation_strategy other than none, which joins "
                "what two windows have in common",
                field="stride",
            )
        return EntityParameters(
            strategy=(named or "none").lower(),
            ignore_labels=frozenset((ignored,) if isinstance(ignored, str) else ignored),
            stride=read["stride"],
            longest=self._tokens.max_length,
            most=self._limits.max_tokens,
        )

    def encode(self, request: Request, windows: Windows) -> Work:
        total = TokenTotal(self._limits, self._tokens.known_ids)
        texts, rows = [], []
        for at, piece in enumerate(windows.pieces(request.texts)):
            texts.append(self._windows(at, piece, request, windows, total))
            rows += [total.add(row) for row in rows_of(texts[-1])]
        context = Context(texts, WordReader(windows, self._tokens.unk_id))
        return Work(request, rows, context, total.tokens)

    def _windows(
        self,
        at: int,
        piece: tokenizers.Encoding,
        request: Request,
        windows: Windows,
        total: TokenTotal,
    ) -> list[tokenizers.Encoding]:
        """Where windows are asked for, all; else the first, if the text may be cut."""
        stride = request.parameters.stride
        longest = self._tokens.max_length
        room = longest - windows.special_tokens(pair=False)
        if len(piece) <= room:
            return [windows.join(piece)]
        if stride is not None:
            if stride >= room:
                raise ServingError(
                    "impossible",
                    "windows that share so many tokens would never reach the text's end",
                    field="stride",
                    limit=room - 1,
                    got=stride,
                )
            return list(map(windows.join, windows.cut(piece, room, stride, total)))
        if not (self._tokens.truncate if request.truncate is None else request.truncate):
            got, count = longest - room + len(piece), len(request.texts)
            raise too_long(longest, got, request.text_field, at, count, strides=True)
        return [windows.join(windows.first(piece, room))]

    def render(self, rows: Sequence[Row], work: Work) -> Any:
        request, context = work.request, work.context
        left = iter(rows)
        answers = [
            self._entities(text, [(window, next(left)) for window in windows], work)
            for text, windows in zip(request.texts, context.windows, strict=True)
        ]
        return answers if request.many else answers[0]

    def gist(self, answer: Any, rows: Sequence[Row], work: Work) -> Gist:
        """The labels of each text, with where they stand."""
        answers = answer if work.request.many else [answer]
        return words([[_labelled(entity) for entity in entities] for entities in answers])

    def _entities(
        self, text: str, windows: Sequence[tuple[tokenizers.Encoding, Row]], work: Work
    ) -> list[Entity]:
        parameters: EntityParameters = work.request.parameters
        found: list[Entity] = []
        for window, row in windows:
            scores = softmax(row[0].astype(np.float32, copy=False))
            tokens = work.context.words.tokens(text, window, scores)
            found += [
                entity
                for entity in self._aggregate(tokens, parameters.strategy, work.context.words)
                if _label_of(entity) not in parameters.ignore_labels
            ]
        return found if len(windows) == 1 else _without_overlaps(found)

    def _aggregate(self, tokens: list[Token], strategy: str, words: WordReader) -> list[Entity]:
        if strategy in ("none", "simple"):
            entities = [self._entity(token) for token in tokens]
        else:
            entities = [self._word(word, strategy, words) for word in _by_word(tokens)]
        if strategy == "none":
            return entities
        return [_group(group, words) for group in _by_entity(entities)]

    def _entity(self, token: Token) -> Entity:
        best = int(token.scores.argmax())
        return {
            "entity": self._labels[best],
            "score": float(token.scores[best]),
            "index": token.index,
            "word": token.word,
            "start": token.start,
            "end": token.end,
        }

    def _word(self, tokens: list[Token], strategy: str, words: WordReader) -> Entity:
        """One label for all tokens of a word."""
        if strategy == "first":
            scores = tokens[0].scores
        elif strategy == "max":
            scores = max(tokens, key=lambda token: float(token.scores.max())).scores
        else:
            scores = np.mean([token.scores for token in tokens], axis=0)
        best = int(scores.argmax())
        return {
            "entity": self._labels[best],
            "score": float(scores[best]),
            "word": words.join([token.word for token in tokens]),
            "start": tokens[0].start,
            "end": tokens[-1].end,
        }


def _by_word(tokens: Iterable[Token]) -> list[list[Token]]:
    words: list[list[Token]] = []
    for token in tokens:
        if words and token.is_subword:
            words[-1].append(token)
        else:
            words.append([token])
    return words


def _by_entity(entities: Iterable[Entity]) -> list[list[Entity]]:
    """Neighbours of one kind; a label that starts with B- begins anew."""
    groups: list[list[Entity]] = []
    last = None
    for entity in entities:
        begins, kind = _kind(entity["entity"])
        if kind == last and not begins:
            groups[-1].append(entity)
        else:
            groups.append([entity])
        last = kind
    return groups


def _kind(label: str) -> tuple[bool, str]:
    """Whether the label begins an entity, and of which kind."""
    return label.startswith("B-"), label[2:] if label.startswith(("B-", "I-")) else label


def _group(entities: list[Entity], words: WordReader) -> Entity:
    return {
        "entity_group": entities[0]["entity"].split("-", 1)[-1],
        "score": sum(entity["score"] for entity in entities) / len(entities),
        "word": words.join([entity["word"] for entity in entities]),
        "start": entities[0]["start"],
        "end": entities[-1]["end"],
    }


def _without_overlaps(entities: list[Entity]) -> list[Entity]:
    """Of entities that begin inside another, from two windows, the longer, then the likelier."""
    ordered = sorted(entities, key=lambda entity: int(entity["start"]))
    # The first is looked at twice, as in the pipeline: an entity of no characters stays double.
    kept = ordered[:1]
    for entity in ordered:
        last = kept[-1]
        if not last["start"] <= entity["start"] < last["end"]:
            kept.append(entity)
        elif _rank(entity) > _rank(last):
            kept[-1] = entity
    return kept


def _rank(entity: Entity) -> tuple[int, float]:
    return entity["end"] - entity["start"], entity["score"]


def _label_of(entity: Entity) -> Any:
    return entity.get("entity", entity.get("entity_group"))


def _labelled(entity: Entity) -> tuple[Any, Any, Any]:
    return _label_of(entity), entity["start"], entity["end"]
