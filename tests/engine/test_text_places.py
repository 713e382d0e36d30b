"""A call of more tokens than a program has positions for is refused before it runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.tiny_models import save_roberta
from transformer_serving.contract.endpoint import OutputTensor
from transformer_serving.desk.export.program import Traceable, export_program, write_program
from transformer_serving.desk.source.model import open_source
from transformer_serving.engine.backends.executor import Executor, Graph, RequestFailure
from transformer_serving.engine.backends.exported_program import LoadedProgram, load_program
from transformer_serving.engine.backends.grouping import MASK, Arrays, Layout
from transformer_serving.engine.backends.model_settings import TensorSpec
from transformer_serving.engine.backends.packed.text_places import places_of

PAD = 1


class Places(torch.nn.Module):
    """Positions as RoBERTa counts them, by `counts`: from its padding id on, without padding."""

    def __init__(self, rows: int, counts: str) -> None:
        super().__init__()
        self.words = torch.nn.Parameter(torch.randn(50, 16))
        self.places = torch.nn.Parameter(torch.randn(rows, 16))
        self.counts = counts

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
        look = torch.nn.functional.embedding
        found = look(ids, self.words)
        if self.counts:
            if self.counts == "types":
                # Cast, so that it is no input itself.
                return (found + look(ids.long(), self.places[:2]),)
            there = (ids != PAD).int() if self.counts == "ids" else mask
            found = found + look((there.cumsum(1) * there + PAD).long(), self.places)
        return ((found * mask[:, :, None]).sum(1),)


def program(folder: Path, rows: int, counts: str) -> LoadedProgram:
    ids = torch.arange(10, dtype=torch.int32).reshape(2, 5)
    traceable = Traceable(
        Places(rows, counts).eval(),
        ("input_ids", MASK),
        (ids, torch.ones_like(ids)),
        (OutputTensor("output", "FP32", (16,)),),
        "fp32",
        "test",
    )
    return load_program(write_program(traceable, folder))


@pytest.mark.parametrize(
    ("counts", "places"), [("ids", 8), ("mask", 8), ("", None), ("types", None)]
)
def test_the_places_of_a_program(tmp_path: Path, counts: str, places: int | None) -> None:
    assert places_of(program(tmp_path, 10, counts)) == places


def test_roberta_has_as_many_as_convert_reads_in_its_config(tmp_path: Path) -> None:
    source = open_source(str(save_roberta(tmp_path / "model")))
    (tmp_path / "program").mkdir()
    loaded = load_program(export_program(source, "fp32", tmp_path / "program"))
    assert places_of(loaded) == source.max_length


class NeverRuns:
    """A model of eight places."""

    graph = Graph(
        tuple(TensorSpec(name, "int32", (-1, -1)) for name in ("input_ids", MASK)), (), places=8
    )

    def run(self, batches: Sequence[Arrays]) -> list[Arrays | RequestFailure]:
        raise AssertionError("it ran")


def test_a_call_with_padding_in_front_is_refused_before_it_runs() -> None:
    """On a GPU a lookup beyond the table would end the process, with everybody's calls."""
    ids = np.ones((1, 9), np.int32)
    mask = ids.copy()
    mask[0, 0] = 0
    executor = Executor(NeverRuns(), Layout(joinable=True, mask=MASK))
    [refused] = executor.answers([{"input_ids": ids, MASK: mask}])
    said = "the inputs have 9 tokens, and the model has positions for 8"
    assert refused == RequestFailure(said, invalid=True)
