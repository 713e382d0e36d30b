"""How long a container has from SIGTERM until it is killed, as its processes are told.

Tested by tests/gateway/test_shutdown.py and tests/engine/test_container.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from transformer_serving.contract.settings.setting import Setting


@dataclass(frozen=True)
class _Digits(Setting):
    """Others put a unit behind the text: HAProxy's configuration takes digits before it alone."""

    is_whole: bool = True

    @property
    def pattern(self) -> str:
        return "^[0-9]*$"


# Of compose, which also gives it to Docker; a pod's grace is computed by the chart.
STOP_SECONDS = _Digits(
    "TRANSFORMER_SERVING_STOP_SECONDS",
    "60",
    1,
    86_400,
    "Whole seconds from SIGTERM until Docker kills a container, of inference, Triton and balancer.",
)
# Triton also waits that long for its clients to close their connections, which kept ones never do.
TRITON_EXIT_SECONDS = Setting(
    "TRANSFORMER_SERVING_TRITON_EXIT_SECONDS",
    "10",
    0.01,
    86_400,
    "Seconds that calls and streams in a Triton still have after SIGTERM. Every stop takes "
    "that long, as workers keep their connections.",
)


def refuse_a_stop_that_does_not_fit(
    environment: Mapping[str, str], taken: Mapping[str, float], beside: float
) -> None:
    """`taken`: seconds after SIGTERM by the setting that says so; `beside` what none says.

    Raises ValueError naming both. Where nobody says when it is killed, everything fits.
    """
    if not environment.get(STOP_SECONDS.name):
        return
    stop, needed = STOP_SECONDS.number(environment), sum(taken.values()) + beside
    if needed > stop:
        parts = " and ".join(f"{name} ({seconds:g})" for name, seconds in taken.items())
        raise ValueError(
            f"{parts} and {beside:g} s to leave are more than {STOP_SECONDS.name} ({stop:g}), "
            f"after which the container is killed: set that to {math.ceil(needed)} or more"
        )
