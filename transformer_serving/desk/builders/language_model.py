"""A language model's files, and its engine opened on this machine's CPU as Triton's backend does.

Tested by tests/test_language_model.py.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from transformer_serving.contract.generation import Finish
from transformer_serving.desk.builders.files import EngineFiles
from transformer_serving.desk.builders.openvino import rename_operations
from transformer_serving.desk.source.language_model import LanguageModelSource
from transformer_serving.engine.backends.generation.calls import Call, CallRefused
from transformer_serving.engine.backends.generation.engine import Engine
from transformer_serving.engine.backends.generation.sequences import Part
from transformer_serving.engine.backends.generation.settings import (
    BLOCK_TOKENS,
    GenerationSettings,
    blocks_of,
    read_generation_settings,
)
from transformer_serving.engine.backends.model_settings import ModelSettings
from transformer_serving.engine.proof.greedy import Asked, Continued

PRECISIONS = ("fp32", "bf16", "int8")
# The cache of exact models keeps what they compute; the others' is the smallest there is.
_KV = {"fp32": "f32", "bf16": "u8", "int8": "u8"}
_KV_BYTES = {"f32": 4, "bf16": 2, "f16": 2, "u8": 1}
_CACHE_BYTES = 1 << 30
_MAX_RUNNING = 64
# Nothing that a proof asks takes as long.
_MOST_S = 3600.0


def build_language_model(
    precision: str, model: Any, source: LanguageModelSource, folder: Path
) -> EngineFiles:
    """The files of the exported `model` inside `folder`, and the parameters of its engine.

    Float32 weights stay also for bf16, as for other models: builders.openvino says why.
    """
    from transformer_serving.engine.backends.openvino_quiet import openvino

    if precision == "int8":
        from transformer_serving.desk.builders.quantization import compressed_openvino

        model = compressed_openvino(model.clone())
    token_bytes = _token_bytes(model, _KV_BYTES[_KV[precision]])
    rename_operations(model)
    graph = folder / "openvino_model.xml"
    openvino.save_model(model, str(graph), compress_to_fp16=False)
    config = folder / "config.json"
    shutil.copyfile(source.folder / config.name, config)
    defaults = folder / "generation_config.json"
    defaults.write_text(json.dumps(_defaults(source), indent=2) + "\n", "utf-8")
    return EngineFiles(
        "openvino",
        precision,
        (graph, graph.with_suffix(".bin"), config, defaults),
        parameters=_parameters(precision, source, token_bytes),
    )


def _defaults(source: LanguageModelSource) -> dict[str, Any]:
    """In transformers' terms, for who runs the folder without this kit."""
    generation = source.generation
    return {
        "eos_token_id": list(generation.eos_ids),
        "max_new_tokens": generation.default_new_tokens,
        **asdict(generation.sampling),
    }


def _token_bytes(model: Any, value_bytes: int) -> int:
    """What one token takes in the cache: all heads of the keys and values of every layer."""
    total = 0
    for operation in model.get_ops():
        if operation.get_type_name() == "ReadValue":
            shape = operation.get_output_partial_shape(0)
            total += shape[1].get_length() * shape[3].get_length() * value_bytes
    return max(1, total)


def _parameters(precision: str, source: LanguageModelSource, token_bytes: int) -> dict[str, str]:
    """A gigabyte of cache, or as much as one whole sequence takes, and never more than would do."""
    generation = source.generation
    whole = blocks_of(generation.max_positions)
    blocks = _CACHE_BYTES // (token_bytes * BLOCK_TOKENS)
    return {
        "kv_precision": _KV[precision],
        "vocabulary": str(generation.vocabulary),
        "max_positions": str(generation.max_positions),
        "num_kv_blocks": str(max(whole, min(blocks, whole * _MAX_RUNNING))),
        "max_running": str(_MAX_RUNNING),
        "max_num_batched_tokens": "256",
        "prefix_cache": "off",
        "send_gap_ms": "80",
    }


def settings_of(files: EngineFiles) -> GenerationSettings:
    """The settings that the backend will read in the bundle's configuration, with all cores."""
    parameters = {
        "precision": files.precision,
        "intra_op_thread_count": str(len(os.sched_getaffinity(0))),
        **files.parameters,
    }
    return read_generation_settings(ModelSettings(0, (), (), 1, "", parameters, 0))


@contextmanager
def open_language_model_engine(files: EngineFiles) -> Iterator[LocalEngine]:
    """The backend's own engine with the files, in this process, while the block runs."""
    from transformer_serving.engine.backends.generation.pipeline import OpenVinoPipeline

    settings = settings_of(files)
    folder = files.files[0].parent
    engine = Engine(lambda: OpenVinoPipeline(folder, settings), settings, lambda line: None)
    try:
        yield LocalEngine(engine)
    finally:
        engine.close()


class LocalEngine:
    """Asks an engine of this process as a proof does."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __call__(self, asked: Sequence[Asked]) -> list[Continued]:
        """All at one time. Raises CallRefused for the first that is refused."""
        collected = [_Collected() for _ in asked]
        for one, answers in zip(asked, collected, strict=True):
            self._engine.submit(Call(np.array(one.prompt, np.int32), one.options), answers)
        return [answers.whole() for answers in collected]


class _Collected:
    """One call's answers, kept until the last."""

    def __init__(self) -> None:
        self._ids: list[int] = []
        self._logprobs: list[float] = []
        self._finish = Finish.RUNNING
        self._refusal: CallRefused | None = None
        self._ended = threading.Event()

    def send(self, part: Part, prompt: int, generated: int) -> None:
        self._ids += part.ids
        self._logprobs += part.logprobs
        self._finish = part.finish
        if part.finish is not Finish.RUNNING:
            self._ended.set()

    def refuse(self, refusal: CallRefused) -> None:
        self._refusal = refusal
        self._ended.set()

    def gone(self) -> bool:
        return False

    def whole(self) -> Continued:
        if not self._ended.wait(_MOST_S):
            raise TimeoutError(f"no answer within {_MOST_S:.0f} s")
        if self._refusal is not None:
            raise self._refusal
        return Continued(tuple(self._ids), tuple(self._logprobs), self._finish)
