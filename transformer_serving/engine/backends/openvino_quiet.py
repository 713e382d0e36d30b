"""The openvino package without its usage reports: import it from here, and before anything else.

openvino sends them to a server on the internet, from forks of its process, which break that
process's gRPC connections. Where the reporting package is missing it does neither.

Tested by tests/engine/test_backends.py.
"""

from __future__ import annotations

import sys

sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]

import openvino  # noqa: E402

__all__ = ["openvino"]
