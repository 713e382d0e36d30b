"""The gate of the desk: a bundle is measured against the version lock when written and deployed."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from transformer_serving.contract.endpoint import Endpoint
from transformer_serving.contract.gate.refusals import refusals
from transformer_serving.contract.gate.server_facts import CAPABILITY_VARIABLE
from transformer_serving.contract.manifest import Manifest
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.versions.lock import read_lock

# A bundle that was written just now has the files of its manifest.
ON_WRITING = (
    *("kit", "plan", "onnx", "openvino", "vllm", "torch", "names", "configuration", "labels"),
)


def pass_gate(
    manifest: Manifest, folder: Path, endpoint: Endpoint, checks: tuple[str, ...] = ()
) -> None:
    """Raises Failure (exit code 2) with the first reason why the pinned server cannot serve it.

    The servers' GPU is known here only where the environment names its compute capability.
    """
    # Late: it brings Triton's client, which few commands need.
    from transformer_serving.engine.bundle_config import config_faults

    capability = os.environ.get(CAPABILITY_VARIABLE) or None
    facts = replace(read_lock().facts(manifest.engine), compute_capability=capability)
    found = refusals(manifest, folder, facts, config_faults, endpoint=endpoint, checks=checks)
    for refusal in found:
        raise Failure(f"{folder} is no valid bundle: {refusal.message}", exit_code=2)
