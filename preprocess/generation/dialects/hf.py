"""The Hugging Face Inference API: POST /hf/NAME, with the prompt in the answer as it has it.

Tested by tests/preprocess/generation/test_voices.py.
"""

from __future__ import annotations

from typing import Any

from preprocess.dialects.operation import Asked
from preprocess.generation.dialects import tgi


def read(asked: Asked) -> dict[str, Any]:
    """Its text-generation is TGI's root; `options`, about loading, is what that passes over."""
    return tgi.read_root(asked, full_text=True)
