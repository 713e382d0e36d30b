"""A small random language model of each family that convert exports, with a byte-level tokenizer.

Weights are wide enough that tokens differ, windows shorter than the longest prompt.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tests.families import _byte_pairs

POSITIONS = 512
WINDOW = 40
_WIDTH = 64
_LAYERS = 2
_HEADS = 4
_RANGE = 0.08

_SIZES: dict[str, Any] = {
    "hidden_size": _WIDTH,
    "num_hidden_layers": _LAYERS,
    "num_attention_heads": _HEADS,
    "intermediate_size": 96,
    "max_position_embeddings": POSITIONS,
    "initializer_range": _RANGE,
}
_SHARED_HEADS = {**_SIZES, "num_key_value_heads": 2, "tie_word_embeddings": False}
_GPT: dict[str, Any] = {
    "n_embd": _WIDTH,
    "n_layer": _LAYERS,
    "n_head": _HEADS,
    "n_positions": POSITIONS,
    "initializer_range": _RANGE,
}

FAMILIES: dict[str, Callable[..., Any]] = {
    "gpt2": lambda **ids: transformers.GPT2Config(**_GPT, **ids),
    "gpt_neo": lambda **ids: transformers.GPTNeoConfig(
        hidden_size=_WIDTH,
        num_layers=_LAYERS,
        num_heads=_HEADS,
        attention_types=[[["global", "local"], 1]],
        window_size=WINDOW,
        max_position_embeddings=POSITIONS,
        initializer_range=_RANGE,
        **ids,
    ),
    "gptj": lambda **ids: transformers.GPTJConfig(**_GPT, rotary_dim=8, **ids),
    "gpt_neox": lambda **ids: transformers.GPTNeoXConfig(**_SIZES, **ids),
    "opt": lambda **ids: transformers.OPTConfig(
        hidden_size=_WIDTH,
        word_embed_proj_dim=_WIDTH,
        num_hidden_layers=_LAYERS,
        num_attention_heads=_HEADS,
        ffn_dim=96,
        max_position_embeddings=POSITIONS,
        init_std=_RANGE,
        **{"pad_token_id": 1, **ids},
    ),
    "llama": lambda **ids: transformers.LlamaConfig(**_SHARED_HEADS, **ids),
    "qwen2": lambda **ids: transformers.Qwen2Config(**_SHARED_HEADS, **ids),
    "qwen3": lambda **ids: transformers.Qwen3Config(**_SHARED_HEADS, head_dim=16, **ids),
    "mistral": lambda **ids: transformers.MistralConfig(
        **_SHARED_HEADS, head_dim=16, sliding_window=WINDOW, **ids
    ),
}


def tokenizer() -> Any:
    """Byte pairs without any token of its own around a text, as GPT-2's."""
    vocabulary, merges = _byte_pairs()
    inner = Tokenizer(models.BPE(dict(vocabulary), list(merges)))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token="</s>", bos_token="<s>"
    )


def save_language_model(family: str, folder: Path) -> Path:
    """The family's model and its tokenizer in `folder`."""
    own = tokenizer()
    config = FAMILIES[family](
        vocab_size=len(own), bos_token_id=own.bos_token_id, eos_token_id=own.eos_token_id
    )
    torch.manual_seed(5)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        # Else every token's score is much the same and greedy text repeats one.
        model.get_output_embeddings().weight.mul_(4.0)
    model.save_pretrained(str(folder))
    own.save_pretrained(str(folder))
    return folder
