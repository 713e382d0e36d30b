"""`python -m transformer_serving.engine.image_backends FOLDER`: ours beside the image's own.

Not onnxruntime: it and tensorrt are native there, and a native library wins over a model.py of the
same name.
"""

from __future__ import annotations

import sys
from pathlib import Path

from transformer_serving.engine.backend_directory import add_backend
from transformer_serving.engine.errors import EngineError

BACKENDS = ("openvino_text", "torch_text", "openvino_generate")


def main() -> None:
    arguments = sys.argv[1:]
    if len(arguments) != 1 or arguments[0].startswith("-"):
        sys.exit("usage: python -m transformer_serving.engine.image_backends FOLDER")
    try:
        for backend in BACKENDS:
            add_backend(Path(arguments[0]), backend)
    except EngineError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
