"""Which task a model is for, as its own files tell it, and which head of it answers a task.

Tested by tests/source/test_model.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer_serving.contract.heads import ENDPOINT_TASKS, GENERATION, TASK_HEADS, TASKS
from transformer_serving.desk.failure import ConversionRefused
from transformer_serving.desk.source.json_files import read_json
from transformer_serving.desk.source.sentence import module_rows, read_transformer_settings

SENTENCE_TRANSFORMER, CROSS_ENCODER = "SentenceTransformer", "CrossEncoder"
# The end of the architecture's name in config.json, and the task it was made for.
_ARCHITECTURES = {
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "ForMaskedLM": "fill-mask",
    "Model": "feature-extraction",
}
# Ends of architectures that write text: source.language_model opens those, for one task alone.
_ENCODER_DECODERS = ("ForConditionalGeneration",)
# Of a family of encoders with decoders, which transformers' AutoModel loads whole.
_ENCODER_ALONE = "EncoderModel"
_CAUSAL = "ForCausalLM"
_GENERATORS = (_CAUSAL, "LMHeadModel", *_ENCODER_DECODERS)
_CLASSIFYING = "sequence-classification"
# What config.json must name for a head; vectors come from any encoder.
_NEEDED_BY_HEAD = {
    "sequence": "ForSequenceClassification",
    "tokens": "ForTokenClassification",
    "spans": "ForQuestionAnswering",
    "masks": "ForMaskedLM",
}


def task_of(config: Mapping[str, Any], folder: Path, asked: str | None) -> str:
    """The task `asked` for, else the one that the files tell.

    Raises ConversionRefused for a task that is not served or where the files do not say.
    """
    chosen = asked if asked not in (None, "auto") else _detected(config, folder)
    if chosen in TASKS:
        return str(chosen)
    if chosen is not None:
        raise ConversionRefused(
            f"task '{chosen}' cannot be served; choose one of {', '.join(ENDPOINT_TASKS)}"
        )
    names = [str(name) for name in config.get("architectures") or ()]
    if any(name.endswith(_ENCODER_DECODERS) for name in names):
        raise ConversionRefused(
            f"the model is {_named(config)}, and text of an encoder and a decoder is not served; "
            "name --task sentence-embedding to serve its encoder's vectors, or convert a model "
            "with a head of docs/models.md"
        )
    if any(_generates(name) for name in names):
        raise ConversionRefused(
            f"the model is {_named(config)}; name --task {GENERATION} to serve the text that it "
            "writes, or sentence-embedding or feature-extraction for its vectors"
        )
    raise ConversionRefused(
        f"the task of '{folder.name}' ({_named(config)}) is not clear; name it with --task, one of "
        f"{', '.join(ENDPOINT_TASKS)}"
    )


def head_of(task: str, config: Mapping[str, Any], folder: Path) -> str:
    """The head that answers `task`: a cross-encoder's own where the model is one.

    Raises ConversionRefused when the model has no weights for the head, or is of a kind that has
    no such vectors.
    """
    heads = TASK_HEADS[task]
    if "vector" in heads:
        _check_kind(task, config, folder)
    if len(heads) > 1 and "sequence" in heads:
        return "sequence" if is_cross_encoder(config, folder) else "vector"
    needed = _NEEDED_BY_HEAD.get(heads[0])
    names = config.get("architectures") or ()
    if heads[0] == "token_vectors" and any(str(name).endswith(_ENCODER_ALONE) for name in names):
        raise ConversionRefused(
            f"the model is {_named(config)}, an encoder without its decoder, and "
            "feature-extraction asks both; name --task sentence-embedding to serve the encoder's "
            "vectors"
        )
    # Without the head's weights transformers would make them up, and parity would agree with it.
    if needed is not None and names and not _may_have(needed, names, config):
        raise ConversionRefused(
            f"the model is {_named(config)} and has no trained head for {task}; fine-tune it as "
            f"…{needed}, or name another --task"
        )
    return heads[0]


def _may_have(needed: str, names: Sequence[Any], config: Mapping[str, Any]) -> bool:
    """Whether a model of the architectures `names` may have the head.

    Masks are filled by weights that others have too (…ForPreTraining, …LMHeadModel), and of an
    encoder with a decoder by its embeddings: only those surely have none that were fine-tuned for
    another head's task.
    """
    if any(str(name).endswith(needed) for name in names):
        return True
    others = tuple(_NEEDED_BY_HEAD.values())
    return needed == _NEEDED_BY_HEAD["masks"] and (
        bool(config.get("is_encoder_decoder"))
        or not all(str(name).endswith(others) for name in names)
    )


def _check_kind(task: str, config: Mapping[str, Any], folder: Path) -> None:
    """sentence-transformers makes an embedder that pools by means of whatever it is to load as
    one, with no more than a warning: parity would agree with that."""
    kind = _sentence_kind(folder)
    if kind not in (SENTENCE_TRANSFORMER, CROSS_ENCODER):
        raise ConversionRefused(
            f"the model is a {kind} of sentence-transformers, and {task} is served by a "
            f"{SENTENCE_TRANSFORMER} or {CROSS_ENCODER}; convert one of those, or name --task "
            "feature-extraction to serve a vector of each token of its encoder"
        )
    if kind == CROSS_ENCODER:
        _check_score(folder)
        _check_prompt(folder)
    if task != "sentence-embedding":
        _refuse_yes_or_no(task, config, folder)
    # Of a folder with modules those say what it is, whatever its encoder was before.
    crosses = kind == CROSS_ENCODER or (
        not (folder / "modules.json").is_file() and _was_cross_encoder(config)
    )
    if task == "sentence-embedding" and crosses:
        raise ConversionRefused(
            f"the model is a {CROSS_ENCODER}, which scores pairs and was not trained to give "
            f"vectors; name --task rerank or sentence-similarity, or convert a "
            f"{SENTENCE_TRANSFORMER}"
        )


def _check_score(folder: Path) -> None:
    """Raises ConversionRefused for a cross-encoder whose score is not its classifier's own."""
    names = [row.name for row in module_rows(folder) or ()]
    does = read_transformer_settings(folder).get("transformer_task", _CLASSIFYING)
    other = next((name for name in names if name != "Transformer"), None)
    found = f"'{other}'" if other else f"a Transformer for {does}"
    if other is not None or does != _CLASSIFYING:
        raise ConversionRefused(
            f"modules.json has {found}, and a {CROSS_ENCODER} is served whose Transformer, for "
            f"{_CLASSIFYING}, is its only module; convert the model's …ForSequenceClassification "
            "form with one label"
        )


def _check_prompt(folder: Path) -> None:
    """Raises ConversionRefused for a cross-encoder with a prompt that stands before each pair."""
    settings = read_json(folder / "config_sentence_transformers.json") or {}
    default, prompts = settings.get("default_prompt_name"), settings.get("prompts") or {}
    # One without a text is no prompt.
    if default is not None and (default not in prompts or prompts[default]):
        raise ConversionRefused(
            f"the model is a {CROSS_ENCODER} with a default prompt (default_prompt_name in "
            "config_sentence_transformers.json), and pairs are served without any; where it may "
            "be asked without, set default_prompt_name to null in a copy of the folder"
        )


def _refuse_yes_or_no(task: str, config: Mapping[str, Any], folder: Path) -> None:
    """Of a bare language model sentence-transformers' CrossEncoder takes the logits of "yes" and
    "no", and its SentenceTransformer makes an embedder that was never trained: the reference would
    be the same one, so that parity says nothing."""
    first = next(iter(config.get("architectures") or ()), "")
    if str(first).endswith(_CAUSAL) and not (folder / "modules.json").is_file():
        raise ConversionRefused(
            f"the model is {_named(config)}, which for {task} is a reranker that answers yes or "
            "no, and that is not served; convert its …ForSequenceClassification form with one "
            f"label, or, where it was trained to give vectors, a copy that {SENTENCE_TRANSFORMER} "
            "saved with its pooling (modules.json)"
        )


def is_cross_encoder(config: Mapping[str, Any], folder: Path) -> bool:
    """Whether the model takes two texts at once and scores them."""
    if (folder / "modules.json").is_file():
        return _sentence_kind(folder) == CROSS_ENCODER
    names = config.get("architectures") or ()
    return any(str(name).endswith("ForSequenceClassification") for name in names)


def _detected(config: Mapping[str, Any], folder: Path) -> str | None:
    if (folder / "modules.json").is_file():
        return "rerank" if _sentence_kind(folder) == CROSS_ENCODER else "sentence-embedding"
    if _was_cross_encoder(config):
        return "rerank"
    for name in config.get("architectures") or ():
        if _generates(name):
            continue
        for ending, task in _ARCHITECTURES.items():
            if str(name).endswith(ending):
                return task
    return None


def _generates(architecture: Any) -> bool:
    return str(architecture).endswith(_GENERATORS)


def _was_cross_encoder(config: Mapping[str, Any]) -> bool:
    """As releases before modules.json wrote one."""
    return "sentence_transformers" in config or "sbert_ce_default_activation_function" in config


def _sentence_kind(folder: Path) -> str:
    """What sentence-transformers takes the folder for; without modules.json it reads no more."""
    if not (folder / "modules.json").is_file():
        return SENTENCE_TRANSFORMER
    settings = read_json(folder / "config_sentence_transformers.json") or {}
    return str(settings.get("model_type") or SENTENCE_TRANSFORMER)


def _named(config: Mapping[str, Any]) -> str:
    return ", ".join(map(str, config.get("architectures") or ())) or "no architecture"
