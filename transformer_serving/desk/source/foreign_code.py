"""Code that comes with a model, by its files: it is never run, and transformers' own class of the
same type may compute something else without a word. A reference by that class would agree.

Tested by tests/source/test_foreign_code.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from transformer_serving.contract.error_line import one_line
from transformer_serving.desk.failure import ConversionRefused
from transformer_serving.desk.source.json_files import read_json

# What a head's weights are loaded by. A causal language model's is not among them: Phi-3 and others
# come with code that is the same as transformers' own, and text shows where it is not.
_CLASSES = {
    "sequence": "AutoModelForSequenceClassification",
    "tokens": "AutoModelForTokenClassification",
    "spans": "AutoModelForQuestionAnswering",
    "masks": "AutoModelForMaskedLM",
    "vector": "AutoModel",
    "token_vectors": "AutoModel",
}
_OWN_ACTIVATIONS = "torch."
_TOKENIZER_FILE = "tokenizer_config.json"


def refuse_own_model(folder: Path, head: str) -> None:
    """Raises ConversionRefused for a model that has a class of its own for `head`."""
    name = _CLASSES[head]
    if _own(folder / "config.json", name):
        raise ConversionRefused(
            f"config.json's auto_map names code of the model's own for {name}, and models with "
            "code of their own are not loaded; where transformers' own class for its model_type "
            "computes the same, take auto_map out of the config.json of a copy of the folder"
        )


def refuse_own_tokenizer(folder: Path) -> None:
    """Raises ConversionRefused for a tokenizer that has a class of its own."""
    if _own(folder / _TOKENIZER_FILE, "AutoTokenizer"):
        raise ConversionRefused(
            f"the tokenizer of '{folder.name}' cannot be loaded: {_TOKENIZER_FILE}'s auto_map "
            "names code of its own, which is not run; where the tokenizer.json beside it makes "
            "the same tokens, take auto_map out of a copy of the folder"
        )


def refuse_own_activation(dense: Iterable[Mapping[str, Any]]) -> None:
    """Raises ConversionRefused for a Dense, by its config.json, whose activation is none of torch's
    own: sentence-transformers takes Tanh in its place, with no more than a warning."""
    for config in dense:
        written = config.get("activation_function", _OWN_ACTIVATIONS)
        if not str(written).startswith(_OWN_ACTIVATIONS):
            raise ConversionRefused(
                f"a Dense of modules.json has the activation_function '{one_line(written, 120)}' "
                "in its config.json, which is none of torch's own and is not run; where one of "
                "torch.nn computes the same, name that in a copy of the folder"
            )


def _own(path: Path, name: str) -> bool:
    written: Any = (read_json(path) or {}).get("auto_map")
    # A tokenizer's used to be the list of its two classes alone.
    found = written.get(name) if isinstance(written, Mapping) else written
    return any(found) if isinstance(found, list) else bool(found)
