"""The model's tokenizer as a tokenizer.json for the Rust library: no padding, no cutting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformer_serving.model_files import read_json
from transformer_serving.refusal import ConversionRefused


@dataclass(frozen=True)
class TokenizerFile:
    """tokenizer.json with padding and truncation taken out, and what padding needs."""

    content: bytes
    pad_id: int
    pad_token: str
    pad_type_id: int
    padding_side: str


def read_tokenizer(folder: Path, config: Mapping[str, Any], task: str) -> TokenizerFile:
    """The tokenizer of the model in `folder`. Raises ConversionRefused when it cannot be had."""
    from tokenizers import Tokenizer

    path = folder / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path)) if path.is_file() else _slow_tokenizer(folder)
    if task == "sentence-embedding":
        _lowercase_if_asked(tokenizer, folder)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    settings = read_json(folder / "tokenizer_config.json") or {}
    pad_token = _pad_token(folder, settings, tokenizer, config)
    pad_id = tokenizer.token_to_id(pad_token)
    if pad_id is None:
        raise ConversionRefused(f"padding token '{pad_token}' is not in the tokenizer's vocabulary")
    return TokenizerFile(
        content=tokenizer.to_str().encode(),
        pad_id=pad_id,
        pad_token=pad_token,
        pad_type_id=int(settings.get("pad_token_type_id") or 0),
        padding_side=str(settings.get("padding_side") or "right"),
    )


def _slow_tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(str(folder)).backend_tokenizer
    except (AttributeError, ValueError, OSError, ImportError) as error:
        raise ConversionRefused(
            f"'{folder.name}' has no tokenizer.json and none can be made from its other files; "
            "save the model's fast tokenizer into the folder (save_pretrained writes it)"
        ) from error


def _lowercase_if_asked(tokenizer: Any, folder: Path) -> None:
    """sentence-transformers lowercases by its own setting, which tokenizer.json does not hold."""
    settings = read_json(folder / "sentence_bert_config.json") or {}
    if not settings.get("do_lower_case"):
        return
    from tokenizers import normalizers

    steps = [normalizers.Lowercase()]
    if tokenizer.normalizer is not None:
        steps.append(tokenizer.normalizer)
    tokenizer.normalizer = normalizers.Sequence(steps)


def _pad_token(
    folder: Path, settings: Mapping[str, Any], tokenizer: Any, config: Mapping[str, Any]
) -> str:
    special = read_json(folder / "special_tokens_map.json") or {}
    for written in (settings.get("pad_token"), special.get("pad_token")):
        if isinstance(written, dict):
            written = written.get("content")
        if isinstance(written, str):
            return written
    pad_id = config.get("pad_token_id")
    token = tokenizer.id_to_token(pad_id) if isinstance(pad_id, int) else None
    if token is None:
        raise ConversionRefused(
            "the tokenizer has no padding token, so texts of different lengths cannot share a "
            "call; set pad_token in tokenizer_config.json"
        )
    return str(token)
