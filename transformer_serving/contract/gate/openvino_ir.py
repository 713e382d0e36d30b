"""Whether a file that OpenVINO opens is its own format, which is XML.

OpenVINO asks all its readers, whatever the name. That of ONNX takes a weight from a place in the
memory of its process, where the file says so; no other reader takes what begins as XML.

Tested by tests/contract/test_gate.py and tests/engine/test_backends.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

# No blank before it: a newline is the beginning of a TensorFlow graph.
_BEGINS = b"<"


def ir_faults(path: Path, name: str) -> Iterator[str]:
    """Why the file must not be loaded; `name` is the manifest's of it."""
    with path.open("rb") as file:
        if file.read(len(_BEGINS)) != _BEGINS:
            yield f"'{name}' does not begin as XML, as OpenVINO's own files do; convert again"
