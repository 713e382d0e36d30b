"""`show` and `repository` of a folder with a name that is none, and of figures unlike ours."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.stack.small_bundles import Parts, write_small
from transformer_serving.contract.naming import DEPLOYED, SERVED, name_fault
from transformer_serving.desk.cli import main


def said(*arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(main, arguments, env={"COLUMNS": "200"})
    assert done.exit_code == code, done.output
    return " ".join(done.output.split())


@pytest.mark.parametrize("folder", ["my bundle", "bündle"])
def test_a_folder_whose_name_is_none_asks_for_one(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_small(tmp_path / folder)
    asked = ("repository", folder, "--output", "out")
    assert f"its folder's is '{folder}', so give --name NAME" in said(*asked, code=2)
    assert "give --" not in said(*asked, "--name", "no name", code=2)
    assert "named" in said(*asked, "--name", "named")


@pytest.mark.parametrize("folder", ["my bundle", "bündle"])
def test_a_folder_whose_name_is_none_is_shown_with_a_word_in_its_place(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    bundle = write_small(tmp_path / folder)
    shown = said("show", folder)
    assert f"deploy '{folder}' --endpoint '{{NAME}}' Or with" in shown
    assert name_fault("{NAME}", DEPLOYED)
    assert name_fault("{NAME}", SERVED)
    assert str(bundle.manifest.bundle_version) in shown
    assert "/bundles/{NAME}-" in shown
    assert json.loads(said("show", folder, "--json"))["commands"] is None
    assert json.loads(said("show", folder, "--endpoint", "named", "--json"))["commands"]
    assert "--endpoint named Or with" in said("show", folder, "--endpoint", "named")
    said("show", folder, "--endpoint", "no name", code=2)


@pytest.mark.parametrize("command", [("show",), ("deploy", "--endpoint", "x")])
def test_a_folder_that_is_not_there(command: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    absent = str(tmp_path / "absent")
    assert f"{absent} does not exist; name the folder of a bundle" in said(*command, absent, code=2)
    assert f"{file} is a file; name the folder of a bundle" in said(*command, str(file), code=2)
    assert "is no bundle" in said(*command, str(tmp_path), code=2)


@pytest.mark.parametrize("options", [(), ("--json",), ("--endpoint", "named")])
def test_a_path_that_is_no_utf_8_is_refused(options: tuple[str, ...], tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"bundle\xff")
    write_small(tmp_path / "bundle").folder.rename(folder)
    refused = "error: the path of BUNDLE is no UTF-8, so no line can name it; rename the folder"
    assert said("show", str(folder), *options, code=2) == refused


@pytest.mark.parametrize(
    "parity",
    [
        {"largest_difference": None},
        {"largest_difference": "0.1", "worst": [], "shapes": []},
        {
            "largest_difference": 1,
            "worst": {"tokens": None},
            "shapes": {"largest_difference": None},
        },
    ],
    ids=["null", "others", "null inside"],
)
def test_figures_of_another_type_are_shown_as_they_can_be(
    parity: dict[str, Any], tmp_path: Path
) -> None:
    folder = write_small(tmp_path / "bundle", Parts(parity=True)).folder
    [file] = folder.rglob("manifest.json")
    file.write_text(json.dumps(json.loads(file.read_text()) | {"parity": parity}))
    assert "largest difference" in said("show", str(folder))


def test_an_environment_is_the_ensembles(tmp_path: Path) -> None:
    bundle = str(write_small(tmp_path / "bundle").folder)
    out = tmp_path / "out"
    output = said(
        "repository", bundle, "--output", str(out), "--python-environment", str(tmp_path), code=2
    )
    assert (
        "--python-environment is that of the ensemble's tokenizer: give --ensemble, too" in output
    )
    assert not out.exists()
