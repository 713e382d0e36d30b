"""What the controller is told on its command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from transformer_serving.engine.controller.options import options_parser

GIVEN = ("--serving-id", "a", "--repository", "models", "--state", "state.json")


def test_what_is_not_said_has_a_default() -> None:
    told = options_parser().parse_args(GIVEN)
    assert (told.repository, told.poll_seconds, told.grace_seconds) == (Path("models"), 2.0, 30.0)
    assert (told.notice_seconds, told.keep_tasks_seconds, told.store_bytes) == (None, 0.0, 0)


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "1e10", "soon"])
@pytest.mark.parametrize("name", ["poll", "grace", "notice", "keep-tasks"])
def test_seconds_are_a_number_with_an_end(
    name: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        options_parser().parse_args([*GIVEN, f"--{name}-seconds={value}"])
    assert f"argument --{name}-seconds: " in capsys.readouterr().err


def test_an_address_has_a_port(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        options_parser().parse_args([*GIVEN, "--metrics-address=here"])
    assert "argument --metrics-address: " in capsys.readouterr().err
