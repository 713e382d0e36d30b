"""A bundle as the model repository of a Triton without ClearML, with an ensemble if asked for."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from transformer_serving.contract.endpoint import Endpoint
from transformer_serving.contract.heads import HEADS, TOKEN_ROLES, TOKENS
from transformer_serving.contract.naming import is_unquoted
from transformer_serving.desk.bundle.folder import Bundle
from transformer_serving.desk.command_line import command_line
from transformer_serving.desk.deploy.endpoint import check_name
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.folder_replacement import replacing_folders
from transformer_serving.engine.errors import ConfigError
from transformer_serving.engine.model_config import (
    FILE_NAME as CONFIG,
    ModelConfig,
    data_type,
    from_text,
    to_text,
)
from transformer_serving.engine.proof.parity_set import FILE_NAME as PARITY
from transformer_serving.engine.tokenizer_model import __file__ as tokenizer_package
from transformer_serving.engine.triton_process import UNQUOTED

_TOKENIZER_MODEL = Path(tokenizer_package).with_name("model.py")
TEXT = "text"
# A model's configuration, which names it, and the files of its version.
_Model = tuple[ModelConfig, Sequence[Path]]
# What reads two texts in one row, by task and head.
_PAIRED = (
    *(("question-answering", "spans"), ("zero-shot-classification", "sequence")),
    *(("rerank", "sequence"), ("sentence-similarity", "sequence")),
)
# Triton wants a GPU for the first, and takes one that is there for the second.
_ON_GPU = ("KIND_GPU", "KIND_AUTO")


@dataclass(frozen=True)
class Repository:
    """`folder` is what --model-repository takes; `ensemble` the model that takes text, or None;
    `gpu` whether the model runs on a GPU."""

    folder: Path
    model: str
    ensemble: str | None
    gpu: bool


def write_repository(
    bundle: Bundle,
    folder: Path,
    name: str,
    *,
    ensemble: bool,
    environment: Path | None = None,
) -> Repository:
    """Add the bundle's model `name` to the repository `folder`; a model of that name is replaced,
    with its ensemble or not at all.

    With `ensemble` also NAME_tokenizer and NAME_text, which takes texts and gives the model's
    outputs; `environment` is the Python environment of the tokenizer, Triton's own unless given.
    Raises Failure (2) for a name Triton cannot load, for an ensemble of a task that takes more than
    single texts or answers for tokens, for generated text, for another bundle's ensemble that would
    stay, for an environment whose path a shell would read otherwise, and for a repository that
    nothing can be renamed into.
    """
    check_name(name)
    _check_task(bundle)
    version = str(bundle.manifest.bundle_version)
    if ensemble:
        _check_ensemble(bundle, environment)
    else:
        _check_left(folder, name, version)
    config = from_text((bundle.model_folder / CONFIG).read_text("utf-8"))
    config.name = name
    gpu = any(group.Kind.Name(group.kind) in _ON_GPU for group in config.instance_group)
    models: list[_Model] = [(config, _engine_files(bundle))]
    if ensemble:
        models += _text_models(bundle, name, environment)
    _write_models(folder, models, version)
    return Repository(folder, name, models[-1][0].name if ensemble else None, gpu)


def _engine_files(bundle: Bundle) -> list[Path]:
    files = [bundle.folder / entry.path for entry in bundle.manifest.files]
    return [
        path
        for path in files
        if path.parent == bundle.model_folder and path.name not in (CONFIG, PARITY)
    ]


def _text_models(bundle: Bundle, name: str, environment: Path | None) -> list[_Model]:
    """The tokenizer, and last the ensemble of it and the model `name`."""
    tokenizer = f"{name}_tokenizer"
    parts = (_TOKENIZER_MODEL, bundle.folder / "tokenizer.json")
    return [
        (tokenizer_config(bundle, tokenizer, environment), parts),
        (ensemble_config(bundle, f"{name}_text", tokenizer, name), ()),
    ]


def _check_task(bundle: Bundle) -> None:
    """Raises Failure for generated text, whose model has no batches and needs options."""
    if bundle.endpoint.generation is not None:
        raise Failure(
            "text-generation is served in pieces, with options that only the bundle's own "
            f"preprocess.py writes; serve the bundle with '{command_line('deploy')}'",
            exit_code=2,
        )


def _check_left(folder: Path, name: str, version: str) -> None:
    """Raises Failure where an ensemble stays that feeds the model another tokenizer's ids."""
    text = folder / f"{name}_text"
    try:
        steps = from_text((text / CONFIG).read_text("utf-8")).ensemble_scheduling.step
    except (OSError, ConfigError):
        return
    if any(step.model_name == name for step in steps) and not (text / version).is_dir():
        raise Failure(
            f"{text} takes texts for '{name}' with the tokenizer of another bundle; give "
            f"--ensemble too, or remove {name}_text and {name}_tokenizer from there",
            exit_code=2,
        )


def _check_ensemble(bundle: Bundle, environment: Path | None) -> None:
    if environment is not None and not is_unquoted(str(environment.absolute())):
        raise Failure(
            f"--python-environment: Triton cannot use '{environment.absolute()}', {UNQUOTED}",
            exit_code=2,
        )
    fault = _ensemble_fault(bundle.endpoint)
    if fault is not None:
        raise Failure(
            f"--ensemble: {fault}; send it tensors, or serve it with '{command_line('deploy')}'",
            exit_code=2,
        )


def _ensemble_fault(endpoint: Endpoint) -> str | None:
    """Why texts alone, one a row, do not give what the task answers."""
    others = [tensor.name for tensor in endpoint.inputs if tensor.role not in TOKEN_ROLES]
    if others:
        return f"the model also needs {', '.join(others)}, which no tokenizer gives"
    if (endpoint.task, endpoint.head) in _PAIRED:
        return f"task {endpoint.task} reads pairs of texts here, and an ensemble takes single ones"
    if any(TOKENS in axes for axes in HEADS[endpoint.head].outputs):
        return (
            f"task {endpoint.task} has an output for each token, and nothing would say how many "
            "tokens of the padded ones are a text's"
        )
    prompts = endpoint.embedding.prompts if endpoint.embedding else {}
    if endpoint.task == "rerank" and (prompts.get("query") or prompts.get("document")):
        return "the model puts another prompt before a query than before a document"
    return None


def _prompt(endpoint: Endpoint) -> str:
    """What preprocess puts before each text of a request that names no prompt."""
    embedding = endpoint.embedding
    if embedding is None or embedding.default_prompt is None or endpoint.task == "rerank":
        return ""
    return embedding.prompts[embedding.default_prompt]


def _write_models(folder: Path, models: Sequence[_Model], version: str) -> None:
    """The new ones take the old ones' places only when all are whole, an ensemble as the last."""
    folder.mkdir(parents=True, exist_ok=True)
    targets = [folder / config.name for config, _ in models]
    aside = _aside(folder)
    with _told(folder, aside), replacing_folders(targets, aside=aside) as made:
        for (config, files), new in zip(models, made, strict=True):
            (new / version).mkdir()
            for path in files:
                shutil.copyfile(path, new / version / path.name)
            (new / CONFIG).write_text(to_text(config), "utf-8")


def _aside(models: Path) -> Path:
    """Where models are made: on the repository's disk, which a rename does not leave, and outside
    of it where that can be, for Triton takes each folder in it for a model."""
    disk = models.stat().st_dev
    for folder in (models.parent, models.resolve().parent):
        if folder.stat().st_dev == disk and os.access(folder, os.W_OK):
            return folder
    return models


@contextmanager
def _told(models: Path, aside: Path) -> Iterator[None]:
    """A mount of the same disk is known by a rename alone."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        raise Failure(
            f"what is made in {aside} cannot be renamed into {models}, which seems to be a mount; "
            f"name a folder inside it: --output {models}",
            exit_code=2,
        ) from error


def _config(bundle: Bundle, name: str) -> ModelConfig:
    return from_text(
        f'name: "{name}" max_batch_size: {bundle.endpoint.limits.max_batch_size}', name
    )


def tokenizer_config(bundle: Bundle, name: str, environment: Path | None) -> ModelConfig:
    """config.pbtxt of the tokenizer's model: texts in, the engine's inputs out."""
    config = _config(bundle, name)
    config.backend = "python"
    config.input.add(name=TEXT, data_type=data_type("STRING"), dims=[1])
    for tensor in bundle.endpoint.inputs:
        config.output.add(name=tensor.role, data_type=data_type(tensor.dtype), dims=[-1])
    config.instance_group.add(count=1, kind="KIND_CPU")
    if environment is not None:
        config.parameters["EXECUTION_ENV_PATH"].string_value = str(environment.absolute())
    config.parameters["tokens"].string_value = json.dumps(asdict(bundle.endpoint.tokens))
    config.parameters["prompt"].string_value = _prompt(bundle.endpoint)
    return config


def ensemble_config(bundle: Bundle, name: str, tokenizer: str, model: str) -> ModelConfig:
    """config.pbtxt of the ensemble: text to tokens to the model's outputs."""
    config = _config(bundle, name)
    config.platform = "ensemble"
    config.input.add(name=TEXT, data_type=data_type("STRING"), dims=[1])
    first = config.ensemble_scheduling.step.add(model_name=tokenizer, model_version=-1)
    second = config.ensemble_scheduling.step.add(model_name=model, model_version=-1)
    first.input_map[TEXT] = TEXT
    for tensor in bundle.endpoint.inputs:
        first.output_map[tensor.role] = tensor.role
        second.input_map[tensor.name] = tensor.role
    for output in bundle.endpoint.outputs:
        second.output_map[output.name] = output.name
        config.output.add(
            name=output.name, data_type=data_type(output.dtype), dims=list(output.dims)
        )
    return config
