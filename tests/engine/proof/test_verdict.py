from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from tests.engine.proof.sets import answer, parity_set
from transformer_serving.engine.proof.parity_set import ParitySet, read_parity_set
from transformer_serving.engine.proof.rows import KINDS
from transformer_serving.engine.proof.verdict import Proof, prove

Wrong = Callable[[int, int], bool]


def engine(
    found: ParitySet, wrong: Wrong = lambda length, batch: False, spoil: Any = None
) -> Callable[[Mapping[str, Any], Sequence[str]], dict[str, Any]]:
    """An engine that is wrong at the shapes of `wrong`."""

    def infer(tensors: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
        outputs = answer(found.kind, found.inputs, tensors)
        batch, length = tensors["ids"].shape
        if wrong(length, batch):
            outputs = {name: (spoil or np.flip)(array) for name, array in outputs.items()}
        return {name: outputs[name] for name in names}

    return infer


def proof(wrong: Wrong, kind: str = "vector", spoil: Any = None, **sizes: Any) -> Proof:
    found = parity_set(kind, **sizes)
    return prove(found, engine(found, wrong, spoil))


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_right_engine_is_proven(kind: str, side: str) -> None:
    found = read_parity_set(parity_set(kind, side).to_json().encode())
    done = prove(found, engine(found))
    assert done.fault is None
    assert done.largest_difference < 1e-4
    assert {one.length for one in done.findings} == set(found.buckets)


def _kind_of_spoiling(array: Any) -> Any:
    return array[..., ::-1] if array.shape[-1] > 1 else -array


@pytest.mark.parametrize("kind", KINDS)
def test_one_wrong_length_is_found_and_named(kind: str) -> None:
    done = proof(lambda length, batch: length == 8, kind, _kind_of_spoiling)
    assert done.fault is not None
    assert done.fault.startswith("at 8 tokens, any batch: ")


def test_the_shapes_are_named_in_few_words() -> None:
    fault = {
        "one batch": proof(lambda length, batch: batch == 2).fault,
        "length and batch": proof(lambda length, batch: (length, batch) == (8, 6)).fault,
        "alone": proof(lambda length, batch: length == 16 and batch == 1).fault,
        "largest": proof(lambda length, batch: batch in (4, 6)).fault,
        "several": proof(lambda length, batch: length != 4 and batch > 1).fault,
        "all": proof(lambda length, batch: True).fault,
        "two": proof(lambda length, batch: length == 4 or (length, batch) == (16, 2)).fault,
    }
    places = {
        name: [part.split(": ")[0] for part in str(text).split("; ")]
        for name, text in fault.items()
    }
    assert places == {
        "one batch": ["at every length in batches of 2"],
        "length and batch": ["at 8 tokens in batches of 6"],
        "alone": ["at 16 tokens alone"],
        "largest": ["at every length in batches of 4 and 6"],
        "several": ["at 8 and 16 tokens in batches of 2, 4 and 6"],
        "all": ["at every length, any batch"],
        "two": ["at 4 tokens, any batch", "at 16 tokens in batches of 2"],
    }


def test_many_lengths_are_counted() -> None:
    buckets = tuple(range(4, 44, 4))
    fault = proof(lambda length, batch: length > 8, buckets=buckets).fault
    assert str(fault).startswith("at 8 lengths from 12 to 40 tokens, any batch: cosine ")


def test_a_lost_mask_is_found() -> None:
    found = parity_set("vector")

    def infer(tensors: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
        return answer(found.kind, found.inputs, {**tensors, "mask": np.ones_like(tensors["mask"])})

    assert "cosine" in str(prove(found, infer).fault)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda array: array * np.nan,
        lambda array: array + np.inf,
        lambda array: array[:, :-1],
        lambda array: array[:-1],
        lambda array: array[..., None],
        lambda array: array.sum(),
    ],
)
@pytest.mark.parametrize("kind", ["vector", "spans"])
def test_what_is_no_number_or_of_another_shape_is_infinitely_far(kind: str, spoil: Any) -> None:
    done = proof(lambda length, batch: length == 4, kind, spoil)
    assert done.largest_difference == float("inf")
    wrong = "an answer of another shape, or that is no number"
    assert done.fault == f"at 4 tokens, any batch: {wrong}"


def test_an_engine_that_fails_at_one_shape_is_asked_the_others() -> None:
    def fail(array: Any) -> Any:
        raise RuntimeError("no such kernel\nat line 7")

    done = proof(lambda length, batch: batch == 2, spoil=fail)
    assert done.fault == (
        "at every length in batches of 2: the engine failed (RuntimeError: no such kernel)"
    )
    assert {one.batch for one in done.findings} == {1, 2, 4, 6}


@pytest.mark.parametrize("kind", ["softmax", "sigmoid", "token_softmax", "spans"])
def test_a_wrong_engine_cannot_hide_behind_large_logits(kind: str) -> None:
    """Logits twice as large give nearly the same answers where those are sure."""
    found = parity_set(kind)
    sure = {
        at: {name: array * 100 for name, array in row.outputs.items()}
        for at, row in enumerate(found.rows)
    }
    rows = tuple(
        type(row)(row.tokens, row.inputs, sure[at], row.positions)
        for at, row in enumerate(found.rows)
    )
    found = type(found)(**{**vars(found), "rows": rows})
    right = engine(found, lambda length, batch: True, lambda array: array * 100)
    wrong = engine(found, lambda length, batch: True, lambda array: array * 200)
    assert prove(found, right).fault is None
    assert "logits differ by" in str(prove(found, wrong).fault) or "difference" in str(
        prove(found, wrong).fault
    )
