"""question-answering: the best spans of a context, over all its windows.

Tested by tests/preprocess/answers/test_equality.py, tests/preprocess/answers/test_refusals.py and
tests/preprocess/answers/test_long_answers.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import tokenizers

from preprocess.answers.context_window import LongestAnswers, Window
from preprocess.answers.gist import Gist, words
from preprocess.answers.spans import MOST_SPANS, best_spans, probabilities
from preprocess.answers.work import CHARACTERS_A_PIECE, Work, tokens_at_most, windows_cost
from preprocess.body_form import BodyForm, TextField
from preprocess.parameters import FLAG, Parameter, Parameters, read_parameters, whole
from preprocess.request import Request
from preprocess.rows import Row
from preprocess.tensors import Array
from preprocess.tokens import TokenTotal
from preprocess.windows import Windows, rows_of
from transformer_serving.contract.endpoint import Endpoint, Limits
from transformer_serving.contract.errors import ServingError

# The pipeline's own defaults, where the model is not shorter.
_WINDOW = 384
_OVERLAP = 128
# Each window gives this many spans and more; the pipeline has no limit.
_MOST_ANSWERS = 1000
# An answer of fewer characters is its own key among others.
_SHORT = 64


@dataclass(frozen=True)
class QuestionParameters(Parameters):
    """`window` and `overlap` in tokens: max_seq_len and doc_stride. All windows together have
    `most` at the most.
    """

    top_k: int
    window: int
    overlap: int
    max_answer_len: int
    handle_impossible_answer: bool
    align_to_words: bool
    most: int

    def rows(self, first: Sequence[str], second: Sequence[str]) -> int:
        """Each question beside the windows of its context."""
        # Many questions share a context.
        sizes = {context: tokens_at_most(context) for context in dict.fromkeys(second)}
        return sum(
            windows_cost(
                sizes[context], self.window, self.overlap, self.most, tokens_at_most(question)
            )
            for question, context in zip(first, second, strict=True)
        )


class QuestionAnswering:
    """Rows of logits, shape [tokens, 2]: of an answer's first and last token."""

    form = BodyForm(TextField("question"), TextField("context"), shares_second=True)
    tokenizer = Windows

    def __init__(self, endpoint: Endpoint) -> None:
        self._tokens = endpoint.tokens
        self._limits = endpoint.limits
        longest = endpoint.tokens.max_length
        self.parameters = (
            Parameter("top_k", whole(1, _MOST_ANSWERS), 1),
            Parameter("max_seq_len", whole(1, longest), min(longest, _WINDOW)),
            Parameter("doc_stride", whole(0, longest)),
            # Read for the pipeline's sake: with a fast tokenizer it cuts no question either.
            Parameter("max_question_len", whole(1), 64),
            Parameter("max_answer_len", whole(1), 15),
            Parameter("handle_impossible_answer", FLAG, False),
            Parameter("align_to_words", FLAG, True),
        )

    def read_parameters(self, values: Mapping[str, Any]) -> QuestionParameters:
        read = read_parameters(values, self.parameters)
        window, overlap = read["max_seq_len"], read["doc_stride"]
        if overlap is None:
            overlap = min(window // 2, _OVERLAP)
        if overlap > window:
            raise ServingError(
                "invalid_field",
                "parameter 'doc_stride' must not be larger than max_seq_len",
                field="doc_stride",
                limit=window,
                got=overlap,
            )
        # No window has longer answers.
        answer = min(read["max_answer_len"], window)
        if window * answer > MOST_SPANS:
            raise ServingError(
                "too_large",
                "windows so long have too many spans of so many tokens; lower max_answer_len or "
                "max_seq_len",
                field="max_answer_len",
                limit=MOST_SPANS // window,
                got=answer,
            )
        return QuestionParameters(
            top_k=read["top_k"],
            window=window,
            overlap=overlap,
            max_answer_len=answer,
            handle_impossible_answer=read["handle_impossible_answer"],
            align_to_words=read["align_to_words"],
            most=self._limits.max_tokens,
        )

    def encode(self, request: Request, windows: Windows) -> Work:
        contexts = request.pairs or ()
        for field, texts in (("question", request.texts), ("context", contexts)):
            if "" in texts:
                raise ServingError("impossible", f"a {field} is empty", field=field)
        total = TokenTotal(self._limits, self._tokens.known_ids)
        examples, rows = [], []
        pairs = list(self._pairs(request.texts, contexts, windows))
        for pair in pairs:
            examples.append(self._windows(pair, request.parameters, windows, total))
            rows += [total.add(row) for row in rows_of([one.encoding for one in examples[-1]])]
        spans = request.parameters.top_k * len(rows)
        _check_spans(spans, self._limits)
        longest = LongestAnswers(
            request.parameters.max_answer_len, _looked_at(request.parameters), self._tokens
        )
        characters = longest.check(request.parameters.top_k, contexts, pairs, examples)
        # Which tokens are the context's, and which a word, is looked up one by one.
        pieces = spans + total.tokens + characters // CHARACTERS_A_PIECE
        return Work(request, rows, examples, pieces)

    def _pairs(
        self, questions: Sequence[str], contexts: Sequence[str], windows: Windows
    ) -> Iterator[tuple[tokenizers.Encoding, tokenizers.Encoding]]:
        """Question and context, or the reverse; in the tokenizer's order. A context that many
        questions share is tokenized once.
        """
        distinct = dict.fromkeys(contexts)
        if self._tokens.question_first:
            seconds = dict(zip(distinct, windows.second_pieces(list(distinct)), strict=True))
            yield from zip(windows.pieces(questions), map(seconds.get, contexts), strict=True)
        else:
            firsts = dict(zip(distinct, windows.pieces(list(distinct)), strict=True))
            yield from zip(map(firsts.get, contexts), windows.second_pieces(questions), strict=True)

    def _windows(
        self,
        given: tuple[tokenizers.Encoding, tokenizers.Encoding],
        parameters: QuestionParameters,
        windows: Windows,
        total: TokenTotal,
    ) -> list[Window]:
        """The question beside each window of the context."""
        place = 1 if self._tokens.question_first else 0
        context, question = given[place], given[1 - place]
        asked = len(question)
        special = windows.special_tokens(pair=True)
        room = parameters.window - special - asked
        cut = [context]
        if len(context) > room:
            self._check_room(room, asked, parameters)
            cut = windows.cut(context, room, parameters.overlap, total, beside=asked + special)
        pairs = ((question, part) if place else (part, question) for part in cut)
        return [Window(windows.join(*pair), place) for pair in pairs]

    def _check_room(self, room: int, asked: int, parameters: QuestionParameters) -> None:
        if room < 1:
            longest = parameters.window >= self._tokens.max_length
            raise ServingError(
                "too_large",
                "a question leaves no room for its context; shorten it"
                + ("" if longest else " or raise max_seq_len"),
                field="question",
                limit=max(asked + room - 1, 0),
                got=asked,
            )
        if parameters.overlap >= room:
            raise ServingError(
                "impossible",
                "windows that share so many tokens would never reach the context's end; lower "
                "doc_stride or shorten the question",
                field="doc_stride",
                limit=room - 1,
                got=parameters.overlap,
            )

    def render(self, rows: Sequence[Row], work: Work) -> Any:
        request = work.request
        left = iter(rows)
        answers = [
            self._answers(context, [(window, next(left)) for window in windows], request)
            for context, windows in zip(request.pairs or (), work.context, strict=True)
        ]
        # The pipeline unpacks a list of one question, too.
        unpacks = request.pipeline_shape and len(answers) == 1
        return answers[0] if unpacks or not request.many else answers

    def gist(self, answer: Any, rows: Sequence[Row], work: Work) -> Gist:
        """The text of the best answer to each question."""
        answers = [answer] if len(work.context) == 1 else answer
        return words([_best(one) for one in answers])

    def _answers(self, text: str, windows: Sequence[tuple[Window, Row]], request: Request) -> Any:
        parameters: QuestionParameters = request.parameters
        # Answers that read the same are one, their scores added; the first says where it stands.
        found: dict[str | bytes, dict[str, Any]] = {}
        least_null = 1_000_000.0
        for window, row in windows:
            scored, null = self._spans(window, row, parameters)
            least_null = min(least_null, null)
            for start, end, score in scored:
                same = found.setdefault(
                    _key(text[start:end]), {"score": 0.0, "start": start, "end": end}
                )
                same["score"] += score
        answers = list(found.values())
        if parameters.handle_impossible_answer:
            answers.append(_no_answer(least_null))
        answers = sorted(answers, key=lambda answer: -answer["score"])[: parameters.top_k]
        for answer in answers:
            answer["answer"] = text[answer["start"] : answer["end"]]
        if request.pipeline_shape:
            return answers[0] if len(answers) == 1 else answers
        if parameters.top_k > 1:
            return answers
        return answers[0] if answers else _no_answer(0.0)

    def _spans(
        self, window: Window, row: Row, parameters: QuestionParameters
    ) -> tuple[list[tuple[int, int, float]], float]:
        """Spans in characters with their scores, and the score of there being no answer."""
        allowed = self._allowed(window)
        logits = row[0].astype(np.float32, copy=False)
        start = probabilities(logits[:, 0], allowed)
        end = probabilities(logits[:, 1], allowed)
        null = float(start[0] * end[0])
        start[0] = end[0] = 0.0
        spans = best_spans(start, end, _looked_at(parameters), parameters.max_answer_len)
        words = window.words() if parameters.align_to_words else {}
        word_ids, offsets = window.encoding.word_ids, window.encoding.offsets
        scored = []
        for first, last, score in spans:
            if not (allowed[first] and allowed[last]):
                continue
            begin, stop = words.get(word_ids[first]), words.get(word_ids[last])
            if begin is None or stop is None:
                begin, stop = offsets[first], offsets[last]
            scored.append((begin[0], stop[1], score))
        return scored, null

    def _allowed(self, window: Window) -> Array:
        """The tokens that a span may touch: the context's, and that of no answer.

        Where the context stands first the reference lets a span touch every token.
        """
        if window.context == 0:
            return np.ones(len(window.encoding), bool)
        allowed = np.array(window.in_context())
        if self._tokens.cls_id is not None:
            allowed |= np.array(window.encoding.ids) == self._tokens.cls_id
        return allowed


def _looked_at(parameters: QuestionParameters) -> int:
    """Spans of a window: those in one word become one, so more than are asked for."""
    return parameters.top_k * 2 + 10 if parameters.align_to_words else parameters.top_k


def _key(answer: str) -> str | bytes:
    """What is equal for answers that read the same, and short also where those are long."""
    folded = answer.lower()
    return folded if len(folded) < _SHORT else blake2b(folded.encode()).digest()


def _check_spans(spans: int, limits: Limits) -> None:
    """Raises ServingError `too_large` where windows times answers are too many."""
    if spans > limits.max_tokens:
        raise ServingError(
            "too_large",
            "windows times top_k make too many answers to choose from; ask for fewer",
            field="top_k",
            limit=limits.max_tokens,
            got=spans,
        )


def _no_answer(score: float) -> dict[str, Any]:
    return {"score": score, "start": 0, "end": 0, "answer": ""}


def _best(answer: Any) -> str:
    """The text of one, or of the first of a list of them."""
    while isinstance(answer, list):
        answer = answer[0] if answer else _no_answer(0.0)
    text: str = answer["answer"]
    return text
