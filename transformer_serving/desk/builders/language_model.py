"""A language model's files, and its engine opened on this machine's CPU as Triton's backend does.

Tested by tests/test_language_model.py.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from transformer_serving.contract.engine_parameters import (
    BLOCK_TOKENS,
    KV_PRECISION,
    MAX_WAITING,
    NUM_KV_BLOCKS,
    OPENVINO,
    check_parameters,
    parameters_of,
)
from transformer_serving.contract.errors import ContractError
from transformer_serving.contract.generation import Finish, Generation
from transformer_serving.desk.builders.files import EngineFiles
from transformer_serving.desk.builders.openvino import rename_operations
from transformer_serving.desk.failure import ConversionRefused
from transformer_serving.desk.source.language_model import LanguageModelSource
from transformer_serving.engine.backends.generation.calls import Call, CallRefused
from transformer_serving.engine.backends.generation.engine import Engine
from transformer_serving.engine.backends.generation.sequences import Part
from transformer_serving.engine.backends.generation.settings import (
    KV_OF,
    GenerationSettings,
    blocks_of,
    caches_of,
    read_generation_settings,
)
from transformer_serving.engine.backends.model_settings import ModelError, ModelSettings
from transformer_serving.engine.proof.greedy import Asked, Continued

_KV_BYTES = {"f32": 4, "bf16": 2, "f16": 2, "u8": 1}
_CACHE_BYTES = 1 << 30
# The cache that is made unasked holds no more whole sequences.
_WHOLE_SEQUENCES = 64
# Nothing that a proof asks takes as long.
_MOST_S = 3600.0


def check_engine_parameters(asked: Mapping[str, str], generation: Generation) -> None:
    """Raises ConversionRefused naming parameter, limit and got."""
    try:
        check_parameters(asked, generation.engine)
    except ContractError as error:
        raise ConversionRefused(str(error)) from None
    blocks, whole = asked.get(NUM_KV_BLOCKS.name), blocks_of(generation.max_positions)
    if blocks is not None and int(blocks) < whole:
        raise ConversionRefused(
            f"parameter '{NUM_KV_BLOCKS.name}' must be at least {whole}, which hold one sequence "
            f"of the model's {generation.max_positions} positions, got {blocks}; --max-length "
            "lowers the positions"
        )


def precisions_with_cache(precisions: Sequence[str], asked: Mapping[str, str]) -> tuple[str, ...]:
    """Those whose engine can keep its cache as asked. Raises ConversionRefused where none can."""
    kept = asked.get(KV_PRECISION.name)
    able = tuple(one for one in precisions if kept is None or kept in caches_of(one))
    if not able:
        raise ConversionRefused(
            f"parameter '{KV_PRECISION.name}' of precision {precisions[0]} must be one of "
            f"{', '.join(caches_of(precisions[0]))}, got '{kept}'"
        )
    return able


def build_language_model(
    precision: str,
    model: Any,
    source: LanguageModelSource,
    folder: Path,
    asked: Mapping[str, str] | None = None,
) -> EngineFiles:
    """The files of the exported `model` inside `folder`, and the parameters of its engine, of which
    `asked` are given.

    Float32 weights stay also for bf16, as for other models: builders.openvino says why.
    """
    from transformer_serving.engine.backends.openvino_quiet import openvino

    if precision == "int8":
        from transformer_serving.desk.builders.quantization import compressed_openvino

        model = compressed_openvino(model.clone())
    given = asked or {}
    kv_precision = given.get(KV_PRECISION.name, KV_OF[precision])
    token_bytes = _token_bytes(model, _KV_BYTES[kv_precision])
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
        parameters={
            **_parameters(source.generation, token_bytes),
            KV_PRECISION.name: kv_precision,
            **given,
        },
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


def _parameters(generation: Generation, token_bytes: int) -> dict[str, str]:
    """A gigabyte of cache, or as much as one whole sequence takes, and never more than would do."""
    whole = blocks_of(generation.max_positions)
    blocks = _CACHE_BYTES // (token_bytes * BLOCK_TOKENS)
    return {
        "vocabulary": str(generation.vocabulary),
        "max_positions": str(generation.max_positions),
        NUM_KV_BLOCKS.name: str(max(whole, min(blocks, whole * _WHOLE_SEQUENCES))),
        **{row.name: row.default for row in parameters_of(OPENVINO).values() if row.default},
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
    """The backend's own engine with the files, in this process, while the block runs.

    Raises ConversionRefused where it does not start, as for want of memory.
    """
    from transformer_serving.engine.backends.generation.pipeline import OpenVinoPipeline

    # How many may wait decides no answer, and a proof asks all at one time.
    settings = replace(settings_of(files), max_waiting=MAX_WAITING.high)
    folder = files.files[0].parent
    try:
        # One that is dead refuses every call, and this process has an error to show for it.
        engine = Engine(lambda: OpenVinoPipeline(folder, settings), settings, _unsaid, _unsaid)
    except ModelError as error:
        raise ConversionRefused(
            f"{error}, with a {NUM_KV_BLOCKS.flag} below {settings.kv_blocks} where memory is short"
        ) from None
    try:
        yield LocalEngine(engine)
    finally:
        engine.close()


def _unsaid(line: str) -> None:
    """What goes to a stub's log."""


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

    def gone(self, among: int) -> bool:
        return False

    def whole(self) -> Continued:
        if not self._ended.wait(_MOST_S):
            raise TimeoutError(f"no answer within {_MOST_S:.0f} s")
        if self._refusal is not None:
            raise self._refusal
        return Continued(tuple(self._ids), tuple(self._logprobs), self._finish)
