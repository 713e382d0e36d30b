"""A traced decoder with its keys and values as state: the form that paged attention is made from.

Tested by tests/test_language_model.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from transformer_serving.engine.backends.openvino_quiet import openvino

# Only after openvino_quiet.
from openvino import opset13  # isort: skip
from openvino._offline_transformations import (  # isort: skip
    apply_make_stateful_transformation,
)

_IDS = ("input_ids", "attention_mask", "position_ids")


def make_stateful(model: Any, layers: int, heads: int, width: int) -> None:
    """Turn inputs and outputs of past keys and values into state, in place.

    The model has ids, mask and positions [texts, tokens] and then of each layer keys and values
    [texts, `heads`, tokens, `width`] as inputs; logits and then the same as outputs. Left are the
    first three, `beam_idx` [texts] and `logits`.
    """
    past = [f"past_key_values.{at}.{kind}" for at, kind in _pairs(layers)]
    present = [f"present.{at}.{kind}" for at, kind in _pairs(layers)]
    for port, name in zip(model.inputs, (*_IDS, *past), strict=True):
        free = [-1, heads, -1, width] if name in past else [-1, -1]
        node = port.get_node()
        node.set_partial_shape(openvino.PartialShape(free))
        if name not in past:
            node.set_element_type(openvino.Type.i64)
        port.get_tensor().set_names({name})
    for port, name in zip(model.outputs, ("logits", *present), strict=True):
        port.get_tensor().set_names({name})
    model.validate_nodes_and_infer_types()
    _add_beams(model, past)
    apply_make_stateful_transformation(model, dict(zip(past, present, strict=True)))
    _start_empty(model, heads, width)
    model.validate_nodes_and_infer_types()


def _pairs(layers: int) -> Iterator[tuple[int, str]]:
    return ((at, kind) for at in range(layers) for kind in ("key", "value"))


def _add_beams(model: Any, past: list[str]) -> None:
    """The input `beam_idx` and a Gather behind each state, which the matchers look for."""
    beams = opset13.parameter(openvino.PartialShape([-1]), openvino.Type.i32, name="beam_idx")
    beams.output(0).get_tensor().set_names({"beam_idx"})
    model.add_parameters([beams])
    for name in past:
        port = model.input(name)
        users = port.get_target_inputs()
        gathered = opset13.gather(port, beams, opset13.constant(0))
        for user in users:
            user.replace_source_output(gathered.output(0))
    model.validate_nodes_and_infer_types()


def _start_empty(model: Any, heads: int, width: int) -> None:
    """Each state begins as [texts, heads, 0, width]."""
    ids = opset13.shape_of(model.input("input_ids"), output_type="i64")
    texts = opset13.gather(ids, opset13.constant([0]), opset13.constant(0))
    sizes = (opset13.constant([size], dtype=np.int64) for size in (heads, 0, width))
    shape = opset13.concat([texts, *sizes], axis=0)
    for operation in model.get_ops():
        if operation.get_type_name() == "ReadValue":
            zero = opset13.constant(0.0, dtype=operation.get_output_element_type(0))
            operation.set_arguments([opset13.broadcast(zero, shape)])
