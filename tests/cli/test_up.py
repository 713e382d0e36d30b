"""What `up` understands of --demo; tests/stack runs it."""

from __future__ import annotations

import click
import pytest

from transformer_serving.desk.cli.stack import up


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


def test_another_demo_is_refused_with_those_there_are() -> None:
    with pytest.raises(click.BadParameter, match="generation"):
        up.make_context("up", ["--demo", "poetry"])
