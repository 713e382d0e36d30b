"""Engine torch at the desk: its files, and the program opened on this machine."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import torch

from preprocess.tensors import Tensor
from tests.engine.text_models import VOCABULARY, expected
from tests.engine.torch_models import export_small
from tests.tiny_models import save_classifier
from transformer_serving.desk.builders.table import build_engine, choose_precision, open_engine
from transformer_serving.desk.bundle.folder import open_bundle
from transformer_serving.desk.conversion.encoder import ConvertRequest, convert
from transformer_serving.desk.failure import ConversionRefused
from transformer_serving.engine.model_config import from_text


def test_the_program_is_opened_and_answers(tmp_path: Path) -> None:
    files = build_engine("torch", "fp32", export_small(tmp_path), tmp_path)
    assert [path.name for path in files.files] == ["program.json", "program.safetensors"]
    call = open_engine(files)
    ids = np.random.default_rng(1).integers(0, VOCABULARY, (3, 7)).astype(np.int32)
    mask = np.ones_like(ids)
    [found] = call([Tensor("attention_mask", "INT32", mask), Tensor("input_ids", "INT32", ids)])
    np.testing.assert_allclose(np.asarray(found, np.float32), expected(ids, mask), atol=1e-5)
    wrong = np.full_like(ids, VOCABULARY)
    with pytest.raises(ConversionRefused, match="convert with another --engine"):
        call([Tensor("attention_mask", "INT32", mask), Tensor("input_ids", "INT32", wrong)])


@pytest.mark.skipif(torch.cuda.is_available(), reason="it is the GPU's where there is one")
def test_the_fastest_precision_of_a_cpu_is_fp32() -> None:
    assert choose_precision("torch", None) == "fp32"


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_bundle_is_made_without_onnx(
    tmp_path: Path, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Weights less wide than other tests', whose bf16 is over its tolerance.
    model = save_classifier(tmp_path / "model", seed=5, initializer_range=0.15)

    def never(*_: object) -> None:
        raise AssertionError("the model was exported as ONNX")

    monkeypatch.setattr("transformer_serving.desk.conversion.workshop.export_onnx", never)
    request = ConvertRequest(
        str(model), engine="torch", precision=precision, buckets=(8, 16), batch=(1, 2, 4)
    )
    convert(request, tmp_path / "bundle", lambda step, detail: None)
    made = open_bundle(tmp_path / "bundle")
    assert (made.manifest.engine, made.manifest.precision) == ("torch", precision)
    assert made.manifest.tools["torch"] == version("torch")
    config = from_text((made.model_folder / "config.pbtxt").read_text("utf-8"))
    assert (config.backend, config.default_model_filename) == ("torch_text", "program.json")
    # Triton takes a GPU where it has one.
    assert config.instance_group[0].kind == config.instance_group[0].KIND_AUTO
