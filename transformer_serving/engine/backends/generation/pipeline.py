"""openvino_genai's continuous batching with paged attention, as the engine thread drives it.

Tested by tests/engine/test_openvino_generate.py.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np

from transformer_serving.contract.engine_parameters import SPARE_BLOCKS
from transformer_serving.contract.generation import Finish, Options
from transformer_serving.engine.backends.generation.calls import Call
from transformer_serving.engine.backends.generation.seeds import folded
from transformer_serving.engine.backends.generation.sequences import Part
from transformer_serving.engine.backends.generation.settings import COMPUTED, GenerationSettings
from transformer_serving.engine.backends.model_settings import ModelError
from transformer_serving.engine.backends.openvino_quiet import cause_of, check_ir, core, openvino
from transformer_serving.engine.backends.precision import openvino_properties

import openvino_genai as genai  # isort: skip  # openvino_quiet has to come first

# What the pipeline reads in a folder; generation_config.json may be absent.
FILES = ("openvino_model.xml", "openvino_model.bin", "config.json")
# It takes less than 1 alone, in 32 bits; this leaves in no more than 1 would.
_MOST_MIN_P = float(np.nextafter(np.float32(1), np.float32(0)))


class OpenVinoPipeline:
    """The model of a folder on this machine's CPU; used from one thread."""

    def __init__(self, folder: Path, settings: GenerationSettings) -> None:
        for name in FILES:
            if not (folder / name).is_file():
                raise ModelError(f"model file '{name}' is missing; upload the model again")
        self._numbers = itertools.count()
        self._all_to_shared = (settings.kv_blocks + SPARE_BLOCKS) / settings.kv_blocks
        try:
            check_ir(folder / FILES[0])
            self._inner = genai.ContinuousBatchingPipeline(
                str(folder), _scheduler(settings), "CPU", _properties(settings)
            )
        except RuntimeError as error:
            raise ModelError(
                f"'{FILES[0]}' cannot be loaded by openvino_genai ({cause_of(error)}); convert "
                "again"
            ) from None

    def start(self, call: Call) -> _Handle:
        ids = openvino.Tensor(call.ids.astype(np.int64).reshape(1, -1))
        inner = self._inner.add_request(next(self._numbers), ids, _config(call.options))
        return _Handle(inner, frozenset(call.options.eos_ids), call.options.logprobs)

    def step(self) -> None:
        self._inner.step()

    def busy(self) -> bool:
        return bool(self._inner.has_non_finished_requests())

    def cache_use(self) -> float:
        return min(1.0, float(self._inner.get_metrics().cache_usage) / 100 * self._all_to_shared)


class _Handle:
    def __init__(self, inner: Any, eos_ids: frozenset[int], logprobs: bool) -> None:
        self._inner = inner
        self._eos_ids = eos_ids
        self._logprobs = logprobs
        self._last = -1

    def take(self) -> Part:
        # Asked first: what comes in between is read below, or the next time.
        status = self._inner.get_status()
        ids: list[int] = []
        logprobs: list[float] = []
        while self._inner.can_read():
            for output in self._inner.read().values():
                ids += output.generated_ids
                logprobs += output.generated_log_probs
        if ids:
            self._last = ids[-1]
        return Part(ids, logprobs if self._logprobs else [], self._finish(status))

    def cancel(self) -> None:
        self._inner.cancel()

    def _finish(self, status: Any) -> Finish:
        if status == genai.GenerationStatus.RUNNING:
            return Finish.RUNNING
        if status == genai.GenerationStatus.IGNORED:
            return Finish.CACHE_FULL
        if status == genai.GenerationStatus.FINISHED:
            return Finish.STOP if self._last in self._eos_ids else Finish.LENGTH
        return Finish.CANCELLED


def _scheduler(settings: GenerationSettings) -> Any:
    scheduler = genai.SchedulerConfig()
    # Else the cache would be as large as whole gigabytes say.
    scheduler.cache_size = 0
    scheduler.num_kv_blocks = settings.kv_blocks + SPARE_BLOCKS
    most = settings.max_running + 1
    scheduler.max_num_batched_tokens = max(settings.step_tokens, most)
    scheduler.max_num_seqs = most
    scheduler.dynamic_split_fuse = True
    scheduler.enable_prefix_caching = settings.prefix_cache
    return scheduler


def _properties(settings: GenerationSettings) -> dict[str, str]:
    """A cache in what the model computes in goes with it to f32 where the CPU lacks bf16."""
    properties = openvino_properties(
        settings.precision,
        capabilities=core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"),
        threads=settings.threads,
    )
    kept = settings.kv_precision
    if kept in COMPUTED:
        kept = properties["INFERENCE_PRECISION_HINT"]
    return {**properties, "KV_CACHE_PRECISION": kept}


def _config(options: Options) -> Any:
    """The options in openvino_genai's terms.

    Neither a stop string, which without its own tokenizer poisons the pipeline, nor several
    sequences can be asked for. Its `no_repeat_ngram_size` is never set: without beams it is taken
    and does nothing. Nor are its frequency and presence penalties, which are not OpenAI's: no call
    has them (calls.py).
    """
    config = genai.GenerationConfig()
    config.max_new_tokens = options.max_new_tokens
    # Without ids of its own a call would get those of generation_config.json.
    config.ignore_eos = not options.eos_ids
    if options.eos_ids:
        config.eos_token_id = options.eos_ids[0]
        config.stop_token_ids = set(options.eos_ids)
        config.min_new_tokens = options.min_new_tokens
    config.logprobs = int(options.logprobs)
    sampling = options.sampling
    config.repetition_penalty = sampling.repetition_penalty
    config.do_sample = sampling.do_sample
    if sampling.do_sample:
        config.temperature = sampling.temperature
        config.top_p = sampling.top_p
        config.min_p = min(sampling.min_p, _MOST_MIN_P)
        if sampling.top_k:
            config.top_k = sampling.top_k
        config.rng_seed = folded(options.seed)
    return config
