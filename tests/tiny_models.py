"""Small random models on disk, made in a second, with weights wide enough that faults show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    LongformerConfig,
    LongformerForSequenceClassification,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForSequenceClassification,
)

POSITIONS = 48
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_WORDS = (
    "the train left early because of snow and we waited in a small warm room where someone "
    "played an old piano while children drew ships on paper later clerk brought tea said sorry "
    "twice ! , . "
    "i do not like it at all best purchase year would buy again tomorrow ok so good"
)


def set_weights(model: Any, seed: int) -> None:
    """Weights of the same spread as the model's own, the same on every processor.

    For one seed torch draws others without AVX-512, and how far int8 is from fp32 depends on them.
    """
    random = np.random.default_rng(seed)
    with torch.no_grad():
        for weights in model.parameters():
            if weights.dim() > 1:
                drawn = random.normal(0.0, model.config.initializer_range, tuple(weights.shape))
                weights.copy_(torch.from_numpy(drawn))


def save_tokenizer(folder: Path, *, token_types: bool = True) -> None:
    """A WordPiece tokenizer whose tokenizer.json pads and cuts, as hub models' often do."""
    pieces = [*_SPECIAL, *dict.fromkeys(_WORDS.split())]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    tokenizer.enable_truncation(20)
    tokenizer.enable_padding(length=20)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=POSITIONS,
        model_input_names=[
            "input_ids",
            *(["token_type_ids"] if token_types else []),
            "attention_mask",
        ],
    ).save_pretrained(str(folder))


_SMALLEST: dict[str, Any] = {
    "vocab_size": 120,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": POSITIONS,
    "pad_token_id": 0,
}


def bert_config(**changes: Any) -> BertConfig:
    sizes: dict[str, Any] = {
        "vocab_size": 120,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": POSITIONS,
        "initializer_range": 0.4,
    }
    return BertConfig(**{**sizes, **changes})


def save_classifier(folder: Path, *, seed: int | None = None, **changes: Any) -> Path:
    """With a `seed` its weights are the same on every processor."""
    torch.manual_seed(7)
    labels = {0: "bad", 1: "fair", 2: "good"}
    config = bert_config(id2label=labels, label2id={v: k for k, v in labels.items()}, **changes)
    model = BertForSequenceClassification(config)
    if seed is not None:
        set_weights(model, seed)
    model.save_pretrained(str(folder))
    save_tokenizer(folder)
    return folder


def save_encoder(folder: Path) -> Path:
    torch.manual_seed(7)
    BertModel(bert_config()).save_pretrained(str(folder))
    save_tokenizer(folder)
    return folder


def save_longformer(folder: Path) -> Path:
    """One that cannot be exported: its windows need a length that is a multiple of theirs when the
    graph is made."""
    config = LongformerConfig(attention_window=8, **_SMALLEST)
    LongformerForSequenceClassification(config).save_pretrained(str(folder))
    save_tokenizer(folder, token_types=False)
    return folder


def save_older_layout(folder: Path) -> Path:
    """An embedder in `folder`/model as sentence-transformers saved it before 2021: its Transformer
    in a folder as every other module."""
    model = folder / "model"
    save_encoder(model / "0_Transformer")
    kinds = {"0_Transformer": "Transformer", "1_Pooling": "Pooling"}
    rows = [
        {"idx": at, "name": str(at), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for at, (path, kind) in enumerate(kinds.items())
    ]
    (model / "modules.json").write_text(json.dumps(rows))
    (model / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True}
    (model / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return model


def save_roberta(folder: Path) -> Path:
    torch.manual_seed(7)
    config = RobertaConfig(type_vocab_size=1, **_SMALLEST)
    RobertaForSequenceClassification(config).save_pretrained(str(folder))
    save_tokenizer(folder, token_types=False)
    return folder


def save_sentence_model(folder: Path, scratch: Path, *, pooling: str, dense: int = 0) -> Path:
    """Encoder, pooling, a dense layer of `dense` columns if any, and normalize."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import (
        Dense,
        Normalize,
        Pooling,
        Transformer,
    )

    encoder = Transformer(str(save_encoder(scratch)))
    torch.manual_seed(3)
    modules: list[Any] = [encoder, Pooling(32, pooling_mode=pooling)]
    if dense:
        modules.append(Dense(32, dense))
    modules.append(Normalize())
    SentenceTransformer(modules=modules, device="cpu").save(str(folder))
    return folder
