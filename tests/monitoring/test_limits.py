"""The limits that alerts measure against, as an env file has them."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.monitoring.test_rules import IN_SERVICE, written
from transformer_serving.contract.settings import preprocess as preprocess_settings
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.monitoring.__main__ import PROMETHEUS, RULES, main
from transformer_serving.desk.monitoring.rules import LIMITS, POLLS, RUNBOOKS, limits
from transformer_serving.desk.monitoring.scrapes import Place, prometheus_config


def test_limits_are_those_of_the_env_file(tmp_path: Path) -> None:
    variables = tmp_path / "my.env"
    variables.write_text("TRANSFORMER_SERVING_MAX_WAIT_S=7\nTRANSFORMER_SERVING_MAX_STREAMS=\n")
    done = CliRunner().invoke(main, ["--env-file", str(variables), "--output", str(tmp_path / "m")])
    assert done.exit_code == 0, done.output
    text = (tmp_path / "m" / RULES).read_text()
    assert "> 0.6 * 7\n" in text
    assert text.replace("> 0.6 * 7\n", "> 0.6 * 2\n") == written(IN_SERVICE)
    assert (tmp_path / "m" / PROMETHEUS).read_text() == prometheus_config(IN_SERVICE, Place())


def test_limits_are_settings() -> None:
    assert set(LIMITS) <= {row.name for row in preprocess_settings.SETTINGS}


@pytest.mark.parametrize(
    ("value", "written"), [("1e3", "1000"), (" 7 ", "7"), ("0.25", "0.25"), ("+2.", "2")]
)
def test_a_limit_is_written_as_promql_reads_it(value: str, written: str) -> None:
    assert limits(dict.fromkeys(POLLS, value)) == {**limits({}), **dict.fromkeys(POLLS, written)}


@pytest.mark.parametrize("value", ["many", "0", "-1", "nan", "inf", "1_0", "\u0663"])
def test_a_limit_that_is_no_number_is_refused(tmp_path: Path, value: str) -> None:
    with pytest.raises(Failure, match="MAX_WAIT_S must be a number from "):
        limits({"TRANSFORMER_SERVING_MAX_WAIT_S": value})
    variables = tmp_path / "my.env"
    variables.write_text(f"TRANSFORMER_SERVING_MAX_WAIT_S={value}\n")
    done = CliRunner().invoke(main, ["--env-file", str(variables), "--output", str(tmp_path)])
    assert done.exit_code == 1
    assert not (tmp_path / RULES).exists()


def test_runbooks_are_where_it_is_said(tmp_path: Path) -> None:
    address = "https://wiki.example/runbooks"
    arguments = ["--output", str(tmp_path), "--runbooks"]
    assert CliRunner().invoke(main, [*arguments, address]).exit_code == 0
    text = (tmp_path / RULES).read_text()
    assert text.replace(f"runbook: {address}/", f"runbook: {RUNBOOKS}/") == written(IN_SERVICE)
    assert address in text
    for wrong in ("https://wiki.example/", "a: b", "{{ x }}", "", "#a"):
        done = CliRunner().invoke(main, [*arguments, wrong])
        assert done.exit_code == 2, wrong
