"""Refuses a Triton image that is not the pinned one, when it is built and when it starts.

`python -m transformer_serving.engine.image_pin` ends with 1 and the reason. The pin comes from
the image's own variables, which docker/triton/Dockerfile takes from versions.toml.

Tested by tests/engine/test_container.py.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from transformer_serving.contract.gate.server_facts import TENSORRT_VARIABLE, TRITON_VARIABLE

PINNED_TRITON = "TRANSFORMER_SERVING_PIN_TRITON"
PINNED_TENSORRT = "TRANSFORMER_SERVING_PIN_TENSORRT"


def difference(environment: Mapping[str, str]) -> str | None:
    """What differs from the pin and what to do; None when nothing does.

    An image without TensorRT, for CPU alone, says nothing of it and is taken.
    """
    pairs = (
        ("Triton", PINNED_TRITON, TRITON_VARIABLE),
        ("TensorRT", PINNED_TENSORRT, TENSORRT_VARIABLE),
    )
    for what, pin, stated in pairs:
        wanted, found = environment.get(pin, ""), environment.get(stated, "")
        if what == "Triton" and not found:
            return (
                f"{stated} is not set: this is no image of NVIDIA's Triton; build on the pinned one"
            )
        if wanted and found and found.split("+")[0] != wanted:
            return (
                f"{what} {found} is not the pinned {wanted}; build on the image of versions.toml, "
                "or move the pin in a checkout and build again: transformer-serving versions use "
                "RELEASE"
            )
    return None


def refuse_difference() -> None:
    reason = difference(os.environ)
    if reason is not None:
        sys.exit(f"error: {reason}")


if __name__ == "__main__":
    refuse_difference()
