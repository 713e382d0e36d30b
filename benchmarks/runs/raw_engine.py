"""The engine alone, as our backend runs it in Triton's stub: a process that only computes.

`python -m benchmarks.runs.raw_engine MODEL_FOLDER` loads a bundle's model folder and answers each
line {"batch": n, "tokens": n, "seconds": s} on stdin with a line of figures. With {"lengths":
[...], "pads": [...]} the texts have these lengths, and go in a call for each of the pads that fits
some. With "pause_s" it sleeps before each call, as an engine does that waits for its next request.
It runs on a GPU where its engine sees one. When it is ready it says so first, and whether it
computes padding; what is slower than it might be stands beside each line's figures as "remarks".
"""

from __future__ import annotations

import functools
import importlib
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf import json_format  # type: ignore[import-untyped]

from transformer_serving.desk.bench.figures import percentile
from transformer_serving.engine.backends.executor import RequestFailure, Runtime
from transformer_serving.engine.backends.grouping import Arrays
from transformer_serving.engine.backends.model_settings import (
    ModelSettings,
    find_model,
    read_settings,
)
from transformer_serving.engine.model_config import FILE_NAME, from_text

_RUNTIMES = {
    "openvino_text": ("transformer_serving.engine.backends.openvino_runtime", "OpenVinoRuntime"),
    "onnxruntime": ("transformer_serving.engine.backends.onnx_runtime", "OnnxRuntime"),
    "torch_text": ("transformer_serving.engine.backends.torch_runtime", "TorchRuntime"),
    "tensorrt": ("benchmarks.runs.gpu_runtimes", "PlanRuntime"),
    "onnxruntime-cuda": ("benchmarks.runs.gpu_runtimes", "OnnxCudaRuntime"),
}
# Texts of a call padded to one length on a GPU too.
PADDED = "torch_text-padded"
_FILES = ("model.xml", "model.onnx", "program.json", "model.plan")
_ANY_ID = 1000


def main(arguments: list[str]) -> None:
    runtime = load(Path(arguments[0]), *arguments[1:2])
    _print({"packed": getattr(runtime, "packed", False), **_remarks(runtime)})
    for line in sys.stdin:
        wanted = json.loads(line)
        figures = measure(
            runtime, _calls(runtime, wanted), wanted["seconds"], wanted.get("pause_s", 0.0)
        )
        _print({**figures, **_remarks(runtime)})


def _print(found: Mapping[str, Any]) -> None:
    print(json.dumps(found), flush=True)  # noqa: T201


def _remarks(runtime: Runtime) -> dict[str, list[str]]:
    """Engine torch alone has some."""
    return {"remarks": list(getattr(runtime, "remarks", ()))}


def load(folder: Path, backend: str = "") -> Runtime:
    """The runtime that the bundle's own backend would make of it, or another of _RUNTIMES."""
    config = from_text((folder / FILE_NAME).read_text("utf-8"))
    fields: dict[str, Any] = json_format.MessageToDict(config, preserving_proto_field_name=True)
    fields["parameters"] = {
        name: {"string_value": value.string_value} for name, value in config.parameters.items()
    }
    settings = read_settings(fields)
    version = next((path for path in folder.iterdir() if path.name.isdigit()), folder)
    return _open(backend or str(config.backend), version, settings)


def _open(backend: str, folder: Path, settings: ModelSettings) -> Runtime:
    if backend in ("torch_text", PADDED):
        import torch

        settings = replace(settings, gpu=0 if torch.cuda.is_available() else None)
    module, name = _RUNTIMES[backend.removesuffix("-padded")]
    # Imported by need: each engine is a big package.
    runtime = getattr(importlib.import_module(module), name)
    if backend == PADDED:
        runtime = functools.partial(runtime, packed=False)
    made: Runtime = runtime(find_model(folder, settings, _FILES), settings)
    return made


def _calls(runtime: Runtime, wanted: Mapping[str, Any]) -> list[Arrays]:
    if "lengths" in wanted:
        return list(mixed_calls(runtime, wanted["lengths"], wanted["pads"]))
    return [call_inputs(runtime, wanted["batch"], wanted["tokens"])]


def measure(
    runtime: Runtime, calls: Sequence[Arrays], seconds: float, pause_s: float = 0.0
) -> dict[str, float]:
    """Texts a second, processor time of a text, and milliseconds of all `calls` together; a pause
    before them is no part of any."""
    times: list[float] = []
    spent = time.process_time()
    begun = time.perf_counter()
    while (now := time.perf_counter()) - begun < seconds or len(times) < 2:
        if pause_s:
            time.sleep(pause_s)
            now = time.perf_counter()
        for answer in runtime.run(calls):
            if isinstance(answer, RequestFailure):
                raise SystemExit(answer.reason)
        times.append(time.perf_counter() - now)
    elapsed = sum(times) if pause_s else time.perf_counter() - begun
    spent = time.process_time() - spent
    texts = len(times) * sum(len(next(iter(call.values()))) for call in calls)
    times.sort()
    return {
        "engine_us": 1e6 * spent / texts,
        "rate": texts / elapsed,
        "mean": 1e3 * elapsed / len(times),
        **{f"p{share:.0f}": 1e3 * percentile(times, share) for share in (50.0, 90.0, 99.0)},
    }


def call_inputs(runtime: Runtime, batch: int, tokens: int) -> Arrays:
    """The tensors of a call of shape (batch, tokens), the same word all over."""
    return {
        spec.name: np.full((batch, tokens), _value(spec.name), np.dtype(spec.dtype))
        for spec in runtime.graph.inputs
    }


def mixed_calls(runtime: Runtime, lengths: Sequence[int], pads: Sequence[int]) -> Iterator[Arrays]:
    """Texts of these lengths, each in the call that is padded to the least of `pads` that fits."""
    shorter = 0
    for pad in sorted(pads):
        some = [length for length in lengths if shorter < length <= pad]
        shorter = pad
        if some:
            call = call_inputs(runtime, len(some), pad)
            there = np.arange(pad)[None, :] < np.array(some)[:, None]
            yield {name: (array * there).astype(array.dtype) for name, array in call.items()}


def _value(name: str) -> int:
    return {"attention_mask": 1, "token_type_ids": 0}.get(name, _ANY_ID)


if __name__ == "__main__":
    main(sys.argv[1:])
