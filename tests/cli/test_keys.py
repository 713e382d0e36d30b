"""`keys` as a user runs it; what it writes is what the gateway reads."""

from __future__ import annotations

import bisect
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from transformer_serving.contract.errors import ContractError, ServingError
from transformer_serving.contract.keys import KEY_LENGTH, MOST_BYTES, Key, digest_of, keys_text
from transformer_serving.desk import keys as desk_keys
from transformer_serving.desk.cli import main
from transformer_serving.desk.failure import Failure
from transformer_serving.gateway.access import KEYS_FILE
from transformer_serving.gateway.keys import Keys

ROOT = Path(__file__).parent.parent.parent
CLI = str(Path(sys.executable).with_name("transformer-serving"))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


def keys(file: Path, *arguments: str, code: int = 0) -> Result:
    done = CliRunner().invoke(main, ["keys", *arguments], env={KEYS_FILE.name: str(file)})
    assert done.exit_code == code, done.output
    return done


def test_the_key_is_all_that_stands_on_stdout(file: Path) -> None:
    done = keys(file, "add", "shop")
    key = done.stdout.removesuffix("\n")
    assert len(key) == KEY_LENGTH
    assert "'shop' may ask every endpoint" in done.stderr
    assert key not in file.read_text() + done.stderr
    assert digest_of(key) in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o644
    assert Keys(file).key_of({b"x-api-key": key.encode()}).name == "shop"


def test_each_kind_of_key(file: Path) -> None:
    keys(file, "add", "bound", "--endpoint", "a", "--endpoint", "b/2", "--endpoint", "a")
    opened = ("/metrics", "/tei/NAME/metrics")
    said = keys(file, "add", "prometheus", "--metrics").stderr
    explained = keys(file, "add", "--help").stdout
    found = json.loads(keys(file, "list", "--json").stdout)
    assert [(row["name"], row["endpoints"], row["metrics"]) for row in found] == [
        ("bound", ["a", "b/2"], False), ("prometheus", None, True),
    ]  # fmt: skip
    shown = keys(file, "list").stdout
    assert "a, b/2" in shown
    # What gateway/front_door.py opens to it.
    for path in opened:
        assert all(path in " ".join(text.split()) for text in (said, explained, shown)), path


def test_a_removed_key_is_gone(file: Path) -> None:
    key = keys(file, "add", "old").stdout.strip()
    keys(file, "add", "new")
    keys(file, "remove", "old")
    with pytest.raises(ServingError):
        Keys(file).key_of({b"x-api-key": key.encode()})
    keys(file, "remove", "new")
    assert json.loads(keys(file, "list", "--json").stdout) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["add", "shop"], "has a key 'shop' already; choose another name, or first: "
                          "transformer-serving keys remove shop --file"),
        (["add", "a b"], "a key's name takes letters"),
        (["add", "new", "--endpoint", "/a"], "--endpoint takes a name under /serve/"),
        (["add", "new", "--endpoint", ""], "--endpoint takes a name under /serve/"),
        (["add", "new", "--endpoint", "a", "--metrics"], "--metrics goes without --endpoint"),
        (["remove", "other"], "has no key 'other'; see transformer-serving keys list"),
    ],
)  # fmt: skip
def test_what_is_refused_changes_nothing(file: Path, arguments: list[str], said: str) -> None:
    keys(file, "add", "shop")
    before = file.read_bytes()
    done = keys(file, *arguments, code=2)
    assert said in done.stderr
    assert done.stdout == ""
    assert file.read_bytes() == before


@pytest.mark.parametrize("command", [["list"], ["remove", "a"]])
def test_a_missing_file_is_told(file: Path, command: list[str]) -> None:
    assert "keys add NAME --file" in keys(file, *command, code=2).stderr
    assert not file.exists()


@pytest.mark.parametrize("command", [["list"], ["remove", "a"], ["add", "a"]])
def test_a_wrong_file_is_told_and_kept(file: Path, command: list[str]) -> None:
    file.write_text('{"keys": 1}')
    assert "'keys' must be list" in keys(file, *command, code=2).stderr
    assert file.read_text() == '{"keys": 1}'


def test_no_file_is_named(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != KEYS_FILE.name}
    done = subprocess.run(
        [CLI, "keys", "list"], env=environment, cwd=tmp_path, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "--file" in done.stderr
    assert KEYS_FILE.name in done.stderr


@pytest.mark.parametrize("others", [(), ("shop",)], ids=["first", "one more"])
def test_a_key_that_nobody_was_shown_is_taken_out_again(
    file: Path, others: tuple[str, ...]
) -> None:
    for name in others:
        keys(file, "add", name)
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [CLI, "keys", "add", "lost", "--file", str(file)], stdout=full, stderr=subprocess.PIPE,
            text=True, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert done.stderr == (
        f"error: the key could not be printed (No space left on device), and 'lost' is not in "
        f"{file}; do it again where there is room\n"
    )
    assert [row["name"] for row in json.loads(keys(file, "list", "--json").stdout)] == [*others]


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    done = keys(tmp_path / "missing" / "keys.json", "add", "a", code=2)
    assert "No such file" in done.stderr


def test_keys_added_at_once_are_all_kept(file: Path) -> None:
    """Each by a process of its own, as cron and an operator would."""

    def add(name: str) -> str:
        done = subprocess.run(
            [CLI, "keys", "add", name, "--file", str(file)], capture_output=True, text=True,
            timeout=120, check=True,
        )  # fmt: skip
        return done.stdout.strip()

    names = [f"k{number}" for number in range(8)]
    with ThreadPoolExecutor(4) as pool:
        made = dict(zip(names, pool.map(add, names), strict=True))
    read = Keys(file)
    assert {read.key_of({b"x-api-key": key.encode()}).name for key in made.values()} == set(names)
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_a_link_stays_a_link(tmp_path: Path, file: Path) -> None:
    link = tmp_path / "link.json"
    keys(file, "add", "a")
    link.symlink_to(file)
    keys(link, "add", "b")
    assert link.is_symlink()
    assert len(desk_keys.read(file)) == 2


@pytest.mark.parametrize("command", [["list"], ["remove", "a"], ["add", "a"]])
def test_a_link_that_leads_to_itself(tmp_path: Path, command: list[str]) -> None:
    link = tmp_path / "link.json"
    link.symlink_to(link.name)
    assert "link.json cannot be read: Too many levels" in keys(link, *command, code=2).stderr
    assert link.is_symlink()


def test_a_link_to_a_file_that_is_not_there_yet(tmp_path: Path, file: Path) -> None:
    link = tmp_path / "link.json"
    link.symlink_to(file.name)
    keys(link, "add", "a")
    assert link.is_symlink()
    assert [key.name for key in desk_keys.read(file)] == ["a"]


def test_the_documented_lines_work_in_an_empty_folder(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "security.md").read_text("utf-8")
    lines = page.partition("## Keys of the gateway")[2].partition("| a key of")[0].splitlines()
    typed = [line for line in lines if line.startswith(("mkdir ", "transformer-serving keys "))]
    assert [line.split()[2] for line in typed[1:]] == ["add", "add", "list", "remove"]
    # And the file that `up` is given is that one.
    assert f"{KEYS_FILE.name}=keys/keys.json transformer-serving up" in lines
    path = f"{Path(CLI).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-ec", "\n".join(typed)], cwd=tmp_path, env={**os.environ, "PATH": path},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [key.name for key in desk_keys.read(tmp_path / "keys/keys.json")] == ["prometheus"]


def too_many(rows: list[Key]) -> bool:
    try:
        keys_text(rows)
    except ContractError:
        return True
    return False


@pytest.mark.slow
def test_no_more_keys_than_the_gateway_reads(file: Path) -> None:
    row = len(keys_text([Key("a" * 64, "0" * 64, "2026-11-23T12:00:00+00:00")]))
    many = [
        Key(f"{number:064}", f"{number:064x}", "2026-11-23T12:00:00+00:00")
        for number in range(MOST_BYTES // (row - 40))
    ]
    most = bisect.bisect(range(1, len(many)), 0, key=lambda count: too_many(many[:count]))
    assert 0 < most < len(many) - 1
    file.write_text(keys_text(many[:most]))
    with pytest.raises(Failure, match="too large.*remove keys"):
        desk_keys.add_key(file, "b" * 64, (), metrics=False)
    assert len(desk_keys.read(file)) == most
