"""An int8 engine on OpenVINO answers rightly at every length, also that of an attention head."""

from __future__ import annotations

from pathlib import Path

import pytest

from preprocess.tensors import Tensor
from scripts.openvino_int8_bf16 import WRONG, answers, attention, far, texts
from transformer_serving.desk.builders.files import EngineFiles
from transformer_serving.desk.builders.table import open_engine
from transformer_serving.engine.backends.openvino_quiet import openvino


@pytest.mark.parametrize("size", [8, 16, 24, 32, 64])
def test_int8_is_right_at_every_length(size: int, tmp_path: Path) -> None:
    """With the hint bf16 a CPU with AMX is wrong here at the sizes below 64.

    On another CPU nothing is, whatever the hint: there this cannot fail.
    """
    file = tmp_path / "model.xml"
    openvino.save_model(attention(size), str(file), compress_to_fp16=False)
    call = open_engine(EngineFiles("openvino", "int8", (file, file.with_suffix(".bin"))))
    lengths = range(1, 2 * size + 2)
    expected = answers(size, lengths, "f32", "DISABLE")
    found = [call([Tensor("x", "FP32", texts(size, tokens))])[0] for tokens in lengths]
    wrong = [
        n for n, one, exact in zip(lengths, found, expected, strict=True) if far(one, exact) > WRONG
    ]
    assert wrong == []
