"""The Hugging Face Inference API: POST /hf/NAME, with the prompt in the answer as it has it.

Tested by tests/preprocess/generation/test_voices.py.
"""

from __future__ import annotations

from typing import Any

from preprocess.dialects.operation import Asked
from preprocess.generation.dialects import tgi


def read(asked: Asked) -> dict[str, Any]:
    """Its text-generation is TGI's root. `options` is about loading, which there is none of."""
    body = asked.body
    if isinstance(body, dict) and "options" in body:
        body = {name: value for name, value in body.items() if name != "options"}
    return tgi.read_root(asked._replace(body=body), full_text=True)
