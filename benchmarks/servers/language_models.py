"""Language models of real sizes with random weights: their speed is that of trained ones.

Every id is a word of its own, so that a text has as many tokens as words and any token is text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.servers.site import BUILD
from transformer_serving.contract.heads import GENERATION
from transformer_serving.desk.bundle.folder import Bundle, open_bundle
from transformer_serving.desk.conversion.encoder import ConvertRequest, convert
from transformer_serving.desk.demo.kept import Recipe, bring_up_to_date
from transformer_serving.desk.step_report import StepReport

PRECISIONS = ("fp32", "bf16", "int8")
# What is asked of each: so many at one time, so many tokens in and out.
STREAMS = (1, 8, 32)
PROMPT_TOKENS, NEW_TOKENS = 32, 48
# The seed's way, beside which the precisions stand in results.
RECIPE = "recipe"
_SEED = 7


@dataclass(frozen=True)
class Size:
    """A configuration of transformers, as its authors published it."""

    name: str
    title: str
    vocabulary: int
    config: Callable[[int], Any]


def _gpt2(vocabulary: int) -> Any:
    from transformers import GPT2Config

    return GPT2Config(vocab_size=vocabulary, bos_token_id=0, eos_token_id=0)


def _qwen2(vocabulary: int) -> Any:
    from transformers import Qwen2Config

    return Qwen2Config(
        vocab_size=vocabulary, hidden_size=896, intermediate_size=4864, num_hidden_layers=24,
        num_attention_heads=14, num_key_value_heads=2, max_position_embeddings=4096,
        tie_word_embeddings=True, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip


SIZES = (
    Size("gpt2", "GPT-2 124M", 50_257, _gpt2),
    Size("qwen2", "Qwen2 0.5B", 151_936, _qwen2),
)


def word(identity: int) -> str:
    return f"w{identity}"


@dataclass(frozen=True)
class LanguageModel:
    """The folder that transformers loads, and the bundles by precision."""

    size: Size
    hugging_face: Path
    bundles: dict[str, Bundle]


def build_language_model(size: Size, report: StepReport) -> LanguageModel:
    """Made once into build/bench; afterwards found there, its bundles with today's code."""
    folder = BUILD / "language-models" / size.name
    build = partial(_build, size=size, report=report)
    bring_up_to_date(folder, Recipe(PRECISIONS, f"seed {_SEED}", build), report)
    bundles = {precision: open_bundle(folder / precision) for precision in PRECISIONS}
    return LanguageModel(size, _source(folder), bundles)


def _source(folder: Path) -> Path:
    return folder / "hugging_face"


def _build(folder: Path, size: Size, report: StepReport) -> None:
    report(f"making {size.title}")
    source = _source(folder)
    _save(size, source)
    for precision in PRECISIONS:
        report(f"converting {size.title} at {precision}")
        request = ConvertRequest(str(source), task=GENERATION, precision=precision, name=size.name)
        convert(request, folder / precision, lambda step, detail: None)


def _save(size: Size, folder: Path) -> None:
    import torch
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {word(identity): identity for identity in range(size.vocabulary)}
    inner = Tokenizer(models.WordLevel(words, word(0)))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    torch.manual_seed(_SEED)
    model = transformers.AutoModelForCausalLM.from_config(size.config(size.vocabulary)).eval()
    model.save_pretrained(str(folder))
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token=word(0), eos_token=word(0), unk_token=word(0)
    ).save_pretrained(str(folder))
