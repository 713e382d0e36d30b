"""The model on PyTorch, ONNX Runtime as exported, and the engines asked for: parity and latency.

Tested by tests/cli/test_convert.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from transformer_serving.desk.builders.files import EngineFiles
from transformer_serving.desk.builders.table import ENGINES, open_engine
from transformer_serving.desk.export.onnx import ExportedGraph, quiet
from transformer_serving.desk.parity.check import Case, ParityReport, compare, within
from transformer_serving.desk.parity.latency import Contender, Latency, RoundReport, measure
from transformer_serving.desk.source.model import ModelSource

if TYPE_CHECKING:
    from transformer_serving.desk.builders.calibration import Feed, Feeds

# On a CPU ONNX Runtime computes fp16 in fp32, with a conversion before and behind each node.
_POINTLESS = {("onnxruntime", "fp16")}
Build = Callable[[str, str], EngineFiles]


@dataclass(frozen=True)
class Comparison:
    """What is compared: a model, its exported graph, its parity case and sample calls."""

    source: ModelSource
    graph: ExportedGraph
    case: Case
    feeds: Feeds


def compare_engines(
    comparison: Comparison,
    engines: Sequence[str],
    precision: str | None,
    build: Build,
    report: RoundReport,
) -> list[Latency]:
    """The table's rows. `precision` None: all that an engine has, except where it is pointless."""
    vanilla = EngineFiles("onnxruntime", "fp32", (comparison.graph.path,))
    case = comparison.case
    name = "onnxruntime, as exported"
    contenders = [_torch(comparison), contender_of(name, vanilla, case, compare(case, vanilla))]
    for engine, chosen in _asked(engines, precision):
        files = build(engine, chosen)
        contenders.append(contender_of(engine, files, case, compare(case, files)))
    longest = case.endpoint.tokens.max_length
    return measure(contenders, comparison.feeds, longest, report)


def _asked(engines: Sequence[str], precision: str | None) -> Iterator[tuple[str, str]]:
    for engine in dict.fromkeys(engines):
        wanted = ENGINES[engine].precisions if precision is None else (precision,)
        for one in wanted:
            # The exported graph is what onnxruntime serves in fp32: that row is there already.
            if one in ENGINES[engine].precisions and (engine, one) != ("onnxruntime", "fp32"):
                if precision is None and (engine, one) in _POINTLESS:
                    continue
                yield engine, one


def contender_of(name: str, files: EngineFiles, case: Case, parity: ParityReport) -> Contender:
    """The engine's own calls, with what parity found of it."""
    from preprocess.tensors import Tensor

    call = open_engine(files)
    dtypes = {tensor.name: tensor.dtype for tensor in case.endpoint.inputs}

    def run(feed: Feed) -> object:
        return call([Tensor(key, dtypes[key], array) for key, array in feed.items()])

    return Contender(name, files.precision, run, parity.largest_difference, within(parity))


def _torch(comparison: Comparison) -> Contender:
    import torch

    from transformer_serving.desk.export.heads import load_head

    names = comparison.graph.inputs
    with quiet():
        module = load_head(comparison.source, names)
    torch.set_num_threads(len(os.sched_getaffinity(0)))

    def run(feed: Feed) -> object:
        with torch.inference_mode():
            return module(*(torch.from_numpy(feed[name]) for name in names))

    return Contender(f"PyTorch {torch.__version__.split('+')[0]}", "fp32", run, None, None)
