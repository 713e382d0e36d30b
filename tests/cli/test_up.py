"""What `up` understands of --demo, and needs for --monitoring; tests/stack runs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest

from transformer_serving.desk.cli.stack import up

CLI = str(Path(sys.executable).with_name("transformer-serving"))


@pytest.mark.parametrize(
    ("arguments", "demo"),
    [
        ([], None),
        (["--demo"], "texts"),
        (["--demo", "--port-base", "9000"], "texts"),
        (["--demo", "texts"], "texts"),
        (["--demo", "generation", "--json"], "generation"),
    ],
)
def test_plain_demo_is_the_one_of_texts(arguments: list[str], demo: str | None) -> None:
    assert up.make_context("up", arguments).params["demo"] == demo


def test_without_prometheus_its_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    done = subprocess.run(
        [CLI, "up", "--monitoring", "--state", str(tmp_path / "state")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "apt-get install prometheus" in done.stderr
    assert not (tmp_path / "state").exists()


def test_another_demo_is_refused_with_those_there_are() -> None:
    with pytest.raises(click.BadParameter, match="generation"):
        up.make_context("up", ["--demo", "poetry"])
