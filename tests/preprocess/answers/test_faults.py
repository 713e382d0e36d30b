"""Equality must fail once something is wrong: mask, token types, positions, offsets, lengths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from preprocess.rows import unpad
from preprocess.windows import Windows
from tests.preprocess.answers.comparison import Unequal, check_best, difference
from tests.preprocess.answers.families import FAMILIES
from tests.preprocess.answers.served import Fault, Served, pipeline_of, plain, serve

pytestmark = pytest.mark.filterwarnings("ignore")
CONTEXT = "Anna Berg works for the Royal Museum in Oslo since 2019."


def _mask_of_ones(inputs: dict[str, torch.Tensor]) -> None:
    inputs["attention_mask"] = torch.ones_like(inputs["attention_mask"])


def _one_token_type(inputs: dict[str, torch.Tensor]) -> None:
    inputs["token_type_ids"] = torch.zeros_like(inputs["token_type_ids"])


def _next_mask_position(inputs: dict[str, torch.Tensor]) -> None:
    inputs["mask_positions"] = inputs["mask_positions"] + 1


def _next_candidate(inputs: dict[str, torch.Tensor]) -> None:
    inputs["candidates"] = inputs["candidates"] + 1


def _other_last_token(inputs: dict[str, torch.Tensor]) -> None:
    last = inputs["attention_mask"].sum(dim=1, keepdim=True) - 1
    inputs["input_ids"] = inputs["input_ids"].scatter(1, last, 7)


# Of each task a body in the Inference API's shape, and what is done to the engine's inputs.
PAIR = {"text": CONTEXT, "text_pair": "where does she work?"}
SIMPLE = {"aggregation_strategy": "simple", "ignore_labels": []}
CASES: list[tuple[str, str, Any, dict[str, Any], Fault]] = [
    ("text-classification", "sequence", CONTEXT, {}, _mask_of_ones),
    ("text-classification", "sequence", CONTEXT, {}, _other_last_token),
    ("text-classification", "sequence", PAIR, {}, _one_token_type),
    ("token-classification", "tokens", CONTEXT, SIMPLE, _mask_of_ones),
    ("fill-mask", "masks", "small [MASK] tea", {}, _mask_of_ones),
    ("fill-mask", "masks", "small [MASK] tea", {}, _next_mask_position),
    ("fill-mask", "masks", "small [MASK] tea", {"targets": ["tea", "the"]}, _next_candidate),
    ("feature-extraction", "token_vectors", CONTEXT, {}, _mask_of_ones),
]


@pytest.mark.parametrize(("task", "head", "inputs", "parameters", "fault"), CASES)
def test_a_fault_in_the_engines_inputs_is_seen(
    task: str, head: str, inputs: Any, parameters: dict[str, Any], fault: Fault
) -> None:
    served = serve(FAMILIES["bert"], task, FAMILIES["bert"].model(head))
    reference = plain(pipeline_of("bert", task, served.model)(inputs, **parameters))
    body = {"inputs": inputs, "parameters": parameters}
    difference(served.answer(body), reference)
    served.fault = fault
    with pytest.raises(Unequal):
        difference(served.answer(body), reference)


QUESTION = {"question": "who works?", "context": CONTEXT}


@pytest.fixture
def answering() -> tuple[Served, Any]:
    model = FAMILIES["bert"].model("spans", labels=("first", "last"))
    served = serve(FAMILIES["bert"], "question-answering", model)
    reference = pipeline_of("bert", "question-answering", model)(**QUESTION)
    difference(served.answer({"inputs": QUESTION}), plain(reference))
    return served, plain(reference)


@pytest.mark.parametrize("fault", [_mask_of_ones, _one_token_type])
def test_a_fault_in_a_questions_inputs_is_seen(answering: tuple[Served, Any], fault: Fault) -> None:
    served, reference = answering
    served.fault = fault
    with pytest.raises(Unequal):
        difference(served.answer({"inputs": QUESTION}), reference)


def _shifted(pieces: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, texts: pieces(self, [f" {text}" for text in texts])


def test_a_shift_of_offsets_is_seen(
    answering: tuple[Served, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    served, reference = answering
    tagged = serve(FAMILIES["bert"], "token-classification", FAMILIES["bert"].model("tokens"))
    pipeline = pipeline_of("bert", "token-classification", tagged.model)
    entities = plain(pipeline(CONTEXT, **SIMPLE))
    body = {"inputs": CONTEXT, "parameters": SIMPLE}
    difference(tagged.answer(body), entities)
    for method in ("pieces", "second_pieces"):
        monkeypatch.setattr(Windows, method, _shifted(getattr(Windows, method)))
    with pytest.raises(Unequal):
        difference(tagged.answer(body), entities)
    with pytest.raises(Unequal):
        difference(served.answer({"inputs": QUESTION}), reference)


def test_rows_cut_on_the_wrong_side_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Padding on the left, and the engine's tokens taken from the right."""
    family, text = FAMILIES["xlm-roberta-left"], "tea in Oslo"
    served = serve(family, "token-classification", family.model("tokens"))
    reference = plain(pipeline_of(family.name, served.endpoint.task, served.model)(text, **SIMPLE))
    body = {"inputs": text, "parameters": SIMPLE}
    difference(served.answer(body), reference)
    right = serve(FAMILIES["xlm-roberta"], "token-classification", served.model).endpoint
    monkeypatch.setattr(
        "tests.preprocess.answers.served.unpad",
        lambda outputs, row, _: unpad(outputs, row, right),
    )
    with pytest.raises(Unequal):
        difference(served.answer(body), reference)


@pytest.mark.parametrize(
    ("ours", "reference"),
    [
        ([{"label": "a", "score": 0.6}], [{"label": "b", "score": 0.6}]),
        ([{"label": "a", "score": 0.6}], [{"label": "a", "score": 0.6002}]),
        ({"score": float("nan")}, {"score": 0.5}),
        ({"start": 1, "score": 0.5}, {"start": 2, "score": 0.5}),
        ([0.1, 0.2], [0.1]),
        (
            {"labels": ["a", "b"], "scores": [0.6, 0.4]},
            {"labels": ["b", "a"], "scores": [0.6, 0.4]},
        ),
        ({"label": "a"}, {"label": "a", "score": 0.5}),
        (1, 1.0),
    ],
)
def test_the_comparison_sees_every_kind_of_difference(ours: Any, reference: Any) -> None:
    with pytest.raises(Unequal):
        difference(ours, reference)


def test_ranks_may_swap_below_the_tolerance_only() -> None:
    one, other = {"label": "a", "score": 0.50001}, {"label": "b", "score": 0.5}
    assert difference([other, one], [one, other]) < 1e-4
    far = {"label": "b", "score": 0.4}
    with pytest.raises(Unequal):
        difference([far, one], [one, far])


def test_a_rank_may_differ_at_a_cut_only_where_two_are_level() -> None:
    every = [{"index": 0, "score": 0.50001}, {"index": 1, "score": 0.5}, {"index": 2, "score": 0.4}]
    check_best([every[1]], every)
    with pytest.raises(Unequal):
        check_best([every[2]], every)
    with pytest.raises(Unequal):
        check_best([{"index": 2, "score": 0.5}], every)
