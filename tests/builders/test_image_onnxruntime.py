"""What convert writes, loaded by the very ONNX Runtime of the pinned Triton image.

It needs an environment of its own and runs where CHECK_ORT names a folder for one: make check-ort.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from transformer_serving.contract.gate.onnx_limits import highest
from transformer_serving.desk.builders.calibration import feeds_of
from transformer_serving.desk.builders.files import EngineFiles, Shapes
from transformer_serving.desk.builders.table import build_engine, open_engine
from transformer_serving.desk.conversion.encoder import ConvertRequest, convert
from transformer_serving.desk.demo import encoder_folder
from transformer_serving.desk.versions.lock import read_lock

PIN = read_lock().image.onnxruntime
TEXTS = ("The room was clean.", "Cold food, a rude waiter, and then a very long night " * 6)
pytestmark = pytest.mark.skipif(
    "CHECK_ORT" not in os.environ,
    reason=f"installs onnxruntime {PIN} in an environment of its own: make check-ort",
)

# Runs under the old ONNX Runtime, which has numpy beside it and nothing of ours.
RUNNER = """
import json, sys
import numpy, onnxruntime
onnxruntime.set_default_logger_severity(4)
try:
    session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
    wanted = [node.name for node in session.get_inputs()]
    answers = []
    for at in range(int(sys.argv[3])):
        with numpy.load(sys.argv[2]) as rows:
            feed = {name: rows[f"{at} {name}"] for name in wanted}
        answers.append(session.run(None, feed)[0].tolist())
    print(json.dumps({"version": onnxruntime.__version__, "answers": answers}))
except Exception as error:
    print(json.dumps({"version": onnxruntime.__version__, "error": str(error)}))
"""


@pytest.fixture(scope="module")
def old_python() -> Path:
    """The python of an environment with the image's ONNX Runtime."""
    folder = Path(os.environ["CHECK_ORT"]).absolute() / PIN
    python = folder / "bin" / "python"
    if not (folder / "made").is_file():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        packages = [f"onnxruntime=={PIN}", "numpy<2.3"]
        subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
        (folder / "made").touch()
    return python


def run_old(python: Path, graph: Path, feeds: list[Any], folder: Path) -> dict[str, Any]:
    rows = {f"{at} {name}": array for at, feed in enumerate(feeds) for name, array in feed.items()}
    np.savez(folder / "feeds.npz", **rows)
    arguments = [str(python), "-c", RUNNER, str(graph), str(folder / "feeds.npz"), str(len(feeds))]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert told["version"] == PIN
    return told


@pytest.fixture(scope="module")
def minilm(tmp_path_factory: pytest.TempPathFactory) -> Any:
    target = tmp_path_factory.mktemp("minilm") / "bundle"
    request = ConvertRequest(str(encoder_folder()), engine="onnxruntime")
    return convert(request, target, lambda step, detail: None).bundle


@pytest.mark.parametrize(("precision", "allowed"), [("fp32", 1e-5), ("fp16", 5e-3), ("int8", 1e-2)])
def test_it_loads_and_answers_as_here(
    precision: str, allowed: float, minilm: Any, old_python: Path, tmp_path: Path
) -> None:
    from preprocess.tensors import Tensor

    tokenizer = (minilm.folder / "tokenizer.json").read_bytes()
    feeds = feeds_of(minilm.endpoint, tokenizer, [{"text": text} for text in TEXTS])
    shapes = Shapes(minilm.endpoint.tokens.buckets, (1, 8, 64), feeds)
    graph = minilm.model_folder / "model.onnx"
    files = build_engine("onnxruntime", precision, graph, tmp_path, shapes)
    call = open_engine(EngineFiles("onnxruntime", precision, files.files))
    told = run_old(old_python, files.files[0], feeds, tmp_path)
    assert "error" not in told, told["error"]
    largest = 0.0
    for feed, answer in zip(feeds, told["answers"], strict=True):
        here = call([Tensor(name, "INT32", array) for name, array in feed.items()])[0]
        largest = max(largest, float(np.abs(here - np.array(answer)).max()))
    header = onnx.load(str(files.files[0]), load_external_data=False)
    opsets = ", ".join(f"{one.domain or 'ai.onnx'} {one.version}" for one in header.opset_import)
    sys.stdout.write(
        f"\nonnxruntime {PIN} {precision}: opset {opsets}, IR version {header.ir_version}; largest "
        f"difference from the desk's onnxruntime {largest:.1e}\n"
    )
    assert largest < allowed


@pytest.mark.parametrize("field", ["opset", "ir_version"])
def test_the_limits_that_the_gate_knows_are_its_own(
    field: str, old_python: Path, tmp_path: Path
) -> None:
    limit = highest(PIN, field)
    assert limit is not None
    for value, loads in ((limit, True), (limit + 1, False)):
        versions = {"opset": 17, "ir_version": 8, field: value}
        path = tmp_path / "one.onnx"
        onnx.save(identity(**versions), str(path))
        told = run_old(old_python, path, [{"x": np.array([3], np.float32)}], tmp_path)
        assert ("error" not in told) == loads, told
        sys.stdout.write(
            f"\nonnxruntime {PIN} {field} {value}: {'loads' if loads else 'refused'}\n"
        )


def identity(*, opset: int, ir_version: int) -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])],
        "identity",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version
    )
