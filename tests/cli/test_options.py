"""Numbers that a command takes: each has an end, and none is what no number is equal to. And what
`--help` says of defaults and choices."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from transformer_serving.contract.heads import TASKS
from transformer_serving.desk.bench.measure import CONCURRENCY
from transformer_serving.desk.bench.streams import CONCURRENCY as STREAMED
from transformer_serving.desk.cli import main
from transformer_serving.desk.monitoring.__main__ import main as monitoring


def numbers(command: click.Command, name: str) -> Iterator[tuple[str, click.Parameter]]:
    """Every option of the command and of those in it that takes a fraction."""
    if isinstance(command, click.Group):
        for word, inner in command.commands.items():
            yield from numbers(inner, f"{name} {word}")
    for option in command.params:
        if isinstance(option.type, click.types.FloatParamType):
            yield f"{name} {option.opts[0]}", option


NUMBERS = dict([*numbers(main, "transformer-serving"), *numbers(monitoring, "monitoring")])


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e300"])
@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_without_end_is_refused(name: str, value: str) -> None:
    """A load of it would be built up until the memory is full, and a plan would hold no JSON."""
    option = NUMBERS[name]
    with pytest.raises(click.BadParameter):
        option.type_cast_value(click.Context(main), value)


def test_there_are_such_options() -> None:
    for name in ("bench --rate", "rollout start --mirror", "rollback --timeout", "tune --minutes"):
        assert f"transformer-serving {name}" in NUMBERS


def test_bench_says_how_many_clients_it_has_unasked() -> None:
    shown = " ".join(CliRunner().invoke(main, ["bench", "--help"]).output.split())
    whole, streamed = (", ".join(map(str, some)) for some in (CONCURRENCY, STREAMED))
    assert f"[default: {whole}; with --stream {streamed}]" in shown
    assert "Of --for-scaling: in which a text shall have waited" in shown


@pytest.mark.parametrize("name", ["bundle", "adopt"])
def test_a_task_that_no_engine_of_others_answers_is_no_choice(name: str) -> None:
    [option] = [one for one in main.commands[name].params if one.name == "task"]
    assert set(option.type.choices) == set(TASKS) - {"fill-mask"}  # type: ignore[attr-defined]
    with pytest.raises(click.BadParameter, match="fill-mask's graph is made by 'convert' alone"):
        option.type_cast_value(click.Context(main.commands[name]), "fill-mask")


@pytest.mark.parametrize("command", ["deploy", "rollback", "rollout start"])
def test_a_desk_may_have_a_patience_of_its_own(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is typed goes before it; what is no number is refused by the variable's name."""
    option, context = NUMBERS[f"transformer-serving {command} --timeout"], click.Context(main)
    variable = "TRANSFORMER_SERVING_DEPLOY_TIMEOUT_S"
    monkeypatch.delenv(variable, raising=False)
    assert option.handle_parse_result(context, {}, [])[0] == 120
    monkeypatch.setenv(variable, "600")
    assert option.handle_parse_result(context, {}, [])[0] == 600
    assert option.handle_parse_result(context, {"timeout_s": "9"}, [])[0] == 9
    monkeypatch.setenv(variable, "soon")
    with pytest.raises(click.BadParameter) as refused:
        option.handle_parse_result(context, {}, [])
    assert variable in refused.value.format_message()
