"""Adds our backend to the image's own: `python -m engine.image_backends FOLDER`.

Only openvino_text: onnxruntime and tensorrt are native there, and a native library wins over a
model.py of the same name.
"""

from __future__ import annotations

import sys
from pathlib import Path

from engine.backend_directory import add_backend
from engine.errors import EngineError

BACKEND = "openvino_text"


def main() -> None:
    try:
        add_backend(Path(sys.argv[1]), BACKEND)
    except EngineError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
