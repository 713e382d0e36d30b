"""A small random model of each family, with a tokenizer of its real kind trained on a few lines.

Weights are widened so that answers differ clearly from text to text.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from transformer_serving.desk.parity.texts import _ODD, _STORY

POSITIONS = 72
_PIECES = 320
LINES = (
    *_ODD,
    *[" ".join(_STORY.split()[at : at + 9]) for at in range(0, 48, 3)],
    "The room was clean, the staff were kind and breakfast was excellent.",
    "This example is about travel, music or weather. Why did the train leave early?",
)


@dataclass(frozen=True)
class Family:
    """`prefix` names the model classes, `tokenizer` makes the tokenizer, `config` the settings."""

    prefix: str
    config: Callable[..., Any]
    tokenizer: Callable[[], Any]


@cache
def _wordpiece() -> dict[str, int]:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=_PIECES,
        show_progress=False,
        special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
    )
    tokenizer.train_from_iterator(LINES, trainer)
    return dict(sorted(tokenizer.get_vocab().items(), key=lambda item: item[1]))


@cache
def _byte_pairs() -> tuple[dict[str, int], tuple[tuple[str, str], ...]]:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_PIECES + 64,
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
    )
    tokenizer.train_from_iterator(LINES, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return model["vocab"], tuple((left, right) for left, right in model["merges"])


@cache
def _unigram() -> tuple[tuple[str, float], ...]:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=_PIECES, show_progress=False, special_tokens=["<unk>"], unk_token="<unk>"
    )
    tokenizer.train_from_iterator(LINES, trainer)
    rows = json.loads(tokenizer.to_str())["model"]["vocab"]
    return tuple((piece, score) for piece, score in rows if piece != "<unk>")


def _bert_like(class_name: str, **changes: Any) -> Any:
    vocabulary = dict(_wordpiece())
    cls = getattr(transformers, class_name)
    return cls(vocab=vocabulary, do_lower_case=True, **changes)


def _mpnet() -> Any:
    names = {"[PAD]": "<pad>", "[CLS]": "<s>", "[SEP]": "</s>", "[MASK]": "<mask>"}
    vocabulary = {names.get(piece, piece): at for piece, at in _wordpiece().items()}
    return transformers.MPNetTokenizer(vocab=vocabulary)


def _byte_level(class_name: str) -> Any:
    vocabulary, merges = _byte_pairs()
    return getattr(transformers, class_name)(vocab=dict(vocabulary), merges=list(merges))


def _modernbert() -> Any:
    """ModernBERT's tokenizer has no class of its own: it is a tokenizer.json of byte pairs."""
    from tokenizers import processors

    vocabulary, merges = _byte_pairs()
    tokenizer = Tokenizer(models.BPE(dict(vocabulary), list(merges), unk_token="<unk>"))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> $B </s>",
        special_tokens=[("<s>", vocabulary["<s>"]), ("</s>", vocabulary["</s>"])],
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        unk_token="<unk>",
        cls_token="<s>",
        sep_token="</s>",
        mask_token="<mask>",
        model_input_names=["input_ids", "attention_mask"],
    )


def _qwen() -> Any:
    """A decoder's tokenizer as embedders carry it: padded on the left, an end token appended."""
    from tokenizers import processors

    vocabulary, merges = _byte_pairs()
    pieces = {
        "<|endoftext|>" if piece == "<pad>" else piece: at for piece, at in vocabulary.items()
    }
    pairs: Any = list(merges)
    tokenizer = transformers.Qwen2Tokenizer(
        vocab=pieces, merges=pairs, padding_side="left", pad_token="<|endoftext|>"
    )
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="$A <|endoftext|>", special_tokens=[("<|endoftext|>", pieces["<|endoftext|>"])]
    )
    return tokenizer


def _xlm() -> Any:
    special = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    vocabulary = [*special, *_unigram(), ("<mask>", 0.0)]
    return transformers.XLMRobertaTokenizer(vocab=vocabulary)


def _deberta() -> Any:
    special = [("[PAD]", 0.0), ("[CLS]", 0.0), ("[SEP]", 0.0), ("[UNK]", 0.0)]
    vocabulary = [*special, *_unigram(), ("[MASK]", 0.0)]
    return transformers.DebertaV2Tokenizer(vocab=vocabulary, unk_id=3)


def _albert() -> Any:
    special = [("<pad>", 0.0), ("<unk>", 0.0), ("[CLS]", 0.0), ("[SEP]", 0.0), ("[MASK]", 0.0)]
    return transformers.AlbertTokenizer(vocab=[*special, *_unigram()])


_SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": POSITIONS,
    "initializer_range": 0.35,
}


def _sized(config: Any, **changes: Any) -> Callable[..., Any]:
    return lambda **given: config(**{**_SIZES, **changes, **given})


FAMILIES = {
    "bert": Family("Bert", _sized(transformers.BertConfig), lambda: _bert_like("BertTokenizer")),
    "distilbert": Family(
        "DistilBert",
        lambda **given: transformers.DistilBertConfig(
            dim=32,
            n_layers=1,
            n_heads=4,
            hidden_dim=48,
            max_position_embeddings=POSITIONS,
            initializer_range=0.35,
            **given,
        ),
        lambda: _bert_like("DistilBertTokenizer"),
    ),
    "roberta": Family(
        "Roberta",
        _sized(transformers.RobertaConfig, type_vocab_size=1),
        lambda: _byte_level("RobertaTokenizer"),
    ),
    "xlm-roberta": Family(
        "XLMRoberta", _sized(transformers.XLMRobertaConfig, type_vocab_size=1), _xlm
    ),
    "mpnet": Family("MPNet", _sized(transformers.MPNetConfig), _mpnet),
    "deberta-v3": Family(
        "DebertaV2",
        _sized(
            transformers.DebertaV2Config,
            relative_attention=True,
            position_buckets=16,
            norm_rel_ebd="layer_norm",
            share_att_key=True,
            pos_att_type=["p2c", "c2p"],
            position_biased_input=False,
            type_vocab_size=0,
            pooler_hidden_size=32,
        ),
        _deberta,
    ),
    "modernbert": Family(
        "ModernBert",
        _sized(
            transformers.ModernBertConfig,
            # One layer that looks at the whole text and one that looks at its neighbourhood.
            num_hidden_layers=2,
            global_attn_every_n_layers=2,
            local_attention=16,
            initializer_cutoff_factor=3.0,
        ),
        _modernbert,
    ),
    "electra": Family(
        "Electra",
        _sized(transformers.ElectraConfig, embedding_size=16),
        lambda: _bert_like("ElectraTokenizer"),
    ),
    "albert": Family("Albert", _sized(transformers.AlbertConfig, embedding_size=16), _albert),
    "bart": Family(
        "Bart",
        lambda **given: transformers.BartConfig(
            d_model=32,
            encoder_layers=1,
            decoder_layers=1,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=48,
            decoder_ffn_dim=48,
            max_position_embeddings=POSITIONS,
            init_std=0.35,
            **given,
        ),
        lambda: _byte_level("BartTokenizer"),
    ),
    "qwen3": Family(
        "Qwen3",
        _sized(
            transformers.Qwen3Config,
            num_key_value_heads=2,
            head_dim=8,
        ),
        _qwen,
    ),
    # Its attention's logits are capped, which torch's fused attention leaves out.
    "gemma2": Family(
        "Gemma2",
        _sized(
            transformers.Gemma2Config,
            num_key_value_heads=2,
            head_dim=8,
            sliding_window=16,
            query_pre_attn_scalar=8,
        ),
        _qwen,
    ),
    # Nor does that scale scores as these fields say.
    "gpt2": Family(
        "GPT2",
        lambda **given: transformers.GPT2Config(
            n_embd=32,
            n_layer=2,
            n_head=4,
            n_positions=POSITIONS,
            initializer_range=0.35,
            scale_attn_weights=False,
            scale_attn_by_inverse_layer_idx=True,
            reorder_and_upcast_attn=True,
            **given,
        ),
        _qwen,
    ),
}


def save_model(
    family: str,
    folder: Path,
    head: str = "ForSequenceClassification",
    *,
    pooling: str | None = None,
    padding_side: str | None = None,
    **changes: Any,
) -> Path:
    """The family's model with `head` (the end of its class name) and its tokenizer in `folder`.

    With `pooling` it is a sentence-transformers folder that pools so and normalizes; with
    `padding_side` its tokenizer asks for that.
    """
    row = FAMILIES[family]
    tokenizer = row.tokenizer()
    ids = {
        name: getattr(tokenizer, f"{source}_token_id")
        for name, source in (
            ("pad_token_id", "pad"),
            ("bos_token_id", "cls"),
            ("cls_token_id", "cls"),
            ("eos_token_id", "sep"),
            ("sep_token_id", "sep"),
        )
        if getattr(tokenizer, f"{source}_token_id") is not None
    }
    config = row.config(**{"vocab_size": len(tokenizer), **ids, **changes})
    torch.manual_seed(5)
    target = folder.with_name(f"{folder.name} encoder") if pooling else folder
    getattr(transformers, f"{row.prefix}{head}")(config).eval().save_pretrained(str(target))
    limit = min(POSITIONS - 2, POSITIONS - 1 - int(config.pad_token_id or 0))
    tokenizer.model_max_length = limit
    tokenizer.save_pretrained(str(target))
    if pooling:
        _save_sentence_model(target, folder, pooling)
    if padding_side:
        settings = folder / "tokenizer_config.json"
        values = json.loads(settings.read_text("utf-8"))
        settings.write_text(json.dumps({**values, "padding_side": padding_side}))
    return folder


def _save_sentence_model(encoder: Path, folder: Path, pooling: str) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import (
        Normalize,
        Pooling,
        Transformer,
    )

    first = Transformer(str(encoder))
    width = first.get_embedding_dimension()
    modules: list[Any] = [first, Pooling(width, pooling_mode=pooling), Normalize()]
    SentenceTransformer(modules=modules, device="cpu").save(str(folder))
