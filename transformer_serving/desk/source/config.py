"""A model's config.json, as its family's own class reads it.

Tested by tests/source/test_model.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformer_serving.contract.error_line import named_line
from transformer_serving.desk.failure import ConversionRefused
from transformer_serving.desk.interruption import reraise_interruption
from transformer_serving.desk.source.json_files import read_json

# Attention over a whole text of more tokens, and the cache of generated ones, need gigabytes; who
# wants it says so with --max-length.
LONGEST_UNASKED = 8192
_ADAPTER = "adapter_config.json"
_POSITIONS = "max_position_embeddings"


def read_model_config(folder: Path) -> dict[str, Any]:
    """config.json with its family's defaults filled in (a config may leave defaults out)."""
    refuse_adapter(folder)
    written = read_json(folder / "config.json")
    if written is None:
        raise ConversionRefused(
            f"'{folder.name}' has no readable config.json; it is not a transformers model folder"
        )
    known = _with_defaults(folder, written)
    # An absent id2label means two made-up names; whether it was written matters for labels.
    kept = ("architectures", "sentence_transformers", "sbert_ce_default_activation_function")
    return {**known, **{name: written[name] for name in kept if name in written}}


def refuse_adapter(folder: Path) -> None:
    """Raises ConversionRefused for an adapter of PEFT, such as LoRA's: alone it is no model, and
    beside whole weights transformers adds it to them where the package peft is there."""
    if not (folder / _ADAPTER).is_file():
        return
    merged = (
        "merge it into its base model and convert what that saves: "
        "merge_and_unload().save_pretrained(FOLDER) of peft's model, and the tokenizer's "
        "save_pretrained(FOLDER)"
    )
    if not (folder / "config.json").is_file():
        raise ConversionRefused(
            f"'{folder.name}' is an adapter ({_ADAPTER}) and no whole model; {merged}"
        )
    raise ConversionRefused(
        f"'{folder.name}' has an adapter ({_ADAPTER}) beside its weights, which is not served; "
        f"{merged}; or, where the weights are meant as they are, delete {_ADAPTER} from a copy"
    )


def check_config(folder: Path) -> None:
    """Raises ConversionRefused for a config.json that transformers refuses for any family: what
    reads it on the way to something else blames that."""
    from transformers import PreTrainedConfig

    written = read_json(folder / "config.json")
    if written is None:
        return
    if _is_known(written):
        _with_defaults(folder, written)
        return
    try:
        PreTrainedConfig.from_pretrained(str(folder))
    except Exception as error:
        reraise_interruption(error)
        raise _unreadable(error) from error


def size_of(config: Mapping[str, Any], name: str) -> int:
    """A whole number of config.json, 0 where it says none. Raises ConversionRefused."""
    value = config.get(name) or 0
    if not isinstance(value, int):
        raise ConversionRefused(
            f"config.json's {name} must be a whole number, got {type(value).__name__}; correct it"
        )
    return int(value)


def positions_of(config: Mapping[str, Any]) -> int | None:
    """How many positions a model has, by read_model_config; None where its family has no end of
    them, or does not say it."""
    found = config.get(_POSITIONS)
    return found if isinstance(found, int) and found > 0 else None


def _with_defaults(folder: Path, written: Mapping[str, Any]) -> dict[str, Any]:
    from transformers import AutoConfig

    try:
        found = AutoConfig.from_pretrained(str(folder), trust_remote_code=False)
        # GPT-2 and its kin write them as n_positions, which T5's files have too and its class,
        # whose positions are relative, does not read.
        known = {**found.to_dict(), _POSITIONS: getattr(found, _POSITIONS, None)}
    # A family's class says by errors of any type what it cannot read.
    except Exception as error:
        reraise_interruption(error)
        if _is_known(written):
            raise _unreadable(error) from error
        raise ConversionRefused(
            f"model type '{written.get('model_type')}' is not one that the pinned transformers "
            "knows by itself; models with code of their own are not loaded"
        ) from error
    return known


def _is_known(written: Mapping[str, Any]) -> bool:
    from transformers import CONFIG_MAPPING

    model_type = written.get("model_type")
    return isinstance(model_type, str) and model_type in CONFIG_MAPPING


def _unreadable(error: Exception) -> ConversionRefused:
    return ConversionRefused(
        f"the pinned transformers cannot read config.json ({named_line(error)}); correct it"
    )
