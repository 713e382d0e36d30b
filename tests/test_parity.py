"""Parity refuses planted faults, and names the worst case without showing a text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from contract.endpoint import Tokens
from tests.tiny_models import save_classifier
from transformer_serving.convert import ConvertRequest, tokens_of
from transformer_serving.model_source import ModelSource, open_source
from transformer_serving.onnx_export import export_onnx
from transformer_serving.optimize import EngineFiles, clean_onnx
from transformer_serving.parity import (
    TOLERANCES,
    ParityReport,
    WorstCase,
    compare,
    refuse_when_over,
    texts_for,
)
from transformer_serving.reference import reference_answers
from transformer_serving.refusal import ConversionRefused

INPUTS = ("input_ids", "token_type_ids", "attention_mask")


class Case:
    """One exported model, its texts and the reference's answers, made once for all tests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.source: ModelSource = open_source(str(save_classifier(folder)))
        self.tokens: Tokens = tokens_of(self.source, ConvertRequest(str(folder), buckets=(8, 16)))
        self.graph = export_onnx(self.source, folder / "graph.onnx").path
        clean_onnx(self.graph)
        self.texts = texts_for(self.source, self.tokens.max_length)
        self.expected = reference_answers(self.source, self.texts, self.tokens.max_length)

    def report(self, graph: Path, tokens: Tokens | None = None) -> ParityReport:
        files = EngineFiles("onnxruntime", "fp32", (graph,))
        return compare(self.source, files, tokens or self.tokens, INPUTS, self.texts, self.expected)


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(tmp_path_factory.mktemp("case"))


def edited(case: Case, name: str, edit: Any) -> Path:
    model = onnx.load(str(case.graph))
    edit(model.graph)
    path = case.folder / f"{name}.onnx"
    onnx.save(model, str(path))
    return path


def test_the_true_graph_passes(case: Case) -> None:
    report = case.report(case.graph)
    refuse_when_over(report)
    assert report.largest_difference < 1e-5


def test_one_changed_weight_is_refused(case: Case) -> None:
    def change(graph: Any) -> None:
        weights = {tensor.name: tensor for tensor in graph.initializer}
        weight = weights["model.classifier.weight"]
        values = numpy_helper.to_array(weight).copy()
        values[0, 0] += 0.01
        weight.CopyFrom(numpy_helper.from_array(values, weight.name))

    report = case.report(edited(case, "weight", change))
    with pytest.raises(ConversionRefused, match="other --engine"):
        refuse_when_over(report)


def test_a_dropped_mask_is_refused(case: Case) -> None:
    def ignore_mask(graph: Any) -> None:
        # The mask's readers get ones of the same shape instead: every token equals itself.
        same = onnx.helper.make_node("Equal", ["input_ids", "input_ids"], ["same"])
        ones = onnx.helper.make_node("Cast", ["same"], ["ones"], to=onnx.TensorProto.INT32)
        for node in graph.node:
            for at, name in enumerate(node.input):
                if name == "attention_mask":
                    node.input[at] = "ones"
        graph.node.insert(0, ones)
        graph.node.insert(0, same)

    report = case.report(edited(case, "mask", ignore_mask))
    assert report.largest_difference > TOLERANCES["fp32"].difference
    with pytest.raises(ConversionRefused, match=r"text \d+ with \d+ tokens in a batch of \d+"):
        refuse_when_over(report)


def test_another_padding_id_passes_because_the_mask_covers_it(case: Case) -> None:
    other = replace(case.tokens, pad_id=5)
    refuse_when_over(case.report(case.graph, other))


def test_labels_in_another_order_are_refused(case: Case) -> None:
    report = compare(
        case.source,
        EngineFiles("onnxruntime", "fp32", (case.graph,)),
        case.tokens,
        INPUTS,
        case.texts,
        np.ascontiguousarray(case.expected[:, ::-1]),
    )
    assert report.label_agreement is not None
    assert report.label_agreement < 1.0
    with pytest.raises(ConversionRefused, match="labels agree on"):
        refuse_when_over(report)


def test_not_a_number_is_refused(case: Case) -> None:
    expected = case.expected.copy()
    expected[3, 0] = np.nan
    files = EngineFiles("onnxruntime", "fp32", (case.graph,))
    report = compare(case.source, files, case.tokens, INPUTS, case.texts, expected)
    assert report.largest_difference == np.inf
    with pytest.raises(ConversionRefused):
        refuse_when_over(report)


def test_the_next_safer_precision_is_named() -> None:
    report = ParityReport(
        reference="sentence-transformers",
        precision="bf16",
        texts=4,
        longest_tokens=9,
        largest_difference=0.001,
        tolerance=0.03,
        label_agreement=None,
        lowest_cosine=0.98,
        worst=WorstCase(text=2, tokens=7, batch=8),
    )
    with pytest.raises(ConversionRefused, match="--precision fp32") as refused:
        refuse_when_over(report)
    assert "text 2 with 7 tokens in a batch of 8" in str(refused.value)


def test_texts_cover_every_length_class_and_one_that_is_cut(case: Case) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_buffer(case.source.tokenizer.content)
    lengths = [len(tokenizer.encode(text).ids) for text in case.texts]
    assert max(lengths) > case.source.max_length
    assert case.source.max_length in lengths
    assert len(set(lengths)) > 12
    assert case.texts == texts_for(case.source, case.tokens.max_length)
