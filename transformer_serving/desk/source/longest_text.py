"""How long a text may be, by a model's files.

Tested by tests/source/test_model.py and tests/own_engine/test_writer.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformer_serving.desk.source.config import positions_of, size_of
from transformer_serving.desk.source.sentence import longest_of, read_transformer_settings
from transformer_serving.desk.source.tokenizer import TokenizerFile

# These families count positions from the padding id on, so the table is longer than a text may be.
_OFFSET_POSITIONS = (
    *("roberta", "xlm-roberta", "xlm-roberta-xl", "roberta-prelayernorm", "camembert", "xmod"),
    *("mpnet", "longformer", "data2vec-text", "ibert", "luke", "lilt", "markuplm", "layoutlmv3"),
    "esm",
)


def _first_position(config: Mapping[str, Any]) -> int:
    """Of a text's first token in the model's table of positions."""
    family = config.get("model_type")
    if family not in _OFFSET_POSITIONS:
        return 0
    # MPNet takes 1 for its padding id whatever the config says.
    return 1 + (1 if family == "mpnet" else size_of(config, "pad_token_id"))


def longest_text(
    folder: Path, config: Mapping[str, Any], tokenizer: TokenizerFile, cut_by_sentences: bool
) -> int | None:
    """The longest text in tokens, special tokens included: the smallest of what the files say.

    `cut_by_sentences`: the reference is sentence-transformers, which has settings of its own.
    """
    bounds: list[int] = []
    positions = positions_of(config)
    if positions is not None:
        bounds.append(positions - _first_position(config))
    # It stands in the place of the tokenizer's own.
    sentence = longest_of(read_transformer_settings(folder)) if cut_by_sentences else None
    if sentence is not None:
        bounds.append(sentence)
    elif tokenizer.max_length is not None:
        bounds.append(tokenizer.max_length)
    return min(bounds, default=None)
