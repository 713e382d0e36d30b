"""An --env-file as compose reads it; tests/compose/test_config.py asks compose itself."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from transformer_serving.desk.cli import main
from transformer_serving.desk.compose.__main__ import EXAMPLE
from transformer_serving.desk.env_file import read_env_file
from transformer_serving.desk.failure import Failure

SHELL = {"SHELL_NAME": "shell", "BOTH": "of the shell", "NOTHING": ""}
# A line, and what is made of it below ABOVE=above and BOTH=above.
LINES = {
    "export A=1": "1",
    "A='x # y'": "x # y",
    'A="z"': "z",
    "A=plain # a comment": "plain",
    "A=": "",
    "A=a=b": "a=b",
    'A="a" # prod': "a",
    "A='b # c' # d": "b # c",
    "A=a#b": "a#b",
    "A='a' b": "a",
    "A=a'b'": "a'b'",
    "A='p$wd$$'": "p$wd$$",
    r"A='it\'s \n'": r"it's \n",
    "A=p$$wd": "p$wd",
    'A="p$$wd"': "p$wd",
    r'A="p\$wd\\\q\t"': "p$wd\\\\q\t",
    "A=$ABOVE-${ABOVE}": "above-above",
    'A="<$SHELL_NAME>"': "<shell>",
    "A=$BOTH": "of the shell",
    "A=$NOTHING": "",
    "A=${NOWHERE:-a default}": "a default",
    "A=${NOTHING:-a default}": "a default",
    "A=${NOTHING-a default}": "",
    "A=${ABOVE-a default}": "above",
    "A=a$ b$1$": "a$ b$1$",
    "A=x # $NOWHERE": "x",
}
REFUSED = {
    "A=secret$word": "takes what follows a '$' there for the name of a variable",
    'A="secret${word}"': "takes what follows a '$' there for the name of a variable",
    r"A=secret\$word": "takes what follows a '$' there for the name of a variable",
    "A=secret${": "is of a form that is not read here after a '$'",
    "A=${ABOVE:?secret}": "is of a form that is not read here after a '$'",
    "A='secret": "its quote does not end on the line",
    'A="secret\\"': "its quote does not end on the line",
}


@pytest.mark.parametrize("line", LINES)
def test_a_line(tmp_path: Path, line: str) -> None:
    file = tmp_path / "my.env"
    file.write_text(f"ABOVE=above\nBOTH=above\n{line}\n")
    assert read_env_file(file, SHELL)["A"] == LINES[line]


@pytest.mark.parametrize("line", REFUSED)
def test_what_compose_would_make_something_else_of(tmp_path: Path, line: str) -> None:
    """The key that doctor tries would else be another one than that of the containers."""
    file = tmp_path / "my.env"
    file.write_text(f"ABOVE=above\n{line}\n")
    with pytest.raises(Failure, match="my.env, line 2: ") as caught:
        read_env_file(file, SHELL)
    assert REFUSED[line] in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "word" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_ends_of_lines_that_are_none_stay_in_a_value(tmp_path: Path) -> None:
    file = tmp_path / "my.env"
    file.write_text("A=1\n\n# no\nB=a\x85\u2028b\r\n")
    assert read_env_file(file) == {"A": "1", "B": "a\x85\u2028b"}


def test_a_shell_gets_the_server_of_the_containers_as_it_is_reached_from_here(
    tmp_path: Path,
) -> None:
    """With what a shell would make something else of."""
    file = tmp_path / "my.env"
    key = "a$HOME 'b' \"c\" #d;`e`"
    quoted = key.replace("'", "\\'")
    file.write_text(
        "CLEARML_WEB_HOST=\nCLEARML_API_HOST=http://host.docker.internal:8008 # ours\n"
        "CLEARML_FILES_HOST=https://files.example\nCLEARML_API_ACCESS_KEY=a$$b\n"
        f"CLEARML_API_SECRET_KEY='{quoted}'\nCLEARML_SERVING_TASK_ID=\"5e7\"\nAWS_REGION=no\n"
    )
    printed = CliRunner().invoke(main, ["env", "--env-file", str(file)])
    assert printed.exit_code == 0, printed.output
    shell = ["sh", "-c", f"{printed.output}\nenv -0"]
    told = subprocess.run(shell, env={"PATH": os.environ["PATH"]}, capture_output=True, check=True)
    variables = dict(row.split("=", 1) for row in told.stdout.decode().split("\0") if row)
    assert {name: value for name, value in variables.items() if name.startswith("CLEARML")} == {
        "CLEARML_API_HOST": "http://127.0.0.1:8008",
        "CLEARML_FILES_HOST": "https://files.example",
        "CLEARML_API_ACCESS_KEY": "a$b",
        "CLEARML_API_SECRET_KEY": key,
        "CLEARML_SERVING_TASK_ID": "5e7",
    }
    assert "AWS_REGION" not in variables


def test_a_file_without_a_server_is_told_apart() -> None:
    refused = CliRunner().invoke(main, ["env", "--env-file", str(EXAMPLE)])
    assert refused.exit_code == 2
    assert "CLEARML_API_HOST is empty: put the ClearML server's address there" in refused.output
