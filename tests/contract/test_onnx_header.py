from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
from hypothesis import given, settings, strategies as st

from tests.contract.onnx_files import field, onnx_bytes
from transformer_serving.contract.errors import ContractError
from transformer_serving.contract.gate.onnx_header import (
    OnnxHeader,
    read_onnx_header,
    starts_as_onnx,
)
from transformer_serving.contract.gate.onnx_limits import LIMITS, highest, too_new
from transformer_serving.contract.gate.release import same


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.onnx"


def test_the_versions_behind_a_large_graph_are_found(path: Path) -> None:
    path.write_bytes(onnx_bytes(ir_version=9, opset=300))
    assert read_onnx_header(path) == OnnxHeader(9, 300, {"com.microsoft": 1})
    path.write_bytes(onnx_bytes(domain="ai.onnx"))
    assert read_onnx_header(path).opset == 18


def test_what_the_onnx_package_writes_is_read(path: Path) -> None:
    onnx.save(relu(21, 10), str(path))
    assert read_onnx_header(path) == OnnxHeader(10, 21, {"ai.onnx.ml": 4})
    assert starts_as_onnx(path.read_bytes())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "states no graph, IR version or opset"),
        (onnx_bytes()[:-3], "no whole ONNX model: it has"),
        (onnx_bytes()[:50_000], "no whole ONNX model: it has"),
        (b"\x08", "it ends inside a number"),
        (b"\x08" + b"\xff" * 11, "a number of more than 10 bytes"),
        (b"\x0f\x00", "wire type 7"),
        (b"\x00\x00", "field number 0"),
        (field(1, 8) + field(8, field(2, 18)), "states no graph"),
    ],
)
def test_what_is_no_whole_model_is_refused(path: Path, content: bytes, said: str) -> None:
    path.write_bytes(content)
    with pytest.raises(ContractError, match=r"'model\.onnx'.*convert again") as caught:
        read_onnx_header(path)
    assert said in str(caught.value)


def test_limits_are_those_seen_and_what_follows_from_them() -> None:
    assert highest("1.19.2", "opset") == 21
    assert highest("1.18.0", "opset") == 21  # what 1.19 does not read, an older one cannot
    assert highest("1.21.0", "ir_version") == 10  # bounded by 1.22
    assert highest("1.21.0", "opset") == 26  # nobody looked before 1.31
    assert highest("1.40.0", "opset") is None
    assert too_new(OnnxHeader(10, 21, {}), "1.19.2") is None
    assert too_new(OnnxHeader(10, 22, {}), "1.19.2") == "opset 22, at most 21"
    assert too_new(OnnxHeader(11, 21, {}), "1.19.2") == "IR version 11, at most 10"
    assert too_new(OnnxHeader(99, 99, {}), "2.0.0") is None


def test_the_installed_onnxruntime_agrees_with_its_row(path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    row = next((row for row in LIMITS if same(runtime.__version__, row.onnxruntime)), None)
    if row is None or row.opset is None or row.ir_version is None:
        pytest.fail(f"LIMITS has no row of ONNX Runtime {runtime.__version__}: look, and add one")
    loads(runtime, relu(row.opset, row.ir_version))
    with pytest.raises(Exception, match=f"till opset {row.opset}"):
        loads(runtime, relu(row.opset + 1, row.ir_version))
    with pytest.raises(Exception, match=f"max supported IR version: {row.ir_version}"):
        loads(runtime, relu(row.opset, row.ir_version + 1))


def loads(runtime: Any, model: onnx.ModelProto) -> None:
    runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def relu(opset: int, ir_version: int) -> onnx.ModelProto:
    tensors = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy"
    ]
    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    graph = onnx.helper.make_graph([node], "g", tensors[:1], tensors[1:])
    opsets = [onnx.helper.make_opsetid("", opset), onnx.helper.make_opsetid("ai.onnx.ml", 4)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=ir_version)


@settings(max_examples=200)
@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_but_a_contract_error(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.onnx"
    path.write_bytes(content)
    starts_as_onnx(content)
    with pytest.raises(ContractError):
        read_onnx_header(path)
