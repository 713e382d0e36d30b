"""Operators that look at each text or token by itself.

Tested by tests/engine/test_packed_graph.py.
"""

from __future__ import annotations

from torch.fx import Node

from transformer_serving.engine.backends.packed.graph_sizes import Sizes, argument, listed, rank


def _names(*names: str) -> frozenset[str]:
    return frozenset(f"aten.{name}" for name in names)


# Each value by itself.
POINTWISE = _names(
    "add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "neg.default", "gelu.default",
    "relu.default", "tanh.default", "sigmoid.default", "silu.default", "erf.default",
    "to.dtype", "to.dtype_layout", "to.device", "_to_copy.default", "clone.default",
    "contiguous.default", "alias.default", "pow.Tensor_Scalar", "sqrt.default", "rsqrt.default",
    "clamp.default", "clamp_min.default", "expand_as.default", "dropout.default",
)  # fmt: skip
# Over the last axis, which is neither the texts' nor the tokens'.
_LAST = _names("linear.default", "layer_norm.default", "matmul.default")
# By the place of the argument that names its axes.
_AXES = {
    f"aten.{name}": place
    for name, place in {
        "softmax.int": 1, "cat.default": 1, "stack.default": 1, "select.int": 1, "slice.Tensor": 1,
        "squeeze.dim": 1, "split.Tensor": 2, "chunk.default": 2, "mean.dim": 1,
        "sum.dim_IntList": 1, "linalg_vector_norm.default": 2,
    }.items()
}  # fmt: skip
_MOVES = _names("transpose.int", "permute.default", "unsqueeze.default")
VIEWS = _names("view.default", "reshape.default", "expand.default", "_unsafe_view.default")
_ITEM = "<built-in function getitem>"
# Whose axis is one of the result.
_MAKES_AXIS = _names("stack.default")


def stays(node: Node, sizes: Sizes) -> bool:
    """Whether the operator leaves texts and tokens where they are, and mixes none."""
    name, first, axes = str(node.target), node.all_input_nodes[0], sizes.axes
    if name in POINTWISE or name in _MOVES or name == _ITEM:
        return True
    if name in _LAST:
        return all(axis < rank(first) - 1 for axis in axes(first))
    if name in VIEWS:
        return all(axes(one) in ([0, 1], [0]) for one in (first, node))
    if name not in _AXES:
        return False
    of = node if name in _MAKES_AXIS else first
    named = listed(argument(node, _AXES[name], 0))
    return not {axis % rank(of) for axis in named} & set(axes(of))
