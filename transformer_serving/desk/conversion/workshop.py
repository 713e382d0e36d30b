"""What a bundle's engines are built from and chosen by: a model, its graph, its parity case.

Tested by tests/cli/test_convert.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from transformer_serving.desk.builders.call_sizes import Range, call_sizes
from transformer_serving.desk.builders.files import EngineFiles, Shapes
from transformer_serving.desk.builders.room import room_told
from transformer_serving.desk.builders.table import ENGINES, build_engine, ladder_of
from transformer_serving.desk.export.cleaning import clean_onnx
from transformer_serving.desk.export.endpoint_json import ending_at
from transformer_serving.desk.export.onnx import ExportedGraph, export_onnx
from transformer_serving.desk.failure import Failure, PrecisionRefused
from transformer_serving.desk.parity.check import (
    Case,
    ParityReport,
    choose,
    compare,
    described,
    within,
)
from transformer_serving.desk.parity.comparison import contender_of
from transformer_serving.desk.parity.engine_call import precision_refused
from transformer_serving.desk.parity.gain import Gain, gain_of
from transformer_serving.desk.parity.latency import RoundReport
from transformer_serving.desk.source.model import ModelSource

# Called with a step's name and one line about it, as the step starts.
Progress = Callable[[str, str], None]


@dataclass
class Workshop:
    """What engines are built from, in `folder`, and what they are measured by.

    `lengths` are those of engines that are only compared, where they serve others than the bundle.
    """

    source: ModelSource
    folder: Path
    case: Case
    shapes: Shapes
    progress: Progress
    exported: ExportedGraph | None = None
    lengths: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    built: dict[tuple[str, str], EngineFiles] = field(default_factory=dict)

    @property
    def graph(self) -> ExportedGraph:
        """The ONNX graph, made where it was not needed before."""
        if self.exported is None:
            self.exported = onnx_graph(self.source, self.folder)
        return self.exported

    def build(self, engine: str, precision: str) -> EngineFiles:
        """The engine in a folder of its own, once."""
        if (engine, precision) not in self.built:
            self.progress("build", f"{engine} {precision}")
            place = self.folder / f"{engine}-{precision}"
            # What a build that failed has left there is overwritten.
            place.mkdir(exist_ok=True)
            self.built[engine, precision] = self._made(engine, precision, place)
        longest = self.case.endpoint.tokens.max_length
        self.progress("parity", f"{len(self.case.bodies)} requests of up to {longest} tokens")
        return self.built[engine, precision]

    def _made(self, engine: str, precision: str, place: Path) -> EngineFiles:
        """Raises PrecisionRefused with whatever a builder says; a refusal of its own is of the
        model, whatever the precision, or says that it is not. A full disk is a Failure.
        """
        program = ENGINES[engine].program
        what = f"engine {engine} cannot be built in {precision} of this model"
        size = sum(file.stat().st_size for file in self.folder.iterdir() if file.is_file())
        with (
            precision_refused(what, (Failure, OSError, MemoryError)),
            room_told(self.folder.parent, size),
        ):
            graph = self.graph.path if program is None else program(self.source, precision, place)
            lengths = self.lengths.get(engine, self.shapes.lengths)
            shapes = replace(self.shapes, lengths=lengths)
            return build_engine(engine, precision, graph, place, shapes)


def lengths_of_others(
    engine: str, compared: Sequence[str], seq_len: Range | None, longest: int
) -> dict[str, tuple[int, ...]]:
    """What those `compared` beside the bundle's `engine` would serve: it has all of its own, and of
    TensorRT each is a profile, so memory."""
    return {
        other: ending_at(longest, call_sizes(ladder_of(other), seq_len).buckets)
        for other in compared
        if other != engine
    }


def onnx_graph(source: ModelSource, folder: Path) -> ExportedGraph:
    """The model as a cleaned ONNX file in `folder`."""
    graph = export_onnx(source, folder / "export.onnx")
    clean_onnx(graph.path)
    return graph


@dataclass(frozen=True)
class Chosen:
    """The engine of the bundle; `gain`: how much faster an allowed precision was measured to be."""

    files: EngineFiles
    parity: ParityReport
    gain: Gain | None = None


def chosen_engine(
    workshop: Workshop,
    engine: str,
    precisions: Sequence[str],
    say: Callable[[str], None],
) -> Chosen:
    """The first of `precisions` that passes parity. Raises ConversionRefused where none does."""
    return Chosen(*choose(precisions, partial(workshop.build, engine), workshop.case, say))


def faster_engine(
    workshop: Workshop,
    chosen: Chosen,
    allowed: str,
    say: Callable[[str], None],
    measuring: RoundReport,
) -> Chosen:
    """The one at the precision `allowed` where it passes parity and is faster here, else `chosen`.

    `say` hears what parity has against it, or why it is not made or does not run.
    """
    case, engine = workshop.case, chosen.files.engine
    try:
        files = workshop.build(engine, allowed)
        parity = compare(case, files)
        refusal = None if within(parity) else described(parity)
    except PrecisionRefused as error:
        refusal = str(error)
    if refusal is not None:
        say(f"{refusal}; it stays {chosen.files.precision}")
        return chosen
    gain = gain_of(
        contender_of(engine, files, case, parity),
        contender_of(engine, chosen.files, case, chosen.parity),
        workshop.shapes.feeds,
        (case.endpoint.limits.max_batch_size, case.endpoint.tokens.max_length),
        measuring,
    )
    return Chosen(files, parity, gain) if gain.is_taken else replace(chosen, gain=gain)
