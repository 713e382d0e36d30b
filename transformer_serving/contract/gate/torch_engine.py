"""Whether a server's Triton can run a bundle of engine torch, and whether the bundle may be run.

Tested by tests/contract/test_torch_gate.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from transformer_serving.contract.errors import ContractError
from transformer_serving.contract.gate.release import parts
from transformer_serving.contract.gate.server_facts import MISSING, ServerFacts
from transformer_serving.contract.torch_program.program import (
    GRAPH,
    PACKAGES,
    WEIGHTS,
    read_program,
)


def torch_faults(folder: Path, names: Sequence[str], server: ServerFacts) -> Iterator[str]:
    """Why the bundle must not be loaded; `folder` has its model files, `names` are the manifest's
    of them."""
    if server.torch == MISSING:
        yield (
            f"the bundle's engine is torch, and {server.name} has no PyTorch; install it where "
            f"Triton runs: pip install {PACKAGES}, or convert again with another --engine"
        )
    for name in (GRAPH, WEIGHTS):
        if name not in names:
            yield f"the manifest's engine is torch, and it lists no {name}; convert again"
    path = folder / GRAPH
    if path.is_file():
        yield from _program_faults(path, server)


def _program_faults(path: Path, server: ServerFacts) -> Iterator[str]:
    try:
        made_by = read_program(path.read_bytes()).torch
    except ContractError as error:
        yield str(error)
        return
    # Graphs are for the release that wrote them: PyTorch promises nothing to another one.
    if server.torch and parts(server.torch)[:2] != parts(made_by)[:2]:
        yield (
            f"the program was exported by PyTorch {made_by}, and {server.name} has {server.torch}; "
            "convert again where that is installed, or install PyTorch "
            f"{'.'.join(map(str, parts(made_by)[:3]))} where Triton runs"
        )
