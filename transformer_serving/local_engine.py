"""The built engine file, run on this machine: token rows in, float32 rows out.

For parity only. It pads as the endpoint pads (to buckets, with the endpoint's padding), so what is
compared is what will be served.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from contract.endpoint import Tokens
from engine.backends.precision import openvino_properties
from transformer_serving.model_source import ModelSource
from transformer_serving.optimize import EngineFiles

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Call = Callable[[Mapping[str, NDArray[np.int32]]], NDArray[np.float32]]


@dataclass(frozen=True)
class TokenRow:
    """One text as the tokenizer gave it, cut at the endpoint's max_length."""

    ids: Sequence[int]
    type_ids: Sequence[int]


def tokenize(source: ModelSource, texts: Sequence[str], max_length: int) -> list[TokenRow]:
    """Token rows of `texts`, by the tokenizer file that goes into the bundle."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_buffer(source.tokenizer.content)
    tokenizer.enable_truncation(max_length)
    return [TokenRow(row.ids, row.type_ids) for row in tokenizer.encode_batch(list(texts))]


def open_engine(files: EngineFiles) -> Call:
    """A function from padded int32 [batch, tokens] inputs by name to float32 [batch, width]."""
    return _OPENERS[files.engine](files)


def run_rows(
    call: Call, rows: Sequence[TokenRow], tokens: Tokens, inputs: Sequence[str]
) -> NDArray[np.float32]:
    """One call of the engine with `rows` padded to the smallest bucket that holds them all."""
    return call(pad(rows, tokens, inputs))


def pad(
    rows: Sequence[TokenRow], tokens: Tokens, inputs: Sequence[str]
) -> dict[str, NDArray[np.int32]]:
    """The engine's inputs by name, int32 [len(rows), bucket]."""
    import numpy as np

    longest = max(len(row.ids) for row in rows)
    shape = (len(rows), next(size for size in tokens.buckets if size >= longest))
    padded = {
        "input_ids": np.full(shape, tokens.pad_id, np.int32),
        "token_type_ids": np.full(shape, tokens.pad_type_id, np.int32),
        "attention_mask": np.zeros(shape, np.int32),
    }
    for index, row in enumerate(rows):
        size = len(row.ids)
        start = 0 if tokens.padding_side == "right" else shape[1] - size
        place = slice(start, start + size)
        padded["input_ids"][index, place] = row.ids
        padded["token_type_ids"][index, place] = row.type_ids
        padded["attention_mask"][index, place] = 1
    return {name: padded[name] for name in inputs}


def _open_openvino(files: EngineFiles) -> Call:
    from engine.backends.openvino_quiet import openvino

    core = openvino.Core()
    properties = openvino_properties(
        files.precision,
        capabilities=core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"),
        threads=len(os.sched_getaffinity(0)),
    )
    compiled = core.compile_model(str(files.files[0]), "CPU", properties)

    def call(inputs: Mapping[str, NDArray[np.int32]]) -> NDArray[np.float32]:
        return _float32(compiled(dict(inputs))[0])

    return call


def _open_onnxruntime(files: EngineFiles) -> Call:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(files.files[0]), providers=["CPUExecutionProvider"])

    def call(inputs: Mapping[str, NDArray[np.int32]]) -> NDArray[np.float32]:
        return _float32(session.run(None, dict(inputs))[0])

    return call


def _float32(values: Any) -> NDArray[np.float32]:
    import numpy as np

    return np.array(values, dtype=np.float32)


_OPENERS: dict[str, Callable[[EngineFiles], Call]] = {
    "openvino": _open_openvino,
    "onnxruntime": _open_onnxruntime,
}
