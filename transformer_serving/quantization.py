"""int8: dynamic for ONNX Runtime, post-training with calibration rows for OpenVINO."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_serving.refusal import ConversionRefused

if TYPE_CHECKING:
    from transformer_serving.calibration import Feeds


def write_dynamic_int8(graph: Path, target: Path) -> None:
    """Weights in int8, activations quantized as they come; no calibration is needed.

    A scale for each column: one for the whole matrix costs twice the error and saves nothing.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with _quiet():
        quantize_dynamic(
            str(graph),
            str(target),
            per_channel=True,
            weight_type=QuantType.QInt8,
            extra_options={"MatMulConstBOnly": True},
        )


def quantized_openvino(model: Any, feeds: Feeds) -> Any:
    """The OpenVINO model with int8 layers, their ranges taken from `feeds`.

    Raises ConversionRefused where NNCF is not installed.
    """
    if importlib.util.find_spec("nncf") is None:
        raise ConversionRefused(
            "int8 for OpenVINO needs nncf; install it: pip install 'transformer-serving[convert]'"
        )
    with _quiet():
        import nncf

        nncf.set_log_level(logging.ERROR)
        return nncf.quantize(
            model,
            nncf.Dataset([dict(feed) for feed in feeds]),
            model_type=nncf.ModelType.TRANSFORMER,
            subset_size=len(feeds),
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the tools' advice and progress bars."""
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)
    try:
        yield
    finally:
        root.setLevel(level)
