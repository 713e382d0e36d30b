"""How many tokens a program has positions for, where its texts look them up in a table.

Beyond a table the lookup of a GPU ends the process, with everybody's calls.

Tested by tests/engine/test_text_places.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.fx import Node

from transformer_serving.engine.backends.exported_program import EMBEDDING, LoadedProgram
from transformer_serving.engine.backends.packed.graph_parts import Parts

# Whichever id a model has for padding, one of these is another: padding moves no position.
_IDS = (1, 2)


def places_of(loaded: LoadedProgram) -> int | None:
    """The most tokens whose positions lie in their tables whatever the tokens are; None where no
    table bounds them."""
    nodes = loaded.module.graph.nodes
    inputs = [node for node in nodes if node.op == "placeholder"]
    names = (tensor.name for tensor in loaded.program.inputs)
    parts = Parts(loaded.module, dict(zip(inputs, names, strict=True)))
    rows: dict[Node, int] = {}
    for node in nodes:
        if node.op == "call_function" and str(node.target) == EMBEDDING:
            table, source = node.args[0], node.args[1]
            if source not in inputs:
                size = int(table.meta["val"].shape[0])
                rows[source] = min(size, rows.get(source, size))
    found = [places for source, size in rows.items() for places in _places(parts, source, size)]
    return min(found, default=None)


def _places(parts: Parts, source: Node, rows: int) -> Iterator[int]:
    module = parts.until(source)
    for id_ in _IDS:
        try:
            row = parts.row_of(module, rows + 1, id_)
        except (RuntimeError, IndexError):
            # It stops by itself at a text of this length, as on any device.
            continue
        if row is None:
            continue
        outside = (row < 0) | (row >= rows)
        # What is outside at once is no position: it is the id itself, in a table of something else.
        if torch.any(outside) and not outside[0]:
            yield int(torch.argmax(outside.int()))
