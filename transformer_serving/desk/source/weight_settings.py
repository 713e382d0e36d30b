"""Settings of a model's own by which the packages read other weights than those of the usual names.

Only those are looked at, for pickles and for what is cut short, before anything is read.

Tested by tests/source/test_weight_settings.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from transformer_serving.desk.failure import ConversionRefused
from transformer_serving.desk.source.json_files import read_json
from transformer_serving.desk.source.sentence import read_transformer_settings

_NAMED_WEIGHTS = "transformers_weights"
# What sentence-transformers hands to from_pretrained, by its present name and its older one. Those
# of these names are its own to set here, or make no difference.
_OF_MODEL = ("model_kwargs", "model_args")
_HARMLESS = (
    *("dtype", "torch_dtype", "attn_implementation", "trust_remote_code"),
    *("add_pooling_layer", "low_cpu_mem_usage", "use_cache", "device_map", "reference_compile"),
    *("subfolder", "token", "cache_dir", "revision", "local_files_only"),
)
_OF_CONFIG = ("config_kwargs", "config_args")
_OTHER_CONFIGS = ("_configuration_file", "gguf_file", _NAMED_WEIGHTS)


def refuse_other_weights(folder: Path, encoders: Iterable[Path]) -> None:
    """Raises ConversionRefused for such a setting, of the model in `folder` or of those `encoders`
    whose weights transformers reads."""
    for place in encoders:
        if (read_json(place / "config.json") or {}).get(_NAMED_WEIGHTS):
            raise ConversionRefused(
                f"config.json's {_NAMED_WEIGHTS} names a file of weights of its own, which is not "
                "served; rename that file to model.safetensors in a copy of the folder, and take "
                f"{_NAMED_WEIGHTS} out of its config.json"
            )
    settings = read_transformer_settings(folder)
    for section in (*_OF_MODEL, *_OF_CONFIG):
        given: Any = settings.get(section)
        for name, value in given.items() if isinstance(given, Mapping) else ():
            if not _is_harmless(section, name, value):
                raise ConversionRefused(
                    f"{section} of the Transformer module's settings (sentence_bert_config.json) "
                    f"has '{name}', by which other weights may be read than those that are looked "
                    "at; take it out of a copy of the folder"
                )


def _is_harmless(section: str, name: str, value: Any) -> bool:
    if value is None:
        return True
    if section in _OF_CONFIG:
        return name not in _OTHER_CONFIGS
    return name in _HARMLESS or (name, value) == ("use_safetensors", True)
