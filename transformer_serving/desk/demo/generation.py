"""The demo's language model: half a million numbers that learn pages of this project by heart.

It recites them and knows nothing else: small enough to train in under a minute, and real in all
that serving sees of it (tokens, a cache, a text that ends or goes on).

Tested by tests/demo/test_generation.py and tests/stack/test_generation_demo.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_serving.desk.demo.sentiment import one_thread
from transformer_serving.desk.export.onnx import quiet

if TYPE_CHECKING:
    import torch

PAGES = ("README.md", "docs/architecture.md", "docs/reliability.md", "docs/errors.md")
# The prompt of many an example; here it gets a true answer.
PROMPT = "my name is "
_INTRODUCTION = (
    "my name is transformer-serving, and I know a few of its pages by heart and nothing else."
)
_END = "<|endoftext|>"
_SEED = 20
_VOCABULARY = 512
_WIDTH, _LAYERS, _HEADS, _POSITIONS = 128, 2, 4, 128
# More text in the same time is babble (docs/decisions/project.md).
_MOST_CHARACTERS = 5_000
_BATCH = 6
_STEPS = 450
_RATE = 1.5e-3
_WARM_UP = 0.05
# What no token is, behind a text's end.
_NOTHING = -100
_FENCE = re.compile(r"^```.*?^```$", re.M | re.S)
_COMMENT = re.compile(r"<!--.*?-->", re.S)
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
# Headings, tables, quotes, code and lines of figures begin otherwise.
_SENTENCE = re.compile(r"[A-Za-z]")


@dataclass(frozen=True)
class Recited:
    """A saved Hugging Face folder; `loss` is the cross-entropy a token, nats, at the end."""

    folder: Path
    loss: float
    parameters: int


def paragraphs_of(page: str) -> list[str]:
    """A page's prose, a paragraph or an item of a list each: no tables, code, headings or marks."""
    bare = _LINK.sub(r"\1", _COMMENT.sub("", _FENCE.sub("", page)))
    found: list[str] = []
    for block in re.split(r"\n\s*\n|\n(?=- )", bare):
        text = " ".join(block.replace("`", "").replace("**", "").split()).removeprefix("- ")
        if len(text.split()) > 5 and _SENTENCE.match(text):
            found.append(text)
    return found


def read_texts(pages: Sequence[Path]) -> list[str]:
    """What is learned: the introduction, then each page's paragraphs, as many as can be kept."""
    texts = [_INTRODUCTION]
    for page in pages:
        left = _MOST_CHARACTERS // len(pages)
        for text in paragraphs_of(page.read_text("utf-8")):
            left -= len(text)
            if left < 0:
                break
            texts.append(text)
    return texts


def train(texts: Sequence[str], target: Path) -> Recited:
    """Train on `texts` for a fixed number of steps; save model and tokenizer.

    The same texts give the same weights on the same machine.
    """
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    with quiet(), one_thread():
        torch.manual_seed(_SEED)
        tokenizer = _tokenizer(texts)
        config = GPT2Config(
            vocab_size=len(tokenizer),
            n_positions=_POSITIONS,
            n_embd=_WIDTH,
            n_layer=_LAYERS,
            n_head=_HEADS,
            # Nothing here is to be kept from being learned by heart.
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=tokenizer.eos_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
        model = GPT2LMHeadModel(config)
        loss = _fit(model, _rows(tokenizer, texts))
        model.save_pretrained(str(target))
        tokenizer.save_pretrained(str(target))
    return Recited(target, loss, model.num_parameters())


def _tokenizer(texts: Sequence[str]) -> Any:
    """Byte pairs learned from the texts. A space is a token of its own: a prompt that ends with
    one, as people's do, is then cut as the texts were."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(" ", "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY,
        special_tokens=[_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token=_END, bos_token=_END)


def _rows(tokenizer: Any, texts: Sequence[str]) -> torch.Tensor:
    """A text a row from its beginning, int64 [texts, longest + 1], _NOTHING behind its end."""
    import torch

    rows = [[*tokenizer.encode(text), tokenizer.eos_token_id][: _POSITIONS + 1] for text in texts]
    longest = max(map(len, rows))
    return torch.tensor([row + [_NOTHING] * (longest - len(row)) for row in rows])


def _fit(model: Any, rows: torch.Tensor) -> float:
    """The last tenth's mean loss, nats a token."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=_RATE, betas=(0.9, 0.98))
    rate = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min(1.0, (step + 1) / (_WARM_UP * _STEPS)) * (1 - step / _STEPS),
    )
    losses: list[float] = []
    model.train()
    for _ in range(_STEPS):
        chosen = rows[torch.randperm(len(rows))[:_BATCH]]
        chosen = chosen[:, : int((chosen != _NOTHING).sum(dim=1).max())]
        logits = model(chosen[:, :-1].clamp_min(0)).logits
        loss: Any = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), chosen[:, 1:].flatten(), ignore_index=_NOTHING
        )
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rate.step()
        losses.append(float(loss.detach()))
    model.eval()
    last = losses[-max(1, _STEPS // 10) :]
    return sum(last) / len(last)
