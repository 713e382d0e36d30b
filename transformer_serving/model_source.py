"""Where a model comes from: a Hub id or a folder becomes its task, tokenizer and limits.

Nothing here imports torch: a model that cannot be served is refused before anything is loaded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contract.heads import TASKS
from transformer_serving.model_files import read_json
from transformer_serving.refusal import ConversionRefused
from transformer_serving.tokenizer_file import TokenizerFile, read_tokenizer

_WEIGHTS = ("*.safetensors",)
_PICKLED_WEIGHTS = ("*.bin",)
# Other frameworks' copies of the same weights double a download and are never read.
_IGNORED = ("*.bin", "*.h5", "*.msgpack", "*.ot", "*.tflite", "*.onnx", "onnx/*", "openvino/*")
# These families count positions from the padding id on, so the table is longer than a text may be.
_OFFSET_POSITIONS = ("roberta", "xlm-roberta", "camembert", "xlm-roberta-xl", "mpnet", "longformer")
_DEFAULT_MAX_LENGTH = 512
_UNBOUNDED = 1_000_000


@dataclass(frozen=True)
class SentenceModules:
    """The sentence-transformers modules after the encoder, by class name, in order."""

    names: tuple[str, ...]

    @property
    def normalize(self) -> bool:
        return "Normalize" in self.names


@dataclass(frozen=True)
class ModelSource:
    """A model on disk, read but not loaded. `revision` is None for a folder."""

    name: str
    revision: str | None
    folder: Path
    task: str
    model_type: str
    tokenizer: TokenizerFile
    max_length: int
    takes_token_types: bool
    labels: tuple[str, ...]
    problem_type: str
    modules: SentenceModules | None


def open_source(
    model: str,
    *,
    task: str | None = None,
    revision: str | None = None,
    name: str | None = None,
) -> ModelSource:
    """Find `model` (a folder, else a Hub id) and read what serving needs to know of it.

    The Hub's own environment is honoured: HF_TOKEN, HF_HOME, HF_HUB_OFFLINE, HF_ENDPOINT.
    Raises ConversionRefused when the model is not found or its task cannot be served.
    """
    folder, found_name, found_revision = _locate(model, revision)
    config = _read_config(folder)
    chosen = task or _task_of(config, folder)
    if chosen not in TASKS:
        raise ConversionRefused(
            f"task '{chosen}' cannot be served; choose one of {', '.join(TASKS)}"
        )
    classifies = chosen == "text-classification"
    tokenizer = read_tokenizer(folder, config, chosen)
    return ModelSource(
        name=name or found_name,
        revision=found_revision,
        folder=folder,
        task=chosen,
        model_type=str(config.get("model_type", "")),
        tokenizer=tokenizer,
        max_length=_max_length(folder, config, chosen),
        takes_token_types=int(config.get("type_vocab_size") or 0) > 1,
        labels=_labels(config) if classifies else (),
        problem_type=_problem_type(config) if classifies else "",
        modules=None if classifies else _modules(folder),
    )


def _locate(model: str, revision: str | None) -> tuple[Path, str, str | None]:
    path = Path(model)
    if path.is_dir():
        if revision is not None:
            raise ConversionRefused(
                f"--revision names a Hub revision, but '{model}' is a folder; leave it out"
            )
        return path.resolve(), path.resolve().name, None
    if path.is_absolute() or model.startswith(".") or model.count("/") > 1:
        raise ConversionRefused(f"folder '{model}' does not exist; name a model folder or a Hub id")
    folder = _download(model, revision)
    # A snapshot's folder is named by the commit that the revision stood for.
    return folder, model, folder.name


def _download(model: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(model, revision=revision, ignore_patterns=list(_IGNORED)))
        if not any(folder.glob("*.safetensors")):
            patterns = [*_WEIGHTS, *_PICKLED_WEIGHTS]
            snapshot_download(model, revision=revision, allow_patterns=patterns)
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        raise ConversionRefused(
            f"model '{model}' is neither a folder nor reachable on the Hub "
            f"({type(error).__name__}); check the name and --revision, set HF_TOKEN for a private "
            "model, or copy the model into a folder and name that"
        ) from error
    return folder


def _read_config(folder: Path) -> dict[str, Any]:
    """config.json with its family's defaults filled in (a config may leave defaults out)."""
    written = read_json(folder / "config.json")
    if written is None:
        raise ConversionRefused(
            f"'{folder.name}' has no readable config.json; it is not a transformers model folder"
        )
    from transformers import AutoConfig

    try:
        known: dict[str, Any] = AutoConfig.from_pretrained(str(folder)).to_dict()
    except (ValueError, OSError, KeyError) as error:
        raise ConversionRefused(
            f"model type '{written.get('model_type')}' is not one that the pinned transformers "
            "knows by itself; models with code of their own are not loaded"
        ) from error
    # An absent id2label means two made-up names; whether it was written matters for labels.
    return {**known, "architectures": written.get("architectures")}


def _task_of(config: Mapping[str, Any], folder: Path) -> str:
    if (folder / "modules.json").is_file():
        return "sentence-embedding"
    architectures = config.get("architectures") or ()
    if any(str(name).endswith("ForSequenceClassification") for name in architectures):
        return "text-classification"
    named = ", ".join(map(str, architectures)) or "no architecture"
    raise ConversionRefused(
        f"the task of '{folder.name}' ({named}) is not clear; name it with --task, one of "
        f"{', '.join(TASKS)}"
    )


def _labels(config: Mapping[str, Any]) -> tuple[str, ...]:
    table = {int(key): str(label) for key, label in (config.get("id2label") or {}).items()}
    if sorted(table) != list(range(len(table))) or not table:
        raise ConversionRefused(
            "config.json's id2label must name the labels 0, 1, 2 and so on; correct it"
        )
    if len(set(table.values())) != len(table):
        raise ConversionRefused("config.json's id2label names one label twice; correct it")
    return tuple(table[index] for index in range(len(table)))


def _problem_type(config: Mapping[str, Any]) -> str:
    """How logits become scores, decided as transformers' own pipeline decides it."""
    written = config.get("problem_type")
    if written == "regression":
        raise ConversionRefused(
            "a regression head has no labels to answer with; only classification can be served"
        )
    single_column = len(config.get("id2label") or {}) == 1
    return (
        "multi_label"
        if written == "multi_label_classification" or single_column
        else ("single_label")
    )


def _modules(folder: Path) -> SentenceModules:
    path = folder / "modules.json"
    if not path.is_file():
        # sentence-transformers' own choice for a bare encoder.
        return SentenceModules(("Pooling",))
    rows = sorted(json.loads(path.read_bytes()), key=lambda row: int(row["idx"]))
    names = [str(row["type"]).rsplit(".", 1)[-1] for row in rows]
    if not names or names[0] != "Transformer":
        raise ConversionRefused(
            f"modules.json starts with '{names[0] if names else 'nothing'}'; only models that "
            "start with a Transformer module can be served"
        )
    settings = read_json(folder / "config_sentence_transformers.json") or {}
    if settings.get("default_prompt_name"):
        raise ConversionRefused(
            f"the model puts its prompt '{settings['default_prompt_name']}' before every text, "
            "which an endpoint does not; set default_prompt_name to null in "
            "config_sentence_transformers.json and let callers send the prompt"
        )
    return SentenceModules(tuple(names[1:]))


def _max_length(folder: Path, config: Mapping[str, Any], task: str) -> int:
    """The longest text in tokens, special tokens included: the smallest of what the files say."""
    bounds: list[int] = []
    positions = config.get("max_position_embeddings")
    if isinstance(positions, int) and positions > 0:
        offset = config.get("model_type") in _OFFSET_POSITIONS
        bounds.append(positions - (int(config.get("pad_token_id") or 0) + 1 if offset else 0))
    sentence = read_json(folder / "sentence_bert_config.json") or {}
    if task == "sentence-embedding" and isinstance(sentence.get("max_seq_length"), int):
        bounds.append(sentence["max_seq_length"])
    written = (read_json(folder / "tokenizer_config.json") or {}).get("model_max_length")
    if isinstance(written, int) and written < _UNBOUNDED:
        bounds.append(written)
    return min(bounds, default=_DEFAULT_MAX_LENGTH)
