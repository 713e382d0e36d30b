"""An --env-file as compose reads it; tests/compose/test_config.py asks compose itself."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from transformer_serving.desk.cli import main
from transformer_serving.desk.compose.__main__ import EXAMPLE, ROOT
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
    "A=a\t# no comment": "a\t# no comment",
    "A= #a": "#a",
    r'A="\a\b\f\n\r\v\0101"': "\a\b\f\n\r\vA",
    r'A="\q\01\\"': "\\q\\1\\",
    "A: yaml=b": "yaml=b",
    "A.B-C[0]=1\n1=2\nA=3": "3",
    "NOWHERE\nexport NOWHERE_ELSE\nA=1": "1",
    "A=1\nSHELL_NAME": "1",
    "A='a\nB=b'": "a\nB=b",
    'A="a\n$ABOVE" # b': "a\nabove",
    "A=${NOWHERE:-${NOTHING:-${ABOVE}}}/b}": "above/b}",
    'A="${NOWHERE-$$a\\"}"': '$a"',
    "A=${ABOVE:+x$BOTH}${NOTHING:+y}${NOTHING+z}${NOWHERE+z}": "xof the shellz",
    "A=${ABOVE:?no}${NOTHING?no}": "above",
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
    "A=secret$word ": "set it in this shell as in the one where compose is started; if the '$'",
    "A=secret${": "'${' is not closed",
    "A=${secret word}": "'${' is followed by no name",
    "A=${WORD:?secret}": "a variable that it asks for with '?' is not set",
    "A='secret": "its quote does not end",
    'A="secret\\"': "its quote does not end",
    "A='secret''word'": "is not NAME=VALUE",
    'A="secret" "word"': "is not NAME=VALUE",
    "secret word": "is not NAME=VALUE",
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


def test_what_compose_refuses_it_refuses(tmp_path: Path) -> None:
    """Of whichever name, as the lines below are then none either."""
    file = tmp_path / "my.env"
    for line in ("OTHER='secret", "OTHER='secret''word'", "secret word"):
        file.write_text(f"\nA=1\n{line}\n")
        with pytest.raises(Failure, match="my.env, line 3: "):
            read_env_file(file, SHELL, names=["A"])


def test_values_that_nobody_asks_for_need_not_be_read(tmp_path: Path) -> None:
    file = tmp_path / "my.env"
    file.write_text("A=1\nOTHER=a$word\nTHIRD=${WORD:?no}\nB=2\n")
    assert read_env_file(file, SHELL, names=["A"]) == {"A": "1", "B": "2"}
    with pytest.raises(Failure, match="my.env, line 2: "):
        read_env_file(file, SHELL, names=["OTHER"])


def test_the_mark_that_some_editors_begin_a_file_with(tmp_path: Path) -> None:
    file = tmp_path / "my.env"
    file.write_bytes(b"\xef\xbb\xbfA=1\r\n# caf\xe9\r\nB='b'\r\nC=\xe9")
    assert read_env_file(file) == {"A": "1", "B": "b", "C": "\ufffd"}


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


# The shell of somebody whose profile names a server.
ELSEWHERE = {
    "CLEARML_WEB_HOST": "https://app.production",
    "CLEARML_API_HOST": "https://api.production",
    "CLEARML_FILES_HOST": "https://files.production",
    "CLEARML_API_ACCESS_KEY": "PRODUCTION",
    "CLEARML_API_SECRET_KEY": "PRODUCTION",
    "CLEARML_SERVING_TASK_ID": "0123",
    "CLEARML_DEFAULT_OUTPUT_URI": "s3://production",
}


def documented() -> list[str]:
    """The blocks of the docs that take the server of my.env."""
    texts = [(ROOT / "docs" / page).read_text("utf-8") for page in ("compose.md", "monitoring.md")]
    found = [block for text in texts for block in re.findall(r"```bash\n(.*?)```", text, re.DOTALL)]
    return [block for block in found if "env --env-file my.env" in block]


def run_documented(folder: Path, block: str, my_env: str) -> subprocess.CompletedProcess[str]:
    """What `deploy` or `rollback` of the block is given, printed by a stand-in in its place."""
    command = folder / ".venv" / "bin" / "transformer-serving"
    command.parent.mkdir(parents=True, exist_ok=True)
    command.write_text(
        f"#!{sys.executable}\nimport os, sys\nfrom transformer_serving.desk.cli import main\n"
        "if sys.argv[1] == 'env':\n    main()\n"
        "found = (f'{name}={os.environ[name]}' for name in os.environ)\n"
        "print(*(one for one in found if one.startswith('CLEARML')), sep='\\n')\n"
    )
    command.chmod(0o755)
    (folder / "my.env").write_text(my_env)
    path = f"{command.parent}:{os.environ['PATH']}"
    # Its own lines, without those of docker.
    script = block[block.index("(\n") :]
    return subprocess.run(
        ["sh", "-c", script], env={"PATH": path, "PYTHONPATH": str(ROOT), **ELSEWHERE}, cwd=folder,
        text=True, capture_output=True, check=False,
    )  # fmt: skip


# As `eval "$(...)"` alone is in who knows which scripts: what fails in it is no failure.
EVAL = '(\neval "$(transformer-serving env --env-file my.env)"\ntransformer-serving deploy\n)'


def test_a_file_that_is_refused_leads_to_no_other_server(tmp_path: Path) -> None:
    file = "CLEARML_API_HOST=http://h\nCLEARML_API_SECRET_KEY='"
    blocks = documented()
    assert len(blocks) == 2
    for block in blocks:
        done = run_documented(tmp_path, block, file)
        assert "line 2: its quote does not end" in done.stderr
        assert (done.stdout, done.returncode != 0) == ("", True)
    done = run_documented(tmp_path, EVAL, file)
    assert done.stdout.splitlines() == ["CLEARML_DEFAULT_OUTPUT_URI=s3://production"]


def test_what_the_file_leaves_empty_is_not_the_shells(tmp_path: Path) -> None:
    """Other keys than those of the address would be sent to it."""
    file = "CLEARML_API_HOST=http://h\nCLEARML_API_ACCESS_KEY=\nCLEARML_SERVING_TASK_ID=5e7\n"
    for block in documented():
        done = run_documented(tmp_path, block, file)
        assert done.returncode == 0, done.stderr
        assert sorted(done.stdout.splitlines()) == [
            "CLEARML_API_HOST=http://h",
            "CLEARML_DEFAULT_BASE_SERVE_URL=http://127.0.0.1:8080/serve",
            "CLEARML_SERVING_TASK_ID=5e7",
        ]
        missing = "CLEARML_FILES_HOST, CLEARML_API_ACCESS_KEY, CLEARML_API_SECRET_KEY: export"
        assert f"my.env has no {missing} what is needed" in done.stderr


def test_behind_a_proxy_this_machine_is_asked_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    file = tmp_path / "my.env"
    file.write_text("CLEARML_API_HOST=http://host.docker.internal:8008\n")
    printed = CliRunner().invoke(main, ["env", "--env-file", str(file)])
    assert "export no_proxy=127.0.0.1,localhost\n" in printed.stdout
    assert "export CLEARML_API_HOST=http://127.0.0.1:8008\n" in printed.stdout


def test_a_file_without_a_server_is_told_apart() -> None:
    refused = CliRunner().invoke(main, ["env", "--env-file", str(EXAMPLE)])
    assert refused.exit_code == 2
    assert "CLEARML_API_HOST is empty: put the ClearML server's address there" in refused.output
