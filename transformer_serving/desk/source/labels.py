"""The labels of a classifier and how its logits become scores, as the reference decides it.

Tested by tests/source/test_model.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer_serving.contract.error_line import one_line
from transformer_serving.contract.meanings import Classification
from transformer_serving.desk.failure import ConversionRefused
from transformer_serving.desk.source.json_files import read_json

_CROSS_ENCODER_TASKS = ("rerank", "sentence-similarity")
# Whose answers have the labels' names, which the reference gives as config.json has them.
_NAMING_TASKS = ("text-classification", "token-classification")
_PROBLEM_TYPES = {
    "regression": "regression",
    "multi_label_classification": "multi_label",
    "single_label_classification": "single_label",
}
_ACTIVATIONS = {"regression": "none", "multi_label": "sigmoid", "single_label": "softmax"}
_OF_TORCH = "torch."
# The last part of the dotted name that sentence-transformers writes.
_CROSS_ENCODER_ACTIVATIONS = {"Identity": "none", "Sigmoid": "sigmoid"}


def read_labels(config: Mapping[str, Any], folder: Path, task: str) -> Classification:
    """Labels, problem type and activation. Raises ConversionRefused where they are no use."""
    labels = _labels(config)
    if task in _NAMING_TASKS:
        _check_names(config)
    problem_type = _problem_type(config, len(labels))
    activation = _ACTIVATIONS[problem_type]
    if task in _CROSS_ENCODER_TASKS:
        if len(labels) != 1:
            raise ConversionRefused(
                f"{task} needs one score for each pair, and this model has {len(labels)} labels; "
                "serve it with --task text-classification and pairs of texts"
            )
        activation = _cross_encoder_activation(config, folder)
    entailment = None
    if task == "zero-shot-classification":
        entailment = _entailment(columns_of(config, labels), len(labels))
    return Classification(labels, problem_type, activation, entailment)


def _labels(config: Mapping[str, Any]) -> tuple[str, ...]:
    written = config.get("id2label") or {}
    if not isinstance(written, Mapping):
        raise ConversionRefused(
            "config.json's id2label must be an object of labels by number, got "
            f"{type(written).__name__}; correct it"
        )
    try:
        table = {int(key): str(label) for key, label in written.items()}
    except (TypeError, ValueError) as error:
        raise ConversionRefused(
            "config.json's id2label must have numbers for keys and labels for values; if they "
            "stand the other way round, exchange them"
        ) from error
    if sorted(table) != list(range(len(table))) or not table:
        raise ConversionRefused(
            "config.json's id2label must name the labels 0, 1, 2 and so on; correct it"
        )
    if len(set(table.values())) != len(table):
        raise ConversionRefused("config.json's id2label names one label twice; correct it")
    return tuple(table[index] for index in range(len(table)))


def _check_names(config: Mapping[str, Any]) -> None:
    """Raises ConversionRefused for a label that is no text: an answer's is always one."""
    for key, label in (config.get("id2label") or {}).items():
        if not isinstance(label, str):
            got = "null" if label is None else f"a value of type {type(label).__name__}"
            raise ConversionRefused(
                f"config.json's id2label must have a text for each label, and label {key} is "
                f"{got}; write a name in quotation marks in a copy, or give those of an engine "
                "that is brought by --labels"
            )


def _problem_type(config: Mapping[str, Any], labels: int) -> str:
    """As transformers' own pipeline decides it: one column alone is a yes or no.

    Raises ConversionRefused for one that transformers does not know."""
    written = config.get("problem_type")
    if written is not None and str(written) not in _PROBLEM_TYPES:
        raise ConversionRefused(
            f"config.json's problem_type must be one of {', '.join(_PROBLEM_TYPES)}, got "
            f"'{one_line(written, 60)}'; correct it, or leave it out"
        )
    if written == "regression":
        return "regression"
    if labels == 1:
        return "multi_label"
    return _PROBLEM_TYPES.get(str(written), "single_label")


def _cross_encoder_activation(config: Mapping[str, Any], folder: Path) -> str:
    """What sentence-transformers applies to a single score: the model's own choice, or sigmoid.

    It takes what comes from torch alone, and for anything else what it takes without."""
    for place, written in _written_activations(config, folder):
        if written is None or not str(written).startswith(_OF_TORCH):
            continue
        activation = _CROSS_ENCODER_ACTIVATIONS.get(str(written).rsplit(".", 1)[-1])
        if activation is None:
            raise ConversionRefused(
                f"the cross-encoder's activation in {place} is '{one_line(written, 120)}', and "
                f"served are {', '.join(_CROSS_ENCODER_ACTIVATIONS)}; where one of them is what "
                "its scores may have, set that there, in a copy of the folder, to "
                "torch.nn.modules.linear.Identity or torch.nn.modules.activation.Sigmoid"
            )
        return activation
    return "sigmoid"


def _written_activations(config: Mapping[str, Any], folder: Path) -> Iterator[tuple[str, Any]]:
    """Where one may stand and what does, in the order of sentence-transformers; its own file is
    read beside modules.json alone."""
    own = "config_sentence_transformers.json"
    if (folder / "modules.json").is_file():
        yield f"{own} (activation_fn)", (read_json(folder / own) or {}).get("activation_fn")
    newer = config.get("sentence_transformers")
    if isinstance(newer, Mapping) and "activation_fn" in newer:
        yield "config.json (sentence_transformers.activation_fn)", newer["activation_fn"]
    else:
        older = "sbert_ce_default_activation_function"
        yield f"config.json ({older})", config.get(older)


def columns_of(config: Mapping[str, Any], labels: Sequence[str]) -> Mapping[str, Any]:
    """The column of each label: label2id, which may name them otherwise than id2label does; of a
    config without one id2label's own."""
    written = config.get("label2id")
    return written if isinstance(written, Mapping) else {one: at for at, one in enumerate(labels)}


def _entailment(columns: Mapping[str, Any], count: int) -> int:
    """The column that says that a hypothesis follows; the last where none is named so."""
    if count < 2:
        raise ConversionRefused(
            "zero-shot-classification needs a model of natural language inference, with a label "
            f"for entailment and one against it; this one has {count} label"
        )
    found = [at for label, at in columns.items() if str(label).lower().startswith("entail")]
    if not found:
        return count - 1
    if type(found[0]) is not int or not 0 <= found[0] < count:
        raise ConversionRefused(
            "config.json's label2id must give the label of entailment a column from 0 to "
            f"{count - 1}, which is where zero-shot-classification looks; correct it"
        )
    return found[0]
