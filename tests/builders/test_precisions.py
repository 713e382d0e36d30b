"""int8 and fp16 graphs of both CPU engines, and fp32 where fp16 would overflow."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.kept_graphs import KeptGraphs, conversions_of
from tests.tiny_models import save_classifier
from transformer_serving.desk.builders.calibration import MOST, feeds_of, read_bodies
from transformer_serving.desk.builders.files import Shapes
from transformer_serving.desk.builders.half_precision import (
    overflowing_nodes,
    summing_nodes,
    write_half,
)
from transformer_serving.desk.builders.quantization import (
    narrowing,
    value_projections,
    write_dynamic_int8,
)
from transformer_serving.desk.builders.table import build_engine, choose_precision, open_engine
from transformer_serving.desk.bundle.folder import open_bundle
from transformer_serving.desk.conversion.encoder import ConvertRequest, convert
from transformer_serving.desk.failure import ConversionRefused

Feed = Mapping[str, np.ndarray]
BODIES = [{"text": text} for text in ("the train left early", "good tea", "so good ! again !")]


@pytest.fixture(scope="module")
def tiny_bundle(kept_graphs: KeptGraphs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of weights less wide than other tests', whose int8 is far from fp32 whoever computes it.

    Its logits are 0.85 apart at most, the best two of a text 0.32 at least.
    """
    folder = tmp_path_factory.mktemp("precisions")
    model = save_classifier(folder / "model", seed=5, initializer_range=0.15)
    request = ConvertRequest(str(model), engine="onnxruntime", buckets=(8, 16, 32), batch=(1, 2, 4))
    with conversions_of(kept_graphs):
        convert(request, folder / "bundle", lambda step, detail: None)
    return folder / "bundle"


@pytest.fixture(scope="module")
def feeds(tiny_bundle: Path) -> list[Feed]:
    endpoint = open_bundle(tiny_bundle).endpoint
    return feeds_of(endpoint, (tiny_bundle / "tokenizer.json").read_bytes(), BODIES)


def logits(engine: str, precision: str, graph: Path, folder: Path, feeds: list[Feed]) -> np.ndarray:
    from preprocess.tensors import Tensor

    folder.mkdir()
    files = build_engine(engine, precision, graph, folder, Shapes((8, 16), (1, 2, 4), feeds))
    assert files.precision == precision
    call = open_engine(files)
    return np.concatenate(
        [call([Tensor(name, "INT32", rows) for name, rows in feed.items()])[0] for feed in feeds]
    )


@pytest.mark.parametrize(
    ("engine", "precision", "allowed"),
    [("onnxruntime", "int8", 0.25), ("onnxruntime", "fp16", 0.02), ("openvino", "int8", 0.25)],
)
def test_a_smaller_precision_answers_nearly_the_same(
    engine: str,
    precision: str,
    allowed: float,
    tiny_bundle: Path,
    feeds: list[Feed],
    tmp_path: Path,
) -> None:
    graph = tiny_bundle / "model" / "model.onnx"
    exact = logits("onnxruntime", "fp32", graph, tmp_path / "a", feeds)
    near = logits(engine, precision, graph, tmp_path / "b", feeds)
    again = logits(engine, precision, graph, tmp_path / "c", feeds)
    assert 0 < np.abs(near - exact).max() < allowed
    assert (near.argmax(axis=1) == exact.argmax(axis=1)).all()
    # The bundle's version is the hash of these files.
    for file in (tmp_path / "b").iterdir():
        assert file.read_bytes() == (tmp_path / "c" / file.name).read_bytes()
    assert np.array_equal(near, again)
    assert graph.is_file()


def test_dynamic_int8_leaves_attentions_values_and_narrowing_matrices_in_fp32(
    tiny_bundle: Path, tmp_path: Path
) -> None:
    file = tiny_bundle / "model" / "model.onnx"
    model = onnx.load(str(file))
    weights = {node.name: node.input[1] for node in model.graph.node if node.op_type == "MatMul"}
    shapes = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    values, narrow = list(value_projections(model.graph)), list(narrowing(model.graph))
    # One of each in each of the two layers.
    assert [shapes[weights[name]] for name in values] == [(32, 32), (32, 32)]
    assert [shapes[weights[name]] for name in narrow] == [(48, 32), (48, 32)]
    write_dynamic_int8(file, tmp_path / "int8.onnx")
    small = onnx.load(str(tmp_path / "int8.onnx"))
    left = {node.name for node in small.graph.node if node.op_type == "MatMul"}
    assert {*values, *narrow} <= left
    # The queries, keys, outputs and wide products of both layers, and the classifier's two.
    assert sum(node.op_type == "MatMulInteger" for node in small.graph.node) == 2 * 4 + 2


def big_graph(path: Path) -> Path:
    """x * 300 * 300 - the product: the square of the factor is beyond fp16, the answer is not."""
    nodes = [
        helper.make_node("Cast", ["input_ids"], ["x"], name="cast", to=TensorProto.FLOAT),
        helper.make_node("Mul", ["x", "factor"], ["once"], name="once"),
        helper.make_node("Mul", ["once", "factor"], ["twice"], name="twice"),
        helper.make_node("Div", ["twice", "factor"], ["back"], name="back"),
        helper.make_node("ReduceSum", ["back", "axis"], ["output"], name="sum", keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "big",
        [helper.make_tensor_value_info("input_ids", TensorProto.INT32, ["batch", "tokens"])],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, ["batch"])],
        [
            numpy_helper.from_array(np.array(300, np.float32), "factor"),
            numpy_helper.from_array(np.array([1], np.int64), "axis"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(model, str(path))
    return path


def answer(path: Path, ids: np.ndarray) -> np.ndarray:
    """In the graph's own types: on a CPU ONNX Runtime computes fp16 in fp32."""
    answers: Any = ReferenceEvaluator(str(path)).run(None, {"input_ids": ids})
    return np.asarray(answers[0])


def test_nodes_that_overflow_stay_in_fp32(tmp_path: Path) -> None:
    graph = big_graph(tmp_path / "big.onnx")
    ids = np.array([[1, 2, 3]], np.int32)
    assert overflowing_nodes(graph, [{"input_ids": ids}]) == ("back", "twice")
    assert summing_nodes(graph) == ("sum",)
    write_half(graph, tmp_path / "kept.onnx", ["back", "twice"])
    write_half(graph, tmp_path / "lost.onnx", [])
    assert answer(tmp_path / "kept.onnx", ids) == pytest.approx(1800, rel=1e-2)
    with np.errstate(over="ignore", invalid="ignore"):
        spoilt = answer(tmp_path / "lost.onnx", ids)
    assert not np.isfinite(spoilt).all()


def test_weights_beside_the_graph_are_never_taken_into_one_message(
    tiny_bundle: Path, feeds: list[Feed], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of more than 2 GiB, which no protobuf holds."""
    whole = tiny_bundle / "model" / "model.onnx"
    graph = tmp_path / "graph.onnx"
    data = {"save_as_external_data": True, "location": "graph.onnx.data"}
    onnx.save_model(onnx.load(str(whole)), str(graph), **data)  # type: ignore[arg-type]
    wanted = logits("onnxruntime", "fp16", whole, tmp_path / "whole", feeds)
    session = onnxruntime.InferenceSession

    def from_a_file(path: Any, *given: Any, **named: Any) -> Any:
        assert isinstance(path, str)
        return session(path, *given, **named)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the weights are in one message")

    monkeypatch.setattr(onnxruntime, "InferenceSession", from_a_file)
    monkeypatch.setattr("onnx.shape_inference.infer_shapes", refuse)
    monkeypatch.setattr("onnxruntime.transformers.float16.infer_shapes", refuse)
    monkeypatch.setattr("transformer_serving.desk.builders.half_precision.INLINE_LIMIT", 0)
    found = logits("onnxruntime", "fp16", graph, tmp_path / "apart", feeds)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    names = sorted(path.name for path in (tmp_path / "apart").iterdir())
    assert names == ["model.onnx", "model.onnx.data"]
    assert not list(tmp_path.glob(".*"))


def test_every_precision_is_built_of_one_graph_whose_weights_lie_beside_it(
    tiny_bundle: Path, feeds: list[Feed], tmp_path: Path
) -> None:
    """onnx reads no weights of a file that has several names, as those of fp32 would."""
    whole, graph = tiny_bundle / "model" / "model.onnx", tmp_path / "export.onnx"
    data = {"save_as_external_data": True, "location": "export.onnx.data"}
    onnx.save_model(onnx.load(str(whole)), str(graph), **data)  # type: ignore[arg-type]
    exact = logits("onnxruntime", "fp32", graph, tmp_path / "fp32", feeds)
    for precision, allowed in (("int8", 0.25), ("fp16", 0.02)):
        near = logits("onnxruntime", precision, graph, tmp_path / precision, feeds)
        np.testing.assert_allclose(near, exact, atol=allowed)
    names = sorted(path.name for path in (tmp_path / "fp32").iterdir())
    assert names == ["export.onnx.data", "model.onnx"]


def test_what_a_mask_adds_is_no_overflow(tiny_bundle: Path, feeds: list[Feed]) -> None:
    assert overflowing_nodes(tiny_bundle / "model" / "model.onnx", feeds) == ()


def test_calibration_files(tmp_path: Path) -> None:
    file = tmp_path / "texts.txt"
    file.write_text('one text\n\n{"text": "a", "text_pair": "b"}\n', "utf-8")
    assert read_bodies(file) == ({"text": "one text"}, {"text": "a", "text_pair": "b"})
    # Python's splitlines would end a line at each of these, too.
    file.write_text(
        'one\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029text\r\n{"text": "a\x85\u2028b"}\r\n', "utf-8"
    )
    read = ({"text": "one\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029text"}, {"text": "a\x85\u2028b"})
    assert read_bodies(file) == read
    file.write_text("\n".join(f"text {number}" for number in range(10 * MOST)))
    assert len(read_bodies(file)) == MOST
    for content, said in (("\n\n", "has no text"), ("a\n{b", "line 2 .* is none")):
        file.write_text(content)
        with pytest.raises(ConversionRefused, match=said):
            read_bodies(file)
    with pytest.raises(ConversionRefused, match="cannot be read"):
        read_bodies(tmp_path / "absent.txt")


def test_a_body_that_the_endpoint_refuses_is_named(tiny_bundle: Path) -> None:
    endpoint = open_bundle(tiny_bundle).endpoint
    tokenizer = (tiny_bundle / "tokenizer.json").read_bytes()
    with pytest.raises(ConversionRefused, match="calibration body"):
        feeds_of(endpoint, tokenizer, [{"question": "why?"}])


def test_int8_is_never_chosen_unasked() -> None:
    assert choose_precision("onnxruntime", None) == "fp32"
    assert choose_precision("onnxruntime", "int8") == "int8"
    assert choose_precision("openvino", None) in ("bf16", "fp32")
    assert choose_precision("tensorrt", None) == "fp16"
    with pytest.raises(ConversionRefused, match="has no precision 'bf16'"):
        choose_precision("onnxruntime", "bf16")
