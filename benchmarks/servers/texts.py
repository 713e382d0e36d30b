"""What is sent: the seed's text, texts of exact lengths, and how each peer wants its body."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path

from tokenizers import Tokenizer

SEED = "This is a ClearML example to show how Triton binaries are deployed."
# Its tokens, special ones included, by the tokenizer of the model that is measured.
SEED_TOKENS = 18
# Classes of length in tokens, special ones included: up to 16, from 17 to 32, and so on.
LENGTH_CLASSES = (16, 32, 64, 128, 256)
CLASS_BOUNDS = [(low + 1, high) for low, high in itertools.pairwise((5, *LENGTH_CLASSES))]
# How often each class comes in the mixed load: most texts are short.
CLASS_WEIGHTS = (30, 30, 20, 14, 6)
_MIXED = 200
_ANY_ID = 1000
_WORDS = (
    "the", "a", "train", "station", "evening", "garden", "quiet", "window", "small", "water",
    "letter", "morning", "stone", "river", "street", "winter", "bread", "light", "paper", "table",
    "green", "music", "early", "story", "house", "yellow",
)  # fmt: skip

Body = Callable[[Sequence[str]], bytes]


def json_text(texts: Sequence[str]) -> bytes:
    """{"text": one} or {"text": [many]}: ours, the stock example and most recipes."""
    return json.dumps({"text": texts[0] if len(texts) == 1 else list(texts)}).encode()


def raw_text(texts: Sequence[str]) -> bytes:
    """The text itself: the queue recipe takes one a request."""
    return texts[0].encode()


def open_inference(texts: Sequence[str]) -> bytes:
    """MLServer's V2 body for a Hugging Face pipeline."""
    row = {"name": "array_inputs", "shape": [len(texts)], "datatype": "BYTES", "data": list(texts)}
    return json.dumps({"inputs": [row]}).encode()


def tei_predict(texts: Sequence[str]) -> bytes:
    """text-embeddings-inference's: a text alone, or each of many in a list of its own."""
    inputs = texts[0] if len(texts) == 1 else [[text] for text in texts]
    return json.dumps({"inputs": inputs}).encode()


def triton_text(texts: Sequence[str]) -> bytes:
    """Triton's own V2 body for the ensemble that tokenizes in Triton."""
    row = {"name": "TEXT", "shape": [len(texts), 1], "datatype": "BYTES", "data": list(texts)}
    return json.dumps({"inputs": [row]}).encode()


def triton_ids(texts: Sequence[str]) -> bytes:
    """Triton's own V2 body for the engine, of as many texts of the seed's length; any words."""
    values = {"input_ids": _ANY_ID, "token_type_ids": 0, "attention_mask": 1}
    shape = [len(texts), SEED_TOKENS]
    rows = [
        {"name": name, "shape": shape, "datatype": "INT32", "data": [value] * (shape[0] * shape[1])}
        for name, value in values.items()
    ]
    return json.dumps({"inputs": rows}).encode()


class Lengths:
    """Texts of exact token counts, by the model's own tokenizer."""

    def __init__(self, tokenizer_json: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(tokenizer_json))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def count(self, text: str) -> int:
        """Tokens of a text, special ones included."""
        return len(self._tokenizer.encode(text).ids)

    def text(self, tokens: int, source: random.Random) -> str:
        """A text of that many tokens; `source` picks its words. At least 4 tokens."""
        # Each word of the list is one token for every BERT-like vocabulary; checked below.
        words = [source.choice(_WORDS) for _ in range(tokens - self.count(""))]
        text = " ".join(words)
        while (found := self.count(text)) != tokens:
            words = words[: tokens - found] if found > tokens else [*words, "the"]
            text = " ".join(words)
        return text


def mixed_texts(lengths: Lengths, longest: int) -> list[tuple[str, str]]:
    """(class, text) pairs of the mixed load, lengths spread evenly inside each class.

    `longest` is the model's own limit in tokens; classes beyond it are left out.
    """
    source = random.Random(5)
    pairs: list[tuple[str, str]] = []
    for (low, high), weight in zip(CLASS_BOUNDS, CLASS_WEIGHTS, strict=True):
        if high > longest:
            continue
        for _ in range(_MIXED * weight // sum(CLASS_WEIGHTS)):
            pairs.append((class_name(high), lengths.text(source.randint(low, high), source)))
    return pairs


def class_name(high: int) -> str:
    return f"to {high} tokens"
