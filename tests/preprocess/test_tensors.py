"""Outputs in every dtype that an engine may have, and those that are not as they should be."""

from __future__ import annotations

import numpy as np
import pytest

from preprocess.tensors import RawOutput, read_outputs
from transformer_serving.contract.endpoint import OUTPUT_DTYPES, OutputTensor
from transformer_serving.contract.errors import ServingError

# Every value has few enough digits for the narrowest float.
VALUES = np.array([[1.5, -2.0], [0.15625, 96.0]], np.float32)
COUNTS = np.array([[3, 250_001], [-1, 0]])
WIRE = {
    "FP32": VALUES.tobytes(),
    "FP16": VALUES.astype("<f2").tobytes(),
    "BF16": (VALUES.view(np.uint32) >> 16).astype("<u2").tobytes(),
    "INT32": COUNTS.astype("<i4").tobytes(),
    "INT64": COUNTS.astype("<i8").tobytes(),
}


@pytest.mark.parametrize("dtype", OUTPUT_DTYPES)
def test_every_dtype_is_read(dtype: str) -> None:
    wanted = OutputTensor("output", dtype, (2,))
    (array,) = read_outputs({"output": RawOutput(dtype, (2, 2), WIRE[dtype])}, [wanted])
    if dtype.startswith("INT"):
        assert array.tolist() == COUNTS.tolist()
    else:
        assert array.dtype == np.float32
        assert array.tolist() == VALUES.tolist()


@pytest.mark.parametrize(
    "found",
    [
        {},
        {"output": RawOutput("FP16", (2, 2), WIRE["FP16"])},
        {"output": RawOutput("FP32", (3, 2), WIRE["FP32"])},
        {"output": RawOutput("FP32", (2, 2), WIRE["FP32"][:-1])},
        {"output": RawOutput("FP32", (1, 1), np.array(np.nan, np.float32).tobytes())},
    ],
    ids=["missing", "dtype", "shape", "cut short", "not a number"],
)
def test_another_output_is_the_engines_fault(found: dict[str, RawOutput]) -> None:
    with pytest.raises(ServingError) as caught:
        read_outputs(found, [OutputTensor("output", "FP32", (2,))])
    assert caught.value.kind.code == "engine_failed"
