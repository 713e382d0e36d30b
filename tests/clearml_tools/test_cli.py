"""Uploads by clearml-serving that the file server did not take, and one that was ended."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import pytest

from tests.clearml_tools.stand_in_command import in_its_place, path_with
from tests.doctor.conftest import answering
from transformer_serving.desk.clearml_tools.cli import ClearmlCli, upload_refusal
from transformer_serving.desk.interruption import interruptible

HEAD = "Uploading model file 'model' to http://127.0.0.1:8008/bundles/a\n"
TAIL = "Model created and registered, new Model ID=df8f27aaebf5415ab39d83a2a9c883ff\n"
LINE = "2026-11-22 03:50:34,164 - clearml.storage - ERROR - Exception encountered while uploading "
ENVELOPE = '{"meta":{"result_code":500,"result_subcode":4,"result_msg":"insufficient disk space"}}'


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", None),
        (
            f"{LINE}Failed uploading object /bundles/a/model.zip to http://a (500): {ENVELOPE}\n",
            "the file server answered 500, insufficient disk space",
        ),
        (f"{LINE}Access Denied\n", "Access Denied"),
    ],
)
def test_an_upload_that_was_not_taken_is_told(line: str, said: str | None) -> None:
    assert upload_refusal(HEAD + line + TAIL) == said


# Packs as the SDK does, and is interrupted by its own hand when that is done.
PACKING = """
import os, signal, tempfile, time
_, packed = tempfile.mkstemp(prefix="model_package.", suffix=".zip")
open(os.environ["TOLD"], "w").write(packed)
os.kill(int(os.environ["DESK"]), signal.SIGTERM)
time.sleep(600)
"""


def test_an_upload_that_is_ended_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_its_place(tmp_path, PACKING)
    temporary, told = tmp_path / "temporary", tmp_path / "told"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    with answering(lambda path: (200, b"", {})) as address:
        tool = ClearmlCli(
            {
                "CLEARML_API_HOST": address, "PYTHONPATH": path_with(tmp_path), "TOLD": str(told),
                "TMPDIR": str(temporary), "DESK": str(os.getpid()),
            }
        )  # fmt: skip
        with pytest.raises(KeyboardInterrupt), interruptible():
            tool.upload_model("a 1", "texts", tmp_path, f"{address}/a")
    assert Path(told.read_text()).is_relative_to(temporary)
    assert list(temporary.iterdir()) == []


def test_a_command_reaches_the_server_that_it_is_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the one that the shell's own variables lead to; those that name it are all kept."""
    in_its_place(tmp_path, "import json, os\nprint(json.dumps(dict(os.environ)))\n")
    monkeypatch.setenv("CLEARML_AUTH_TOKEN", "another")
    monkeypatch.setenv("CLEARML_TASK_ID", "another")
    monkeypatch.setenv("CLEARML_CONFIG_FILE", "own.conf")
    monkeypatch.setenv("PYTHONPATH", path_with(tmp_path))
    with answering(lambda path: (200, b"", {})) as address:
        stack = {"CLEARML_API_HOST": address}
        told = json.loads(ClearmlCli(stack).run("list"))
        mine = json.loads(ClearmlCli({**os.environ, **stack}).run("list"))
    names = {name: told[name] for name in told if name.startswith("CLEARML_")}
    assert names == {**stack, "CLEARML_CONFIG_FILE": "own.conf"}
    assert (mine["CLEARML_AUTH_TOKEN"], mine["CLEARML_TASK_ID"]) == ("another", "another")
