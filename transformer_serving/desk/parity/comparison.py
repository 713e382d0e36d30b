"""The model on PyTorch, ONNX Runtime as exported, and the engines asked for: parity and latency.

Tested by tests/cli/test_convert.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from transformer_serving.contract.error_line import named_line
from transformer_serving.contract.manifest import TORCH
from transformer_serving.desk.builders.files import EngineFiles
from transformer_serving.desk.builders.table import ENGINES, open_engine
from transformer_serving.desk.export.onnx import ExportedGraph, quiet
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.interruption import reraise_interruption
from transformer_serving.desk.parity.check import Case, ParityReport, compare, within
from transformer_serving.desk.parity.latency import (
    CPU,
    GPU,
    Contender,
    Latency,
    RoundReport,
    Shape,
    gpu,
    measure,
)
from transformer_serving.desk.source.model import ModelSource

if TYPE_CHECKING:
    from transformer_serving.desk.builders.calibration import Feed, Feeds

# On a CPU ONNX Runtime computes fp16 in fp32, with a conversion before and behind each node.
_POINTLESS = {("onnxruntime", "fp16")}
Build = Callable[[str, str], EngineFiles]


@dataclass(frozen=True)
class Comparison:
    """What is compared: a model, its exported graph, its parity case, sample calls, and the shapes
    that are measured."""

    source: ModelSource
    graph: ExportedGraph
    case: Case
    feeds: Feeds
    shapes: Sequence[Shape]


@dataclass(frozen=True)
class NotMade:
    """A row that the table lacks, and why."""

    name: str
    precision: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name} {self.precision} is not in the table, not made: {self.reason}"


@dataclass
class Compared:
    """The table's rows and those that it lacks; `why_not` is what ended the measuring, None where
    nothing did, and `interrupted` whether that was the user."""

    rows: list[Latency] = field(default_factory=list)
    not_made: list[NotMade] = field(default_factory=list)
    why_not: str | None = None
    interrupted: bool = False

    @contextmanager
    def making(self, name: str, precision: str) -> Iterator[None]:
        """In the block a row is made; the others are measured where it cannot be."""
        try:
            yield
        except Exception as error:
            self.not_made.append(NotMade(name, precision, _reason(error)))

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Whatever ends the block, the bundle is made without a table: its engine has passed."""
        try:
            try:
                yield
            except Exception as error:
                self.why_not = _reason(error)
        except KeyboardInterrupt:
            self.why_not, self.interrupted = "it was ended before it was done", True


def _reason(error: Exception) -> str:
    reraise_interruption(error)
    return str(error) if isinstance(error, Failure) else named_line(error)


def compare_engines(
    prepare: Callable[[], Comparison],
    engines: Sequence[str],
    precision: str | None,
    build: Build,
    report: RoundReport,
) -> Compared:
    """The table. `precision` None: all that an engine has, except where it is pointless.

    Raises nothing: what cannot be made or measured, and Ctrl-C, is in what it gives.
    """
    compared = Compared()
    with compared.measuring():
        comparison = prepare()
        contenders = list(_contenders(comparison, _asked(engines, precision), build, compared))
        compared.rows += measure(contenders, comparison.feeds, comparison.shapes, report)
    return compared


def _contenders(
    comparison: Comparison, asked: Iterator[tuple[str, str]], build: Build, compared: Compared
) -> Iterator[Contender]:
    case = comparison.case
    yield from _torch(comparison, compared)
    vanilla = EngineFiles("onnxruntime", "fp32", (comparison.graph.path,))
    name = "onnxruntime, as exported"
    with compared.making(name, "fp32"):
        yield contender_of(name, vanilla, case, compare(case, vanilla))
    for engine, chosen in asked:
        with compared.making(engine, chosen):
            files = build(engine, chosen)
            yield contender_of(engine, files, case, compare(case, files))


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

    return Contender(
        name,
        files.precision,
        run,
        parity.largest_difference,
        within(parity),
        device_of(files.engine),
    )


def device_of(engine: str) -> str:
    """Where its calls are computed on this machine: torch's as it opens a program."""
    return GPU if engine == "tensorrt" or (engine == TORCH and gpu()) else CPU


def _torch(comparison: Comparison, compared: Compared) -> Iterator[Contender]:
    """The model itself: in fp32 on the CPU, and where torch has a GPU also there, and in fp16."""
    import torch

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    name = f"PyTorch {torch.__version__.split('+')[0]}"
    for device, where, precision in _torch_rows():
        with compared.making(name, precision):
            run = _torch_call(comparison, where, precision)
            yield Contender(name, precision, run, None, None, device)


def _torch_rows() -> Iterator[tuple[str, str, str]]:
    """CPU or GPU, torch's own name of it, and the precision."""
    yield CPU, "cpu", "fp32"
    if gpu():
        yield from ((GPU, "cuda", precision) for precision in ("fp32", "fp16"))


def _torch_call(comparison: Comparison, where: str, precision: str) -> Callable[[Feed], object]:
    import torch

    from transformer_serving.desk.export.heads import load_head

    names = comparison.graph.inputs
    with quiet():
        module = load_head(comparison.source, names).to(where)
    # As whoever has a model in float32 has it computed in half of that.
    half = torch.autocast(where, dtype=torch.float16, enabled=precision == "fp16")

    def run(feed: Feed) -> object:
        with torch.inference_mode(), half:
            outputs = module(*(torch.from_numpy(feed[name]).to(where) for name in names))
            # A call has ended when its answer is here.
            return [output.cpu() for output in outputs]

    return run
