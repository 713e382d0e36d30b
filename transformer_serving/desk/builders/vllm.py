"""A bundle's files for vLLM: the model's own Hugging Face folder, as far as vLLM reads it.

Nothing of it is code, and no weights are pickles: what the folder has beside these stays behind.

Tested by tests/test_vllm_bundle.py.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformer_serving.contract.vllm.arguments import FILE_NAME, arguments_of
from transformer_serving.desk.builders.files import EngineFiles
from transformer_serving.desk.failure import ConversionRefused
from transformer_serving.desk.source.json_files import read_json
from transformer_serving.desk.source.language_model import LanguageModelSource
from transformer_serving.desk.source.pickled_weights import INDEX, WHOLE

_CONFIG = "config.json"
_SETTINGS = (
    _CONFIG,
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
)
# What openvino generates text with and no release of vLLM has a model for; nor can it run
# transformers' own, whose attention is not of the interface that vLLM takes the place of. Source:
# vllm/model_executor/models/registry.py, from 2024 to 2026.
_ABSENT = ("GPTNeoForCausalLM",)
# Where a model's own code is named, which no server of ours runs.
_CODE = "auto_map"


def build_vllm(
    precision: str, source: LanguageModelSource, folder: Path, given: Mapping[str, str]
) -> EngineFiles:
    """The files inside `folder`; weights are copied as they are, and cast where they are served.

    Raises ConversionRefused for weights that are no safetensors, or quantized.
    """
    _check_config(source)
    weights = _weights(source)
    arguments = folder / FILE_NAME
    positions = source.generation.max_positions
    arguments.write_text(arguments_of(precision, positions, given), "utf-8")
    # The bundle's own, so that the engine makes the same tokens as preprocess.
    tokenizer = folder / "tokenizer.json"
    tokenizer.write_bytes(source.tokenizer.content)
    made = [arguments, tokenizer]
    for name in _SETTINGS:
        values = read_json(source.folder / name)
        if values is not None:
            made.append(_written(folder / name, values))
    for name in weights:
        shutil.copyfile(source.folder / name, folder / name)
        made.append(folder / name)
    return EngineFiles("vllm", precision, tuple(made))


def _check_config(source: LanguageModelSource) -> None:
    config = read_json(source.folder / _CONFIG) or {}
    absent = next((name for name in config.get("architectures") or () if name in _ABSENT), None)
    if absent:
        raise ConversionRefused(
            f"vLLM has no model for {absent}, and would not load '{source.name}' where it is "
            "served; convert with --engine openvino"
        )
    if config.get("quantization_config"):
        raise ConversionRefused(
            f"the weights of '{source.name}' are quantized, so that no --precision says what they "
            "compute in; convert the model that they were made of"
        )


def _weights(source: LanguageModelSource) -> list[str]:
    """The names of the weights' files, the index of several among them."""
    if (source.folder / WHOLE).is_file():
        return [WHOLE]
    index = read_json(source.folder / INDEX)
    if index is None:
        raise ConversionRefused(
            f"engine vllm takes safetensors alone, and '{source.name}' has neither {WHOLE} nor "
            f"{INDEX}; where you trust the writer of its weights, save them so: "
            "AutoModelForCausalLM.from_pretrained(MODEL).save_pretrained(FOLDER), and convert "
            "FOLDER"
        )
    found = index.get("weight_map")
    shards = sorted({str(name) for name in found.values()}) if isinstance(found, dict) else []
    for name in shards:
        inside = Path(name).name == name and name.endswith(".safetensors")
        if not inside or not (source.folder / name).is_file():
            raise ConversionRefused(
                f"{INDEX} of '{source.name}' names '{name}', which is no safetensors file of its "
                "folder; fetch the model whole"
            )
    if not shards:
        raise ConversionRefused(f"{INDEX} of '{source.name}' names no files; fetch the model anew")
    return [INDEX, *shards]


def _written(path: Path, values: Mapping[str, Any]) -> Path:
    kept = {name: value for name, value in values.items() if name != _CODE}
    path.write_text(json.dumps(kept, indent=2, ensure_ascii=False) + "\n", "utf-8")
    return path
