"""Every family of models, with its real kind of tokenizer, through convert's steps: exported, built
for every engine that runs on a CPU, and its answers those of the reference."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.architectures import AGAIN, ENGINES, TESTED, Graphs, Row, figures
from transformer_serving.desk.parity.check import refuse_when_over


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Models this small gain nothing from a second thread, and on a busy machine lose much."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> Graphs:
    return Graphs(tmp_path_factory.mktemp("graphs"))


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, id=str(row), marks=pytest.mark.long if row in AGAIN else ())
        for row in TESTED
    ],
)
def test_answers_are_the_references(row: Row, tmp_path: Path, graphs: Graphs) -> None:
    found = list(figures(row, tmp_path, graphs))
    assert len(found) == len(ENGINES) * len(row.tasks)
    for figure in found:
        refuse_when_over(figure.report)
