"""docs/coming-from.md: what it says is typed here can be; what it says is read is."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import clearml_serving
import click
import pytest

from transformer_serving.contract.heads import GENERATION, TASKS
from transformer_serving.desk.cli import main
from transformer_serving.desk.compose.__main__ import EXAMPLE
from transformer_serving.desk.export.endpoint_json import limits_of
from transformer_serving.gateway.figures.metrics import PATH as METRICS
from transformer_serving.gateway.health import PLAIN, PREFIX
from transformer_serving.gateway.routes import ROUTES
from transformer_serving.gateway.settings import GENERATE, ROOT

REPOSITORY = Path(__file__).parent.parent
PAGE = (REPOSITORY / "docs" / "coming-from.md").read_text("utf-8")
BLOCKS = re.findall(r"^```bash\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
ROWS = re.findall(r"^\| (.+?) \| (.+) \|$", PAGE, re.MULTILINE)
HERE = [here for _, here in ROWS if not here.startswith("-")]
VARIABLE = re.compile(r"\b[A-Z]+(?:_[A-Z]+)+\b")
# The Hub's own (docs/convert.md).
OF_OTHERS = {"HF_TOKEN", "HF_HUB_CACHE"}
INTRODUCTIONS = "\n".join(line for line in PAGE.splitlines() if not line.startswith("|"))
PROGRAM = "transformer-serving"
WITHOUT_EFFECT = ("CLEARML_USE_GUNICORN", "CLEARML_SERVING_RESTART_ON_FAILURE")


def of_the_blocks() -> list[list[str]]:
    """The words of each whole command of this program, behind its name."""
    lines = [line for block in BLOCKS for line in block.replace("\\\n", " ").splitlines()]
    found = []
    for line in lines:
        words = shlex.split(line)
        while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
            words.pop(0)
        if words and words[0] == PROGRAM:
            found.append(words[1:])
    return found


def command_of(words: list[str]) -> tuple[click.Command, list[str]]:
    """The innermost one, and what is given to it."""
    command: click.Command = main
    while isinstance(command, click.Group) and words and words[0] in command.commands:
        command, words = command.commands[words[0]], words[1:]
    assert command is not main, words
    return command, words


def options_of(command: click.Command) -> set[str]:
    own = {name for row in command.params for name in row.opts}
    if isinstance(command, click.Group):
        own.update(*map(options_of, command.commands.values()))
    return own


@pytest.mark.parametrize("words", of_the_blocks(), ids=" ".join)
def test_a_whole_command_is_understood(words: list[str]) -> None:
    command, given = command_of(words)
    command.make_context("", list(given))


def test_a_command_in_a_line_is_there_with_its_options() -> None:
    found = [span.split()[1:] for span in re.findall(rf"`({PROGRAM} [^`]+)`", PAGE)]
    assert len(found) > 10
    for words in found:
        command, given = command_of(words)
        assert {word for word in given if word.startswith("-")} <= options_of(command), words


def test_an_option_that_takes_another_ones_place_is_there() -> None:
    """With the values that stand behind it, where it is one of convert."""
    known = options_of(main)
    spans = [span.split() for here in HERE for span in re.findall(r"`(--[a-z][^`]*)`", here)]
    spans = [words for words in spans if words[0] != "--aux-config"]
    assert len(spans) > 30
    convert = main.commands["convert"]
    for words in spans:
        assert words[0] in known, words
        if len(words) > 1 and words[0] in options_of(convert):
            convert.make_context("", ["MODEL", "--output", "BUNDLE", *words])


def test_a_variable_is_one_of_ours_and_keeps_its_name_where_the_page_says_so() -> None:
    ours = set(re.findall(r"^([A-Z_]+)=", EXAMPLE.read_text("utf-8"), re.MULTILINE))
    for here in HERE:
        assert set(VARIABLE.findall(here)) <= ours | OF_OTHERS, here
    kept = [there for there, here in ROWS if here.startswith("the same") and VARIABLE.search(there)]
    assert len(kept) == 7
    for there in kept:
        assert set(VARIABLE.findall(there)) <= ours, there


def test_what_has_no_effect_is_read_by_nobody() -> None:
    """Of the old environment file, whose lines may stay in the new one."""
    rows = [there for there, here in ROWS if here.startswith("no effect")]
    assert rows == [f"`{name}`" for name in WITHOUT_EFFECT]
    folders = ("transformer_serving", "preprocess", "docker", "compose", "kubernetes")
    host = Path(clearml_serving.__file__).parent
    for folder in (host, *(REPOSITORY / name for name in folders)):
        for path in folder.rglob("*"):
            if path.suffix in {".py", ".yaml", ".yml", ".env", ".json", ".tpl", ".sh"}:
                text = path.read_text("utf-8", errors="replace")
                assert not [name for name in WITHOUT_EFFECT if name in text], path


def test_a_path_that_is_asked_is_answered() -> None:
    known = {route.path for route in ROUTES} | {GENERATE, ROOT, METRICS, PLAIN, PREFIX + "ready"}
    known.add("/serve/{name}")
    asked = re.findall(r"`(?:POST )?(/[a-z0-9/{}A-Z_]*)`", "\n".join((*HERE, INTRODUCTIONS)))
    assert len(asked) > 5
    for path in asked:
        assert path.replace("NAME", "{name}") in known, path


def test_so_many_texts_of_a_request_as_the_page_says() -> None:
    said, prompts = (here for there, here in ROWS if there.startswith("`--max-client-batch-size`"))
    assert f" {limits_of(GENERATION).max_texts:,} prompts" in prompts
    most, many = (int(number.replace(",", "")) for number in re.findall(r"[\d,]*\d", said))
    tasks = set(re.findall(r"[a-z]+-[a-z-]+", said))
    for task in set(TASKS) - {GENERATION}:
        assert limits_of(task).max_texts == (many if task in tasks else most), task
    assert tasks < set(TASKS)


def test_a_stack_that_is_given_settings_was_not_running_before() -> None:
    """One that runs keeps those that it was started with."""
    found = [block for block in BLOCKS if re.search(rf"=\S+ {PROGRAM} up", block)]
    assert len(found) == 2
    for block in found:
        before = re.split(rf"{PROGRAM} up", block)[0]
        assert f"{PROGRAM} down\n" in before


def test_what_is_typed_by_hand_on_this_stack_leaves_create_out_as_the_page_says() -> None:
    assert "leave\n`create` out there" in PAGE
    by_hand = (REPOSITORY / "docs" / "by-hand.md").read_text("utf-8")
    typed = re.findall(r"<!-- run -->\n```bash\n(.*?)```", by_hand, re.DOTALL)
    assert any(" model add " in block for block in typed)
    assert not any("clearml-serving create" in block for block in typed)
