"""Tritons beside the stack's own: the same models with other backends or other settings."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.servers.process import Child, free_ports
from transformer_serving.engine import backend_directory, triton_process
from transformer_serving.engine.model_config import FILE_NAME, from_text, to_text

_ENGINES = Path(__file__).parent.parent / "engines"
# Bigger files are weights, which a null engine does not read.
_SMALL = 1 << 20


@dataclass(frozen=True)
class Triton:
    """A running tritonserver and where it listens; `http` is host:port or unix:/path."""

    child: Child
    http: str
    grpc: str

    def variables(self) -> dict[str, str]:
        """What points an inference app at this Triton."""
        return {
            "TRANSFORMER_SERVING_TRITON_HTTP": self.http,
            "TRANSFORMER_SERVING_TRITON_GRPC": self.grpc,
            "CLEARML_DEFAULT_TRITON_GRPC_ADDR": self.grpc,
        }


def start_triton(
    name: str, work: Path, *, null: bool = False, sleeping: bool = False, socket: bool = False,
    environment: Mapping[str, str] | None = None, packages: Path | None = None,
) -> Triton:  # fmt: skip
    """Start one on the repository `work`/models and wait until its models are loaded.

    Its Python models take the packages of the environment whose programs are in `packages`. `null`
    puts an engine that answers zeros in the place of ours, `sleeping` one that takes its time for
    it (BENCH_TEXTS_A_SECOND in the environment); `socket` makes it listen on unix sockets, as the
    embedded stack's. Raises Unusable with its last words.
    """
    http, grpc, metrics = free_ports(3)
    pytriton = backend_directory.pytriton_tritonserver()
    backends = work / "backends"
    shutil.rmtree(backends, ignore_errors=True)
    backend_directory.assemble(backends, pytriton=pytriton)
    if null or sleeping:
        _take_engines_out(backends, "sleeping_model.py" if sleeping else "null_model.py")
    host = f"unix:{work}/triton" if socket else triton_process.LOOPBACK
    addresses = triton_process.TritonAddresses(
        http, grpc, metrics, host, metrics_host=triton_process.LOOPBACK
    )
    addresses.remove_sockets()
    command = triton_process.triton_command(
        pytriton / "bin" / "tritonserver",
        repository=work / "models",
        backend_directory=backends,
        addresses=addresses,
        extra=["--load-model=*"],
    )
    variables = {**triton_process.triton_environment(), **(environment or {})}
    if packages is not None:
        variables["PATH"] = f"{packages}{os.pathsep}{variables['PATH']}"
    child = Child(name, command, work / "triton.log", variables)
    child.start()
    try:
        # Its figures are served once its models are loaded or have failed.
        child.wait_until(f"http://{addresses.metrics}/metrics")
    except BaseException:
        child.stop()
        raise
    return Triton(child, addresses.http, addresses.grpc)


def copy_repository(source: Path, target: Path, only: str | None = None) -> Path:
    """The repository `source` as it is now, without links, at `target`/models.

    Weights are linked, not copied. `only` names the one model that is wanted.
    """
    models = target / "models"
    shutil.rmtree(models, ignore_errors=True)
    for folder in sorted(path for path in source.iterdir() if (path / FILE_NAME).is_file()):
        if only not in (None, folder.name):
            continue
        shutil.copytree(folder, models / folder.name, copy_function=_link_or_copy)
    return models


def multiply(models: Path, model: str, names: Sequence[str]) -> None:
    """More models like `model` in the same repository, under other names."""
    for name in names:
        target = models / name
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(models / model, target, copy_function=_link_or_copy)
        config_file = target / FILE_NAME
        config = from_text(config_file.read_text("utf-8"))
        config.name = name
        config_file.unlink()
        config_file.write_text(to_text(config), "utf-8")


def _link_or_copy(source: str, target: str) -> None:
    if os.path.getsize(source) > _SMALL:
        os.link(os.path.realpath(source), target)
    else:
        shutil.copyfile(source, target)


def _take_engines_out(backends: Path, stand_in: str) -> None:
    for backend in backend_directory.BACKENDS:
        shutil.copyfile(_ENGINES / "null_model.py", backends / backend / "null_model.py")
        shutil.copyfile(_ENGINES / stand_in, backends / backend / "model.py")


def ensemble_repository(target: Path, stack_models: Path, model: str) -> None:
    """Tokenizer, engine and the ensemble that joins them, as the templates of that way have it."""
    models = copy_repository(stack_models, target, only=model)
    tokenizer = models / "tokenizer"
    (tokenizer / "1").mkdir(parents=True)
    shutil.copyfile(_ENGINES / "tokenizer_model.py", tokenizer / "1" / "model.py")
    (tokenizer / FILE_NAME).write_text(_TOKENIZER_CONFIG, "utf-8")
    (models / "ensemble" / "1").mkdir(parents=True)
    (models / "ensemble" / FILE_NAME).write_text(_ensemble_config(model), "utf-8")


_NAMES = ("input_ids", "token_type_ids", "attention_mask")


def _tensor(kind: str, name: str, dtype: str, dims: int) -> str:
    return f'{kind} {{ name: "{name}" data_type: TYPE_{dtype} dims: {dims} }}\n'


_TOKENIZER_CONFIG = (
    'name: "tokenizer"\nbackend: "python"\nmax_batch_size: 64\n'
    + _tensor("input", "TEXT", "STRING", 1)
    + "".join(_tensor("output", name, "INT32", -1) for name in _NAMES)
    + "dynamic_batching { }\ninstance_group { count: 1 kind: KIND_CPU }\n"
)


def _ensemble_config(model: str) -> str:
    ids = [f'key: "{name}" value: "{name}"' for name in _NAMES]
    first = "".join(f"output_map {{ {pair} }} " for pair in ids)
    second = "".join(f"input_map {{ {pair} }} " for pair in ids)
    return (
        'name: "ensemble"\nplatform: "ensemble"\nmax_batch_size: 64\n'
        + _tensor("input", "TEXT", "STRING", 1)
        + _tensor("output", "output", "FP32", 2)
        + "ensemble_scheduling {\n"
        + 'step { model_name: "tokenizer" model_version: -1 '
        + f'input_map {{ key: "TEXT" value: "TEXT" }} {first}}}\n'
        + f'step {{ model_name: "{model}" model_version: -1 {second}'
        + 'output_map { key: "output" value: "output" } }\n}\n'
    )
