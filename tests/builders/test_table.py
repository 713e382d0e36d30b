"""The table of engines: a new one is a file that builds and opens it, and a row."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from transformer_serving.contract import manifest
from transformer_serving.contract.gate.file_names import FILE_NAMES
from transformer_serving.desk.builders.files import EngineFiles, Shapes
from transformer_serving.desk.builders.table import ENGINES, choose_precision, ladder_of
from transformer_serving.desk.conversion.encoder import ConvertRequest, convert
from transformer_serving.desk.deploy.model_add import add_arguments
from transformer_serving.engine.bundle_config import ENGINE_BACKENDS
from transformer_serving.engine.model_config import from_text


def build_abacus(precision: str, graph: Path, folder: Path, shapes: Shapes) -> EngineFiles:
    target = Path(shutil.copy(graph, folder / "model.onnx"))
    return EngineFiles("abacus", precision, (target,))


@pytest.fixture
def abacus(monkeypatch: pytest.MonkeyPatch) -> None:
    row = replace(
        ENGINES["onnxruntime"], precisions=("fp32",), lengths=(8, 48), call_tokens=80,
        aux_config='backend="abacus"', build=build_abacus,
    )  # fmt: skip
    monkeypatch.setitem(ENGINES, "abacus", row)
    # What the containers know too: the contract's name and files, and the backend.
    monkeypatch.setattr(manifest, "ENGINES", (*manifest.ENGINES, "abacus"))
    monkeypatch.setitem(cast("Any", FILE_NAMES), "abacus", FILE_NAMES["onnxruntime"])
    monkeypatch.setitem(cast("Any", ENGINE_BACKENDS), "abacus", ("onnxruntime",))


@pytest.mark.usefixtures("abacus")
def test_a_new_engine_is_converted_and_added_by_its_row(
    tiny_classifier: Path, tmp_path: Path
) -> None:
    request = ConvertRequest(str(tiny_classifier), engine="abacus")
    done = convert(request, tmp_path / "bundle", lambda step, detail: None).bundle
    assert (done.manifest.engine, done.manifest.precision) == ("abacus", "fp32")
    assert done.endpoint.tokens.buckets == (8, 48)
    assert done.endpoint.limits.max_call_tokens == 80
    config = from_text((done.model_folder / "config.pbtxt").read_text("utf-8"))
    assert config.backend == "onnxruntime"
    assert 'backend="abacus"' in add_arguments(done, "name", "model")


@pytest.mark.usefixtures("abacus")
def test_the_bundle_is_the_same_with_and_without_engines_that_are_only_compared(
    tiny_classifier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = []

    def build(precision: str, graph: Path, folder: Path, shapes: Shapes) -> EngineFiles:
        lengths.append(shapes.lengths)
        return build_abacus(precision, graph, folder, shapes)

    monkeypatch.setitem(ENGINES, "abacus", replace(ENGINES["abacus"], build=build))
    # One call a round: nothing here depends on how long one takes.
    monkeypatch.setattr("transformer_serving.desk.parity.latency._ROUND_MS", 0)
    request = ConvertRequest(str(tiny_classifier), engine="openvino", precision="fp32")
    alone = convert(request, tmp_path / "alone", lambda step, detail: None)
    compared = replace(request, compare=("openvino", "abacus"))
    beside = convert(compared, tmp_path / "beside", lambda step, detail: None)
    assert "abacus" in {row.name for row in beside.compared.rows}
    assert beside.bundle.endpoint == alone.bundle.endpoint
    assert beside.bundle.endpoint.tokens.buckets[:2] == ladder_of("openvino")[:2]
    # It is built as it would serve: TensorRT has memory for each length.
    assert lengths == [(8, 48)]


# torch says which of its own is the fastest.
@pytest.mark.slow
def test_every_row_names_its_safest_precision_first() -> None:
    assert {row.precisions[0] for row in ENGINES.values()} == {"fp32"}
    for name, row in ENGINES.items():
        assert choose_precision(name, None) in row.precisions
        assert set(row.precisions) <= set(manifest.PRECISIONS)
    assert set(ENGINES) == set(manifest.ENGINES)
