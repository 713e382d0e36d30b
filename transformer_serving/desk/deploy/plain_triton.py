"""A bundle as the model repository of a Triton without ClearML, with an ensemble if asked for."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from transformer_serving.contract.engine_parameters import VLLM
from transformer_serving.contract.heads import TOKEN_ROLES
from transformer_serving.contract.naming import is_unquoted
from transformer_serving.desk.bundle.folder import Bundle
from transformer_serving.desk.deploy.endpoint import check_name
from transformer_serving.desk.failure import Failure
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


@dataclass(frozen=True)
class Repository:
    """`folder` is what --model-repository takes; `ensemble` the model that takes text, or None."""

    folder: Path
    model: str
    ensemble: str | None


def write_repository(
    bundle: Bundle,
    folder: Path,
    name: str,
    *,
    ensemble: bool,
    environment: Path | None = None,
) -> Repository:
    """Add the bundle's model `name` to the repository `folder`; a model of that name is replaced.

    With `ensemble` also NAME_tokenizer and NAME_text, which takes texts and gives the model's
    outputs; `environment` is the Python environment of the tokenizer, Triton's own unless given.
    Raises Failure (2) for a name Triton cannot load, for a head with other inputs, for vLLM, and
    for an environment whose path a shell would read otherwise.
    """
    check_name(name)
    if environment is not None and not is_unquoted(str(environment.absolute())):
        raise Failure(
            f"--python-environment: Triton cannot use '{environment.absolute()}', {UNQUOTED}",
            exit_code=2,
        )
    if bundle.manifest.engine == VLLM:
        raise Failure(
            "vLLM is told of its model's folder by path, which only the machine that serves it "
            "knows; serve the bundle with 'transformer-serving deploy'",
            exit_code=2,
        )
    config = from_text((bundle.model_folder / CONFIG).read_text("utf-8"))
    config.name = name
    if ensemble:
        _check_ensemble(bundle)
    version = str(bundle.manifest.bundle_version)
    files = [bundle.folder / entry.path for entry in bundle.manifest.files]
    engine = [
        path
        for path in files
        if path.parent == bundle.model_folder and path.name not in (CONFIG, PARITY)
    ]
    _write_model(folder / name, config, version, engine)
    if not ensemble:
        return Repository(folder, name, None)
    tokenizer, text = f"{name}_tokenizer", f"{name}_text"
    parts = [_TOKENIZER_MODEL, bundle.folder / "tokenizer.json"]
    _write_model(
        folder / tokenizer, tokenizer_config(bundle, tokenizer, environment), version, parts
    )
    _write_model(folder / text, ensemble_config(bundle, text, tokenizer, name), version, [])
    return Repository(folder, name, text)


def _check_ensemble(bundle: Bundle) -> None:
    others = [tensor.name for tensor in bundle.endpoint.inputs if tensor.role not in TOKEN_ROLES]
    if others:
        raise Failure(
            f"--ensemble: the model also needs {', '.join(others)}, which no tokenizer gives; send "
            "it tensors, or serve it with 'transformer-serving deploy'",
            exit_code=2,
        )


def _write_model(model: Path, config: ModelConfig, version: str, files: list[Path]) -> None:
    """The new folder takes the old one's place only when it is whole."""
    aside = model.with_name(f".{model.name}.new")
    shutil.rmtree(aside, ignore_errors=True)
    (aside / version).mkdir(parents=True)
    for path in files:
        shutil.copyfile(path, aside / version / path.name)
    (aside / CONFIG).write_text(to_text(config), "utf-8")
    shutil.rmtree(model, ignore_errors=True)
    aside.rename(model)


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
