"""An engine that is not built for want of room is no fault of its precision."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.language_models import save_language_model
from tests.small_disk import small_disk
from tests.tiny_models import save_classifier
from transformer_serving.desk.builders.room import room_told
from transformer_serving.desk.cli import main

# Of 4 MB of weights: the graph has room, and what is made of it has none.
_WIDE = {"hidden_size": 128, "intermediate_size": 1024, "vocab_size": 4000}
_GRAPH_ALONE = 6


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_classifier(tmp_path_factory.mktemp("wide") / "model", **_WIDE)


def said_of(disk: Path, *command: str) -> str:
    done = CliRunner().invoke(main, ["convert", *command, "--output", str(disk / "bundle")])
    assert done.exit_code == 1, done.output
    assert list(disk.iterdir()) == []
    return done.stderr.splitlines()[-1]


# A graph fits on each of these disks: it is what is made of it that does not.
@pytest.mark.usefixtures("graphs_are_kept")
@pytest.mark.parametrize(
    ("engine", "precision", "megabytes"),
    [
        ("openvino", "fp32", _GRAPH_ALONE),
        ("openvino", "int8", 5),
        ("openvino", "auto", _GRAPH_ALONE),
        ("onnxruntime", "int8", _GRAPH_ALONE),
        ("onnxruntime", "fp16", _GRAPH_ALONE),
        # It makes no graph.
        ("torch", "fp32", 2),
    ],
)
def test_a_full_disk_is_told(
    model: Path, tmp_path: Path, engine: str, precision: str, megabytes: int
) -> None:
    with small_disk(tmp_path / "disk", megabytes) as disk:
        said = said_of(disk, str(model), "--engine", engine, "--precision", precision)
        assert said == f"error: no space is left on the disk of {disk}; free some and try again"


@pytest.mark.slow
def test_a_full_disk_is_told_of_a_language_model(tmp_path: Path) -> None:
    model = save_language_model("llama", tmp_path / "model")
    with small_disk(tmp_path / "disk", 1) as disk:
        filler = disk / "filler"
        filler.write_bytes(bytes(900_000))
        command = [str(model), "--task", "text-generation", "--output", str(disk / "bundle")]
        done = CliRunner().invoke(main, ["convert", *command, "--precision", "fp32"])
        assert done.exit_code == 1, done.output
        said = done.stderr.splitlines()[-1]
        assert said == f"error: no space is left on the disk of {disk}; free some and try again"
        assert list(disk.iterdir()) == [filler]


def test_what_is_raised_where_there_is_room_is_left_alone(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="of the model"), room_told(tmp_path):
        raise RuntimeError("of the model")
