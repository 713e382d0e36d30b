"""`rollout` as a user types it; the way of one is in tests/stack/test_rollout.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.stack.small_bundles import write_small
from transformer_serving.desk.cli import main


def said(*arguments: str, code: int = 2) -> str:
    done = CliRunner().invoke(main, ["rollout", *arguments])
    assert done.exit_code == code, done.output
    return done.output


def test_what_is_no_command_is_a_bundle(tmp_path: Path) -> None:
    nothing = str(tmp_path / "nothing")
    assert nothing in said(nothing, "--endpoint", "texts", "--state", str(tmp_path))
    assert nothing in said("--endpoint", "texts", nothing, "--state", str(tmp_path))


def test_help_is_of_the_group() -> None:
    assert "promote" in said("--help", code=0)


@pytest.mark.parametrize("steps", ["100", "50,10,100", "0,100", "1,10", "1,1,100"])
def test_steps_that_do_not_rise_to_100_are_refused(steps: str, tmp_path: Path) -> None:
    bundle = str(write_small(tmp_path / "bundle").folder)
    output = said(bundle, "--endpoint", "texts", "--steps", steps, "--state", str(tmp_path))
    assert "percents that rise and end with 100" in output


@pytest.mark.parametrize(
    ("option", "value"), [("--steps", "ten"), ("--hold", "5 days"), ("--hold", "s")]
)
def test_what_is_no_number_is_refused(option: str, value: str, tmp_path: Path) -> None:
    assert f"'{value}'" in said(str(tmp_path), "--endpoint", "texts", option, value)


def test_a_shadow_has_no_steps(tmp_path: Path) -> None:
    bundle = str(write_small(tmp_path / "bundle").folder)
    arguments = (bundle, "--endpoint", "texts", "--shadow", "--state", str(tmp_path))
    assert "no --steps" in said(*arguments, "--steps", "1,100")
    assert "--mirror more than 0" in said(*arguments, "--mirror", "0")
