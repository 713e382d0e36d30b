"""The GPUs that proofs are of, also where nvidia-smi fails: as another machine this one would prove
anew all that it serves, with a second copy of each on a GPU that may be ill.

Tested by tests/engine/test_proofs.py.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Mapping
from pathlib import Path

from transformer_serving.contract.gate.server_facts import NO_DEVICE, Gpu, ask_gpus
from transformer_serving.engine.controller.proving.proofs import Proofs
from transformer_serving.engine.errors import EngineError

_log = logging.getLogger(__name__)
# Anew at each start of the machine, the same in all its containers.
_BOOT = Path("/proc/sys/kernel/random/boot_id")
# Where nothing keeps the driver loaded, nvidia-smi loads it first, for each GPU of the machine.
_SMI_S = 60.0
# Where it has named them since the start of the machine: until it answers nothing is loaded, also
# of what a Triton that crashed has lost.
_KNOWN_S = 10.0
# Of an nvidia-smi that fails at once, before it is taken for one that always does.
_PATIENCE_S = 5.0
# Not the same as none: an engine that found a GPU answers otherwise than one on the processor.
UNKNOWN = Gpu("GPUs that nvidia-smi does not tell", "", "")


class Gpus:
    """Kept with the proofs, for as long as the machine runs: another one, and another driver, come
    with a start of the machine."""

    def __init__(self, proofs: Proofs) -> None:
        self._proofs = proofs
        self._boot = _boot()
        self._failing_since: float | None = None

    def read(self, environment: Mapping[str, str]) -> tuple[Gpu, ...]:
        """Those that nvidia-smi names with these variables, else those that it named before, else
        UNKNOWN. Raises EngineError where it is to be asked again first."""
        before, begun = self._proofs.gpus(self._boot), time.monotonic()
        asked = ask_gpus(environment, patience_s=_KNOWN_S if before else _SMI_S)
        found = asked.gpus
        if asked.status not in (0, NO_DEVICE):
            # None before says nothing: where it now fails, there may be some by now.
            found = before or self._unknown(asked.why, begun)
            _log.warning("%s; proofs are of %s", asked.why, ", ".join(gpu.name for gpu in found))
        self._failing_since = None
        self._proofs.keep_gpus(found, self._boot)
        return found

    def _unknown(self, why: str, begun: float) -> tuple[Gpu, ...]:
        if self._failing_since is None:
            self._failing_since = begun
        if time.monotonic() - self._failing_since < _PATIENCE_S:
            raise EngineError(f"{why}; asked again, as proofs are of its GPUs")
        return (UNKNOWN,)


def _boot() -> str:
    """Where the kernel does not say it, one of this process alone: '' would be that of any."""
    try:
        return _BOOT.read_text("ascii").strip()
    except (OSError, ValueError):
        return secrets.token_hex(16)
