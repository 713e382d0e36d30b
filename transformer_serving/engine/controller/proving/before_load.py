"""A version's proof before it is loaded, whose refusal says what serves instead and what to do.

Tested by tests/engine/test_deployment.py and tests/stack/test_proof.py.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable

from transformer_serving.contract.stack_line import stack_line
from transformer_serving.engine.controller.proving.prover import ProofFailed, Prover
from transformer_serving.engine.controller.records import ModelRecord, Version
from transformer_serving.engine.controller.triton.server import Triton


def prove_before_load(
    prover: Prover,
    triton: Triton,
    version: Version,
    model: str,
    record: ModelRecord | None,
    begins: Callable[[], None],
) -> None:
    """`record` is what serves by now, where anything does. Raises as Prover.require does."""
    try:
        prover.require(model, version, begins)
    except ProofFailed as failure:
        raise ProofFailed(
            f"bundle {version.bundle_version} is not served: {failure}; "
            f"{_instead(triton, record)}; convert it again on this kind of processor, or with a "
            "safer --precision, and deploy that",
            version,
        ) from None


def _instead(triton: Triton, record: ModelRecord | None) -> str:
    """What serves where the new version does not."""
    if record is None or record.current.number not in triton.loaded().get(record.model, ()):
        return "nothing is served"
    if record.current.bundle_version is None:
        return "what was served before serves on"
    back = stack_line(f"rollback {shlex.quote(record.endpoint)}")
    return (
        f"bundle {record.current.bundle_version} serves on, and '{back}' asks for it again "
        "(after a rollback: 'transformer-serving deploy')"
    )
