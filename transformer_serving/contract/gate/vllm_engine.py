"""Whether a server's Triton can run a bundle of engine vllm, and whether the bundle may be run.

Tested by tests/contract/test_vllm_gate.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from transformer_serving.contract.errors import ContractError
from transformer_serving.contract.gate.release import older
from transformer_serving.contract.gate.server_facts import ServerFacts
from transformer_serving.contract.vllm.arguments import FILE_NAME, check_arguments

# From there on the backend tells finish reasons, counts and tokens.
FIRST_TRITON, FIRST_RELEASE = "2.53.0", "24.12"


def vllm_faults(folder: Path, names: Sequence[str], server: ServerFacts) -> Iterator[str]:
    """Why the bundle must not be loaded; `folder` has its model files, `names` are the manifest's
    of them."""
    if server.triton is not None and older(server.triton, FIRST_TRITON):
        yield (
            f"the bundle's engine is vllm, which needs Triton {FIRST_TRITON} or newer (release "
            f"{FIRST_RELEASE}), and {server.name} has {server.triton}; serve it with the vLLM "
            "image of versions.toml (docker compose with -f compose/vllm.yaml, or move the pin of "
            "[vllm_image]), or convert again with --engine openvino"
        )
    if FILE_NAME not in names:
        yield f"the manifest's engine is vllm, and it lists no {FILE_NAME}; convert again"
        return
    path = folder / FILE_NAME
    if not path.is_file():
        return
    try:
        check_arguments(path.read_bytes())
    except ContractError as error:
        yield f"{error}; convert again"
