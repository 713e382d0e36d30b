"""A Triton model of the Python backend: texts to padded token ids, for a Triton without ClearML.

Stands alone: Triton loads this file, with tokenizer.json beside it and its settings in the
parameters 'tokens' and 'prompt' of config.pbtxt. It needs numpy 1 and tokenizers. Its time is
Triton's to bear: where ClearML Serving is there, preprocess does this in the scaled inference
container.

Tested by tests/engine/test_tokenizer_model.py and tests/deploy/test_plain_triton.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as triton
from tokenizers import Tokenizer


class TritonPythonModel:
    """Input 'text', BYTES [texts, 1]; outputs [texts, tokens] by role."""

    def initialize(self, args: dict[str, str]) -> None:
        if not np.__version__.startswith("1."):
            # Under numpy 2 that stub gives the first byte of a text in place of all of them.
            raise triton.TritonModelException(
                f"numpy {np.__version__} is installed, and the Python stub of this server was "
                "built for numpy 1; install 'numpy<2' and tokenizers in an environment of "
                "their own and lay the repository out again with --python-environment"
            )
        config = json.loads(args["model_config"])
        self._tokens = json.loads(config["parameters"]["tokens"]["string_value"])
        self._prompt = config["parameters"]["prompt"]["string_value"]
        self._outputs = {
            output["name"]: np.int64 if output["data_type"] == "TYPE_INT64" else np.int32
            for output in config["output"]
        }
        folder = Path(args["model_repository"]) / args["model_version"]
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = self._tokens["split_special_tokens"]
        # Cut one token late: what is longer than the model takes must be seen to be refused.
        allowed = self._tokens["max_length"]
        self._tokenizer.enable_truncation(
            allowed if self._tokens["truncate"] else allowed + 1,
            direction=self._tokens["truncation_side"],
        )

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        rows = triton.get_input_tensor_by_name(request, "text").as_numpy()
        try:
            texts = [self._prompt + bytes(row).decode("utf-8") for row in rows.reshape(-1)]
        except UnicodeDecodeError:
            return self._refusal("input 'text' is not UTF-8")
        encodings = self._tokenizer.encode_batch(texts)
        fault = self._fault(encodings)
        if fault is not None:
            return self._refusal(fault)
        longest = max((len(encoding.ids) for encoding in encodings), default=0)
        length = next(size for size in self._tokens["buckets"] if size >= longest)
        arrays = self._padded(encodings, length)
        return triton.InferenceResponse(
            [triton.Tensor(name, arrays[name].astype(kind)) for name, kind in self._outputs.items()]
        )

    def _fault(self, encodings: list[Any]) -> str | None:
        """Why the engine is not asked, which would answer wrong or fail all that it joins."""
        allowed, known = self._tokens["max_length"], self._tokens["known_ids"]
        for encoding in encodings:
            if len(encoding.ids) > allowed:
                return f"a text has more than {allowed} tokens; send a shorter one"
            if not encoding.ids:
                return "a text has no tokens, so the model has nothing to read"
            if known is not None and max(encoding.ids) >= known:
                return f"a text has a token beyond the {known} that the model knows; leave it out"
        return None

    def _padded(self, encodings: list[Any], length: int) -> dict[str, Any]:
        shape = (len(encodings), length)
        arrays = {
            "input_ids": np.full(shape, self._tokens["pad_id"], np.int32),
            "token_type_ids": np.full(shape, self._tokens["pad_type_id"], np.int32),
            "attention_mask": np.zeros(shape, np.int32),
        }
        for row, encoding in enumerate(encodings):
            size = len(encoding.ids)
            start = 0 if self._tokens["padding_side"] == "right" else length - size
            arrays["input_ids"][row, start : start + size] = encoding.ids
            arrays["token_type_ids"][row, start : start + size] = encoding.type_ids
            arrays["attention_mask"][row, start : start + size] = 1
        return arrays

    @staticmethod
    def _refusal(message: str) -> Any:
        error = triton.TritonError(message, triton.TritonError.INVALID_ARG)
        return triton.InferenceResponse(output_tensors=[], error=error)
