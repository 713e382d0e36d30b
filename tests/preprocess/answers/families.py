"""Tiny random models of three families with tokenizers trained here, for every head.

Weights are wide, so that scores differ clearly and a fault in tokens, mask or positions shows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    BertConfig,
    PreTrainedTokenizerFast,
    RobertaConfig,
    XLMRobertaConfig,
)

MAX_LENGTH = 40
SENTENCES = [
    "the train to Zürich left early because of the snow",
    "we waited in a small warm room, where someone played an old piano",
    "a clerk brought tea and said sorry twice; nobody minded!",
    "Anna Berg works for the Royal Museum in Oslo since 2019.",
    "naïve café 東京 に 行きました 🙂 données Привет мир",
]
LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC", "MISC")


@dataclass(frozen=True)
class Family:
    """One kind of tokenizer with the models that go with it."""

    name: str
    mask: str
    specials: tuple[str, ...]
    token_types: bool
    padding_side: str
    train: Callable[[], Tokenizer]
    config: Callable[..., Any]

    def tokenizer(self) -> Tokenizer:
        """A copy of its own: the pipeline changes its tokenizer's state."""
        return Tokenizer.from_str(_trained(self.name))

    def fast_tokenizer(self, max_length: int = MAX_LENGTH) -> PreTrainedTokenizerFast:
        pad, unknown, cls, sep, mask = self.specials
        return PreTrainedTokenizerFast(
            tokenizer_object=self.tokenizer(),
            pad_token=pad,
            unk_token=unknown,
            cls_token=cls,
            sep_token=sep,
            mask_token=mask,
            model_max_length=max_length,
            padding_side=self.padding_side,
            model_input_names=["input_ids", "token_type_ids", "attention_mask"]
            if self.token_types
            else ["input_ids", "attention_mask"],
        )

    def model(self, head: str, **changes: Any) -> torch.nn.Module:
        return _model(self.name, head, tuple(sorted(changes.items())))


_AUTO = {
    "sequence": AutoModelForSequenceClassification,
    "tokens": AutoModelForTokenClassification,
    "spans": AutoModelForQuestionAnswering,
    "masks": AutoModelForMaskedLM,
    "token_vectors": AutoModel,
}

# Tiny models gain nothing from threads, and lose much on a machine that is busy.
torch.set_num_threads(1)


@cache
def _trained(name: str) -> str:
    text: str = FAMILIES[name].train().to_str()
    return text


@cache
def _model(name: str, head: str, changes: tuple[tuple[str, Any], ...]) -> torch.nn.Module:
    family = FAMILIES[name]
    tokenizer = family.tokenizer()
    torch.manual_seed(11)
    values = {
        "vocab_size": tokenizer.get_vocab_size(),
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": MAX_LENGTH + 8,
        "initializer_range": 0.35,
        "pad_token_id": tokenizer.token_to_id(family.specials[0]),
    }
    config = family.config(**values | _labels(changes))
    model: torch.nn.Module = _AUTO[head].from_config(config)
    return model.eval()


def _labels(changes: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
    values = dict(changes)
    labels = values.pop("labels", LABELS)
    return {
        "id2label": dict(enumerate(labels)),
        "label2id": {label: at for at, label in enumerate(labels)},
        **values,
    }


def _wordpiece() -> Tokenizer:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=220, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(SENTENCES, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return tokenizer


_ROBERTA_SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def _byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=380,
        special_tokens=_ROBERTA_SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    tokenizer.post_processor = processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), trim_offsets=True, add_prefix_space=False
    )
    return tokenizer


def _unigram() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace("  ", " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=150, special_tokens=_ROBERTA_SPECIAL, unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    return tokenizer


_ROBERTA = ("<pad>", "<unk>", "<s>", "</s>", "<mask>")
FAMILIES = {
    family.name: family
    for family in (
        Family(
            "bert",
            "[MASK]",
            ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
            token_types=True,
            padding_side="right",
            train=_wordpiece,
            config=BertConfig,
        ),
        Family(
            "roberta",
            "<mask>",
            _ROBERTA,
            token_types=False,
            padding_side="right",
            train=_byte_level,
            config=RobertaConfig,
        ),
        Family(
            "xlm-roberta",
            "<mask>",
            _ROBERTA,
            token_types=False,
            padding_side="right",
            train=_unigram,
            config=XLMRobertaConfig,
        ),
        # Position ids come from the padding id here, so that padding may stand on the left, but
        # for heads that read the first token.
        Family(
            "xlm-roberta-left",
            "<mask>",
            _ROBERTA,
            token_types=False,
            padding_side="left",
            train=_unigram,
            config=XLMRobertaConfig,
        ),
    )
}
FIRST_TOKEN_FAMILIES = ("bert", "roberta", "xlm-roberta")
TOKEN_FAMILIES = ("bert", "roberta", "xlm-roberta-left")
