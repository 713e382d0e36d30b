"""A greedy set asked of engines that are right, nearly right, wrong in one way, or broken."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from transformer_serving.contract.errors import ContractError
from transformer_serving.contract.generation import Finish
from transformer_serving.engine.proof.greedy import Asked, Continued, GreedyProof, prove_greedy
from transformer_serving.engine.proof.greedy_set import (
    GreedyRow,
    GreedySet,
    GreedyTolerance,
    is_greedy_set,
    read_greedy_set,
)

NEW = 10


def right(asked: Asked) -> Continued:
    """Counts up from the last id, and stops at an id of the end."""
    last = asked.prompt[-1]
    ids: list[int] = []
    while len(ids) < asked.options.max_new_tokens and (
        not ids or ids[-1] not in asked.options.eos_ids
    ):
        ids.append((ids[-1] if ids else last) + 1)
    stopped = ids[-1] in asked.options.eos_ids
    return Continued(tuple(ids), (-1.0,) * len(ids), Finish.STOP if stopped else Finish.LENGTH)


def row(*prompt: int, eos_ids: tuple[int, ...] = (), margin: float = 1.0) -> GreedyRow:
    new = NEW if not eos_ids else eos_ids[0] - prompt[-1]
    continuation = tuple(prompt[-1] + 1 + at for at in range(new))
    return GreedyRow(prompt, continuation, (-1.0,) * new, (margin,) * new, eos_ids, 1.0)


SET = GreedySet(
    "counting",
    "bf16",
    GreedyTolerance(equal=0.8, margin=0.2, difference=0.1),
    2.0,
    (row(1, 2, 3), row(7), row(20, 21, eos_ids=(26,))),
)


def asked_of(
    change: Callable[[Asked, Continued], Continued], found: GreedySet = SET
) -> GreedyProof:
    def generate(asked: Sequence[Asked]) -> list[Continued]:
        return [change(one, right(one)) for one in asked]

    return prove_greedy(found, generate)


def test_what_is_right_passes_alone_and_together() -> None:
    found = asked_of(lambda asked, got: got)
    assert found.proof.fault is None
    assert found.equal == found.tokens == 2 * (NEW + NEW + 5)
    assert {(one.length, one.batch) for one in found.proof.findings} == {
        (3, 1), (1, 1), (2, 1), (3, 3), (1, 3), (2, 3)
    }  # fmt: skip
    assert found.proof.largest_difference == 0


def second_is_other(asked: Asked, got: Continued) -> Continued:
    """Of the row of seven alone, and goes on from the other one."""
    if asked.prompt == (7,):
        return replace(got, ids=(got.ids[0], 90, *range(91, 91 + len(got.ids) - 2)))
    return got


def test_another_token_is_taken_only_where_the_reference_was_unsure() -> None:
    far = asked_of(second_is_other)
    assert far.proof.fault is not None
    assert "a prompt of 1 tokens alone: another token" in far.proof.fault
    assert "0.5 of the spread" in far.proof.fault
    near = asked_of(second_is_other, replace(SET, rows=(SET.rows[0], row(7, margin=0.3))))
    assert near.proof.fault is None
    # The rest of the row is asked again behind the reference's own token.
    assert (near.tokens, near.equal) == (40, 38)
    strict = replace(SET.tolerance, equal=0.99)
    few = asked_of(second_is_other, replace(SET, tolerance=strict, rows=(row(7, margin=0.3),)))
    assert few.proof.fault == "90.0% of the tokens are the reference's, and 99.0% must be"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda _, got: replace(got, logprobs=(-1.5,) * len(got.ids)), "log-probabilities differ"),
        (lambda _, got: Continued(got.ids[:-1], got.logprobs[:-1], got.finish), "were to come"),
        (lambda _, got: replace(got, finish=Finish.CANCELLED), "its end is called CANCELLED"),
        (lambda _, got: replace(got, logprobs=()), "not as many log-probabilities"),
        (lambda _, got: Continued((), (), Finish.CACHE_FULL), "no tokens"),
        (lambda _, got: replace(got, logprobs=(float("nan"),) * len(got.ids)), "differ"),
    ],
)
def test_what_is_wrong_is_named(change: Any, said: str) -> None:
    fault = asked_of(change).proof.fault
    assert fault is not None
    assert said in fault


def test_an_engine_that_raises_is_a_fault_and_the_others_are_asked() -> None:
    def generate(asked: Sequence[Asked]) -> list[Continued]:
        if len(asked) > 1:
            raise RuntimeError("no memory")
        return [right(asked[0])]

    found = prove_greedy(SET, generate)
    assert found.proof.fault is not None
    assert "beside 2 others: the engine failed (RuntimeError: no memory)" in found.proof.fault
    assert sum(one.fault is None for one in found.proof.findings) == 3


def test_a_set_is_written_and_read() -> None:
    text = SET.to_json()
    assert is_greedy_set(text.encode())
    assert read_greedy_set(text.encode()) == SET
    assert not is_greedy_set(b'{"kind": "softmax"}')


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("spread",), 0, "'spread' must be above 0"),
        (("tolerance", "equal"), 1.5, "'equal' must be above 0 and at most 1"),
        (("rows",), [], "'rows' must be 1 to"),
        (("rows", 0, "prompt"), [-1], "'prompt' must be a list"),
        (("rows", 0, "prompt"), [], "must have a prompt"),
        (("rows", 0, "logprobs"), [0.5], "as many logprobs"),
        (("rows", 0, "margins"), ["a"] * NEW, "'margins' must be a list"),
        (("precision",), "fp8", "'precision' must be one of"),
    ],
)
def test_a_set_that_is_wrong_is_refused(path: tuple[Any, ...], value: Any, said: str) -> None:
    values = json.loads(SET.to_json())
    place = values
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    with pytest.raises(ContractError, match=said):
        read_greedy_set(json.dumps(values).encode())
