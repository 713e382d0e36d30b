"""What becomes of an engine's vectors: as its sentence-transformers folder says, or its owner.

Tested by tests/own_engine/test_writer.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from transformer_serving.contract.meanings import POOLINGS, Embedding
from transformer_serving.desk.command_line import command_line
from transformer_serving.desk.failure import ConversionRefused
from transformer_serving.desk.source.sentence import (
    BARE_ENCODER,
    ModuleRow,
    module_rows,
    read_prompts,
    read_sentence_settings,
    refuse_own_modules,
)

# What is computed of vectors of tokens outside the engine; Dropout computes nothing.
_COMPUTED = (["Pooling"], ["Pooling", "Normalize"])
# As older versions of sentence-transformers write its modes, each a flag.
_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


class Asked(NamedTuple):
    """--pooling and --normalize; None where the folder decides."""

    pooling: str | None
    normalize: bool | None


def embedding_of(folder: Path, *, per_token: bool, width: int, asked: Asked) -> Embedding:
    """The embedding of an engine whose vectors have `width` numbers, `per_token` where it does not
    pool them itself. Raises ConversionRefused for modules that nothing here computes."""
    settings = read_sentence_settings(folder, computed=True)
    pooling, normalize = _pooled(folder, asked) if per_token else ("engine", False)
    return Embedding(
        pooling=pooling,
        normalize=normalize,
        dimensions=min(width, settings.dimensions or width),
        similarity=settings.similarity,
        prompts=settings.prompts,
        default_prompt=settings.default_prompt,
    )


def token_vectors(folder: Path, width: int) -> Embedding:
    """Of vectors that are the answer themselves: how the folder pools them is not asked for."""
    return Embedding(
        pooling="engine",
        normalize=False,
        dimensions=width,
        similarity=BARE_ENCODER.similarity,
        prompts=read_prompts(folder),
        default_prompt=None,
    )


def _pooled(folder: Path, asked: Asked) -> tuple[str, bool]:
    rows = module_rows(folder)
    if rows is None:
        return asked.pooling or "mean", True if asked.normalize is None else asked.normalize
    refuse_own_modules(folder)
    after = [row for row in rows[1:] if row.name != "Dropout"]
    names = [row.name for row in after]
    if names not in _COMPUTED:
        raise ConversionRefused(
            f"modules.json of --tokenizer has {', '.join(names) or 'nothing'} behind the encoder, "
            "and of vectors of tokens Pooling, with or without Normalize behind it, is computed "
            f"outside the engine; use '{command_line('convert')}', bring an engine that gives "
            "the final vectors, or, where this one's are made otherwise, a --tokenizer folder "
            "without modules.json"
        )
    normalize = "Normalize" in names if asked.normalize is None else asked.normalize
    return asked.pooling or _mode(after), normalize


def _mode(after: Sequence[ModuleRow]) -> str:
    config = after[0].config
    written = config.get("pooling_mode")
    flags = [mode for flag, mode in _FLAGS.items() if config.get(flag)] or ["mean"]
    modes = flags if written is None else [written] if isinstance(written, str) else written
    if len(modes) != 1 or modes[0] not in POOLINGS[1:]:
        raise ConversionRefused(
            f"the model of --tokenizer pools by {' and '.join(map(str, modes))}, and outside the "
            f"engine one of {', '.join(POOLINGS[1:])} is computed; use "
            f"'{command_line('convert')}', or bring an engine that gives the final vectors"
        )
    return str(modes[0])
