"""What a rollout's candidate takes beside the bundle that serves, and whether there is so much.

Tested by tests/deploy/test_rollout.py and tests/deploy/test_rollout_refused.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import psutil

from transformer_serving.desk.bundle.folder import Bundle
from transformer_serving.desk.deploy.target import DeployTarget
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.step_report import StepReport

_MB = 1_000_000


@dataclass(frozen=True)
class Cost:
    """What a candidate takes; `free` is this machine's memory, None where Triton is elsewhere.

    `mirror` is the share of a worker's time for mirrored requests; in a `shadow` the endpoint never
    changes over.
    """

    candidate: str
    endpoints: int
    engine: int
    free: int | None
    mirror: float = 0.0
    shadow: bool = False

    @property
    def says(self) -> str:
        free = "" if self.free is None else f"; {self.free // _MB:,} MB are free here"
        twice = "" if self.shadow else ", twice that while the endpoint changes over"
        return (
            f"the candidate is an endpoint of its own, {self.candidate}, number "
            f"{self.endpoints + 1} of the service, with {max(1, self.engine // _MB):,} MB or more "
            f"for its engine in each Triton{twice}{free}; {self._mirrored}"
        )

    @property
    def needed(self) -> int:
        """Bytes, of what is known beforehand."""
        return self.engine if self.shadow else 2 * self.engine

    @property
    def _mirrored(self) -> str:
        if not self.mirror:
            return "no requests are mirrored, and answers are not compared"
        both = " of both bundles" if self.shadow else ""
        return (
            f"mirrored requests{both} take {100 * self.mirror:g} % of each worker's time at most, "
            f"one at a time and only while none waits"
        )


def afforded(cost: Cost, tell: StepReport) -> None:
    tell(cost.says)
    if cost.free is not None and cost.free < cost.needed:
        raise Failure("there is too little memory for a candidate; nothing was begun", exit_code=2)


def engine_bytes(bundle: Bundle) -> int:
    return sum(entry.size for entry in bundle.manifest.files if entry.path.startswith("model/"))


def free_bytes(target: DeployTarget) -> int | None:
    return None if target.triton is None else int(psutil.virtual_memory().available)
