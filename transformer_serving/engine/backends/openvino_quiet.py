"""The openvino package without its usage reports: import it from here, and before anything else.

openvino sends them to a server on the internet, from forks of its process, which break that
process's gRPC connections. Where the reporting package is missing it does neither.

Tested by tests/engine/test_backends.py and tests/builders/test_signal_stack.py.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

from transformer_serving.contract.error_line import in_ascii
from transformer_serving.engine.backends.model_settings import ModelError

sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]

import openvino  # noqa: E402
from openvino.frontend import FrontEndManager  # noqa: E402

__all__ = ["cause_of", "check_ir", "core", "openvino"]


@cache
def core() -> openvino.Core:
    """The process's one core, which stays as long as the process.

    Each gives its thread a signal stack, and the last one's back at its end. Where two end in the
    order of their start, the thread is left with the first one's, which is unmapped, and the next
    signal that Python handles is a segmentation fault (OpenVINO 2026.4.1).
    """
    return openvino.Core()


def check_ir(path: Path) -> None:
    """Raises ModelError for an .xml that another reader than OpenVINO's own takes: core() asks all,
    whatever the name, and of bundles nobody has looked at what the others would do."""
    reader = FrontEndManager().load_by_model(str(path))
    if reader is None or reader.get_name() != "ir":
        raise ModelError(
            f"model file '{path.name}' cannot be loaded: it is not OpenVINO's own format; convert "
            "again"
        )


def cause_of(error: Exception) -> str:
    """The last line of OpenVINO's message, in ASCII; the others are places in its code."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return in_ascii((lines or [type(error).__name__])[-1])
