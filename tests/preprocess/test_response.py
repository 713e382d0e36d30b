"""Answers as ClearML's metric logging reads them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import orjson
import pytest

from preprocess.response import (
    _BYTES,
    _FEW_ROWS,
    _PART,
    _ROWS,
    Reply,
    answer_body,
    answer_response,
    error_response,
)
from transformer_serving.contract.errors import ServingError


def test_metric_logging_reads_the_scalars_of_one_answer() -> None:
    answer = {"label": "POSITIVE", "score": 0.75, "embedding": [1.0, 2.0]}
    response = answer_response(answer, Reply(answer_body(answer)), {"x-bundle-version": "7"})
    # As the host does it: the names it logs and those that the answer has.
    names = set(response.keys()) & {"label", "score", "embedding", "latency"}
    assert {name: response[name] for name in names} == {"label": "POSITIVE", "score": 0.75}
    assert orjson.loads(response.body) == answer
    assert (response.status_code, response.headers["x-bundle-version"]) == (200, "7")


def test_a_list_of_answers_is_read_in_columns() -> None:
    rows = [{"label": "a", "score": 0.5, "at": 1}, {"label": "b", "score": 0.25}]
    response = answer_response(rows, Reply(answer_body(rows)), {})
    assert set(response.keys()) == {"label", "score"}
    assert (response["label"], response["score"]) == (["a", "b"], [0.5, 0.25])


@pytest.mark.parametrize("answer", [[], [[{"label": "a"}]], ["a"], [0.5, 0.25]])
def test_other_lists_and_errors_have_no_scalars(answer: Any) -> None:
    assert set(answer_response(answer, Reply(answer_body(answer)), {}).keys()) == set()
    response = error_response(ServingError("overloaded", "too much"), {})
    assert set(response.keys()) == set()
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")


@pytest.mark.parametrize(
    "shape",
    [(3,), (2, 3), (_PART,), (_PART + 1,), (2 * _PART + 5,), (700, 384), (1, 700, 384),
     (3, _PART + 1)],
)  # fmt: skip
def test_a_long_array_is_the_same_json(shape: tuple[int, ...]) -> None:
    """Though it is written in parts."""
    array = np.random.default_rng(5).normal(size=shape).astype(np.float32)
    for answer in (array, [array, array], {"embedding": array, "score": array.flat[0]}):
        assert answer_body(answer) == orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)


@pytest.mark.parametrize(
    "shape",
    [[_ROWS], [_ROWS + 1], [3 * _ROWS + 5], [[0, 5, _ROWS]], [[2] * _ROWS], [[7, 0, 3 * _ROWS]]],
    ids=str,
)
def test_a_long_list_is_the_same_json_and_written_in_parts(
    shape: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of a text, or of each of several."""
    rows = [{"label": f"label {at}", "score": at / 7} for at in range(4 * _ROWS)]
    [size] = shape
    answer: list[Any] = rows[:size] if isinstance(size, int) else [rows[:count] for count in size]
    written: list[int] = []

    def dumps(value: Any, *given: Any) -> bytes:
        written.append(sum(len(row) if isinstance(row, list) else 1 for row in value))
        return orjson.dumps(value, *given)

    monkeypatch.setattr("preprocess.response.orjson", SimpleNamespace(dumps=dumps))
    assert answer_body(answer) == orjson.dumps(answer)
    assert max(written) <= _ROWS


@pytest.mark.parametrize("nested", [False, True], ids=["rows", "of one text"])
def test_rows_of_long_texts_are_written_in_parts_by_their_length(
    nested: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"answer": "a" * (_BYTES // 4), "at": at} for at in range(100)]
    answer: list[Any] = [rows, rows[:3]] if nested else rows
    written: list[int] = []

    def dumps(value: Any, *given: Any) -> bytes:
        written.append(len(value))
        return orjson.dumps(value, *given)

    monkeypatch.setattr(
        "preprocess.response.orjson", SimpleNamespace(dumps=dumps, Fragment=orjson.Fragment)
    )
    assert answer_body(answer) == orjson.dumps(answer)
    assert written[0] == _FEW_ROWS
    assert max(written[1:]) <= 4


def test_what_is_no_json_is_told() -> None:
    with pytest.raises(TypeError):
        answer_body({"label": object()})
