"""Whether what calls are padded with is what the model takes for padding.

Tested by tests/source/test_model.py.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from transformer_serving.desk.failure import ConversionRefused
from transformer_serving.desk.source.tokenizer import TokenizerFile

_PAD = "pad_token_id"
# Where a family that sees as well keeps what is of its text.
_TEXT = "text_config"


def check_row(tokenizer: TokenizerFile, vocabulary: int) -> None:
    """A padding token that was only given a name has the id behind the last one. Its row is read
    though nothing looks at it, and some engines make up one that others refuse."""
    if 0 < vocabulary <= tokenizer.pad_id:
        raise ConversionRefused(
            f"the padding token '{tokenizer.pad_token}' has the id {tokenizer.pad_id}, and the "
            f"model's embeddings have {vocabulary} rows; set pad_token in tokenizer_config.json to "
            "a token that the model has, or give it a row: "
            "model.resize_token_embeddings(len(tokenizer))"
        )


def check_last_token(config: Mapping[str, Any], tokenizer: TokenizerFile) -> None:
    """A decoder's classifier reads the last token that is not config.json's padding: with another
    one in its place a text beside longer ones is read at its padding. Raises ConversionRefused."""
    if not config.get(_TEXT) and config.get(_PAD) == tokenizer.pad_id:
        return
    # Only here, as it takes torch.
    read = _names_read(str(config.get("model_type")))
    nested = _TEXT in read
    place = f"{_TEXT}.{_PAD}" if nested else _PAD
    written = (config[_TEXT] if nested else config).get(_PAD)
    if _PAD not in read or written == tokenizer.pad_id:
        return
    raise ConversionRefused(
        f"config.json's {place} is {written}, and the tokenizer pads with "
        f"'{tokenizer.pad_token}', which is {tokenizer.pad_id}: the model's classifier would read "
        f"padding for a text's last token; set {place} in config.json to {tokenizer.pad_id}"
    )


def _names_read(model_type: str) -> tuple[str, ...]:
    """What transformers' classifier of the type asks of its config and others, by the code that
    looks for the last token: families name and build theirs differently."""
    import transformers
    from transformers.models.auto import modeling_auto

    name = modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES.get(model_type)
    if name is None:
        return ()
    names: tuple[str, ...] = inspect.unwrap(getattr(transformers, name).forward).__code__.co_names
    return names
