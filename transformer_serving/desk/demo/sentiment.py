"""The demo classifier: a two-class sentiment head trained on our own sentences in seconds.

The lower layers of the encoder stay as they are, so each sentence goes through them once and
their output is kept; what is trained are the upper layers, BERT's pooler and the classifier.

Tested by tests/demo/test_sentiment.py.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_serving.desk.export.onnx import quiet
from transformer_serving.desk.failure import Failure

if TYPE_CHECKING:
    import torch

LABELS = ("NEGATIVE", "POSITIVE")
SPLITS = ("train", "held_out")
_SEED = 20
_FROZEN_LAYERS = 3
_EPOCHS = 8
_BATCH = 16
_ENCODER_RATE, _HEAD_RATE = 1e-4, 1e-3
_WARM_UP = 0.1


@dataclass(frozen=True)
class Sentence:
    """One row of sentences.csv."""

    split: str
    label: str
    text: str


@dataclass(frozen=True)
class Trained:
    """A saved Hugging Face folder and how many of the held-out sentences it gets right."""

    folder: Path
    held_out_accuracy: float
    held_out: int


def read_sentences(path: Path) -> tuple[Sentence, ...]:
    """The labelled sentences. Raises Failure for a row with an unknown split or label."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = [Sentence(row["split"], row["label"], row["text"]) for row in csv.DictReader(file)]
    for number, row in enumerate(rows, start=2):
        if row.split not in SPLITS or row.label not in LABELS:
            raise Failure(
                f"{path.name}: line {number} must have a split of {', '.join(SPLITS)} and a label "
                f"of {', '.join(LABELS)}"
            )
    return tuple(rows)


def train(encoder: Path, sentences: Sequence[Sentence], target: Path) -> Trained:
    """Train the classifier on the BERT encoder in the folder `encoder`; save model and tokenizer.

    The same sentences and encoder give the same weights on the same machine.
    """
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    with quiet(), one_thread():
        torch.manual_seed(_SEED)
        tokenizer = AutoTokenizer.from_pretrained(str(encoder), trust_remote_code=False)
        model = AutoModelForSequenceClassification.from_pretrained(
            str(encoder),
            num_labels=len(LABELS),
            id2label=dict(enumerate(LABELS)),
            label2id={label: index for index, label in enumerate(LABELS)},
            dtype=torch.float32,
            trust_remote_code=False,
        ).eval()
        texts = _lower_layers(model, tokenizer, [row.text for row in sentences])
        labels = torch.tensor([LABELS.index(row.label) for row in sentences])
        training = torch.tensor([row.split == "train" for row in sentences])
        _fit(model, texts, labels, training.nonzero().flatten())
        held_out = (~training).nonzero().flatten()
        with torch.no_grad():
            guesses = _logits(model, texts, held_out).argmax(dim=1)
        model.save_pretrained(str(target))
        tokenizer.save_pretrained(str(target))
    right = int((guesses == labels[held_out]).sum())
    return Trained(target, right / len(held_out), len(held_out))


@contextmanager
def one_thread() -> Iterator[None]:
    """So small a model gains nothing from a second thread, and on a busy machine loses much.

    Beside other work on two cores: 32 s with one thread, 130 s with two. The sums are also added
    in the same order on any number of cores.
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@dataclass(frozen=True)
class _Texts:
    """Hidden states after the frozen layers, float32 [texts, tokens, width], and their mask."""

    hidden: torch.Tensor
    mask: torch.Tensor


def _lower_layers(model: Any, tokenizer: Any, texts: Sequence[str]) -> _Texts:
    import torch

    tokens = tokenizer(list(texts), padding=True, return_tensors="pt")
    with torch.no_grad():
        states = model.bert(**tokens, output_hidden_states=True).hidden_states
    return _Texts(states[_FROZEN_LAYERS], tokens["attention_mask"])


def _logits(model: Any, texts: _Texts, chosen: torch.Tensor) -> Any:
    """Logits of the chosen texts, float32 [chosen, labels], from the upper layers on."""
    mask = texts.mask[chosen]
    tokens = int(mask.sum(dim=1).max())
    hidden = texts.hidden[chosen, :tokens]
    # What BERT adds to attention scores: nothing for a token, "minus infinity" for padding.
    bias = (1.0 - mask[:, None, None, :tokens].float()) * -1e9
    for layer in model.bert.encoder.layer[_FROZEN_LAYERS:]:
        output = layer(hidden, attention_mask=bias)
        hidden = output[0] if isinstance(output, tuple) else output
    return model.classifier(model.dropout(model.bert.pooler(hidden)))


def _fit(model: Any, texts: _Texts, labels: torch.Tensor, training: torch.Tensor) -> None:
    import torch

    upper = [
        parameter
        for layer in model.bert.encoder.layer[_FROZEN_LAYERS:]
        for parameter in layer.parameters()
    ]
    head = [*model.bert.pooler.parameters(), *model.classifier.parameters()]
    optimizer = torch.optim.AdamW(
        [{"params": upper, "lr": _ENCODER_RATE}, {"params": head, "lr": _HEAD_RATE}]
    )
    total = _EPOCHS * -(-len(training) // _BATCH)
    rate = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / (_WARM_UP * total)) * (1 - step / total)
    )
    model.train()
    for _ in range(_EPOCHS):
        shuffled = training[torch.randperm(len(training))]
        for start in range(0, len(shuffled), _BATCH):
            chosen = shuffled[start : start + _BATCH]
            logits = _logits(model, texts, chosen)
            loss: Any = torch.nn.functional.cross_entropy(logits, labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            rate.step()
    model.eval()
