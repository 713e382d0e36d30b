"""`rollout` as a user types it; the way of one is in tests/stack/test_rollout.py."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from click.testing import CliRunner

from tests.stack.small_bundles import write_small
from transformer_serving.contract.rollout import (
    HOLDING,
    LEAVING,
    OVER,
    PROMOTING,
    RETURNING,
    Allowed,
    Plan,
    State,
)
from transformer_serving.desk.clearml_tools.cli import ClearmlCli
from transformer_serving.desk.cli import main
from transformer_serving.desk.command_line import command_line
from transformer_serving.desk.deploy.rollout_plans import Rollout


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


@pytest.mark.parametrize("hold", ["721h", "9" * 400], ids=["long", "endless"])
def test_a_step_has_an_end(hold: str, tmp_path: Path) -> None:
    assert "at most 720h" in said(str(tmp_path), "--endpoint", "texts", "--hold", hold)


def test_a_shadow_has_no_steps(tmp_path: Path) -> None:
    bundle = str(write_small(tmp_path / "bundle").folder)
    arguments = (bundle, "--endpoint", "texts", "--shadow", "--state", str(tmp_path))
    assert "no --steps" in said(*arguments, "--steps", "1,100")
    assert "--mirror more than 0" in said(*arguments, "--mirror", "0")


@pytest.mark.parametrize(
    ("command", "phase", "outcome", "fails"),
    [
        ("abort", HOLDING, "went back", ""),
        ("abort", LEAVING, "promoted", "it was too late for that: texts promoted: why"),
        ("promote", HOLDING, "promoted", ""),
        ("promote", RETURNING, "went back", "it was too late for that: texts went back: why"),
        # It was in time, and failed, or somebody else aborted.
        ("promote", None, "went back", "error: texts went back: why"),
        ("promote", HOLDING, "went back", "error: texts went back: why"),
        ("promote", PROMOTING, "went back", "error: texts went back: why"),
    ],
)
def test_a_wish_that_was_not_done_is_a_failure(
    command: str, phase: str | None, outcome: str, fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asked for the old bundle is not told that all is well with the new one."""
    plan = Plan("a1", "texts", 77, "new", "old", (1.0, 100.0), 60.0)
    asked: list[tuple[str, str]] = []

    def wish(_: object, endpoint: str, wanted: str) -> Rollout:
        asked.append((endpoint, wanted))
        return Rollout(plan, State("a1", phase) if phase else None)

    over = Rollout(plan, State("a1", OVER, outcome=outcome, reason="why"))
    monkeypatch.setattr("transformer_serving.desk.cli.rollout.deploy_target", lambda _: None)
    monkeypatch.setattr("transformer_serving.desk.deploy.rollout.wish", wish)
    monkeypatch.setattr("transformer_serving.desk.deploy.rollout.watch", lambda *_: iter([over]))
    output = said(command, "texts", code=1 if fails else 0)
    assert asked == [("texts", command)]
    assert f"texts, bundle 77: {outcome}" in output
    assert fails in output
    assert ("error: " in output) == bool(fails)


@pytest.mark.parametrize("as_json", [False, True], ids=["lines", "json"])
@pytest.mark.parametrize("command", ["abort", "promote"])
def test_what_was_wished_goes_on_after_ctrl_c(
    command: str, as_json: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Plan("a1", "texts", 77, "new", "old", (1.0, 100.0), 60.0)

    def watch(*_: object) -> Iterator[Rollout]:
        yield Rollout(plan, None)
        raise KeyboardInterrupt

    desk = "transformer_serving.desk"
    target = SimpleNamespace(command=command_line)
    monkeypatch.setattr(f"{desk}.cli.rollout.deploy_target", lambda _: target)
    monkeypatch.setattr(f"{desk}.deploy.rollout.wish", lambda *_: Rollout(plan, None))
    monkeypatch.setattr(f"{desk}.deploy.rollout.watch", watch)
    output = said(command, "texts", *(["--json"] if as_json else []), code=1)
    assert "it goes on; look: transformer-serving rollout status texts" in output
    # A promotion can be called back until it is over.
    assert ("transformer-serving rollout abort texts" in output) == (command == "promote")


@dataclass
class Stack:
    """One whose server nobody asks."""

    cli: ClearmlCli = field(default_factory=lambda: ClearmlCli({}, "a1"))
    key: str | None = None

    def command(self, words: str) -> str:
        return command_line(words)


@pytest.mark.parametrize(
    ("options", "allowed"),
    [
        ("", Allowed()),
        (
            "--allow-harm 2 --allow-p50 3 --allow-p99 4 --confidence 90 --allow-differ 6"
            " --allow-cosine 0.5",
            Allowed(harm=0.02, p50=3.0, p99=4.0, confidence=0.9, differ=0.06, cosine=0.5),
        ),
    ],
)
def test_what_it_may_cost_is_what_was_asked_for(
    options: str, allowed: Allowed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Plan("a1", "texts", 77, "new", "old", (1.0, 100.0), 60.0)
    begun: list[Allowed] = []

    def start(*_: object, **options: Any) -> Rollout:
        begun.append(options["allowed"])
        return Rollout(plan, None)

    desk = "transformer_serving.desk"
    monkeypatch.setattr(f"{desk}.cli.rollout.deploy_target", lambda _: Stack())
    monkeypatch.setattr(f"{desk}.deploy.rollout.start", start)
    monkeypatch.setattr(f"{desk}.deploy.rollout.keep_newest", lambda *_: None)
    bundle = str(write_small(tmp_path / "bundle").folder)
    said(bundle, "--endpoint", "texts", "--detach", *options.split(), code=0)
    assert begun == [allowed]


@pytest.mark.parametrize("options", [[], ["--detach"], ["--json"]], ids=["", "detach", "json"])
def test_ctrl_c_while_older_bundles_leave_the_registry_ends_no_rollout(
    options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan is written, and another deploy of this machine may be waited for."""
    plan = Plan("a1", "texts", 77, "new", "old", (1.0, 100.0), 60.0)

    def interrupted(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        pytest.fail("it was not ended")

    desk = "transformer_serving.desk"
    monkeypatch.setattr(f"{desk}.cli.rollout.deploy_target", lambda _: Stack())
    monkeypatch.setattr(f"{desk}.deploy.rollout.start", lambda *_, **__: Rollout(plan, None))
    monkeypatch.setattr(f"{desk}.deploy.rollout.keep_newest", interrupted)
    bundle = str(write_small(tmp_path / "bundle").folder)
    output = said(bundle, "--endpoint", "texts", *options, code=0)
    assert "it goes on; look: transformer-serving rollout status texts" in output


def test_nothing_of_clearml_serving_waits_while_it_is_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That may take hours."""
    plan = Plan("a1", "texts", 77, "new", "old", (1.0, 100.0), 60.0)
    begun: list[list[psutil.Process]] = []

    def note(*_: object, **__: object) -> Rollout:
        begun.append(importing())
        return Rollout(plan, State("a1", OVER, outcome="promoted"))

    desk = "transformer_serving.desk"
    monkeypatch.setattr(f"{desk}.cli.rollout.deploy_target", lambda _: Stack())
    monkeypatch.setattr(f"{desk}.deploy.rollout.start", note)
    monkeypatch.setattr(f"{desk}.deploy.rollout.keep_newest", lambda *_: None)
    monkeypatch.setattr(f"{desk}.deploy.rollout.watch", lambda *_: iter([note()]))
    said(str(write_small(tmp_path / "bundle").folder), "--endpoint", "texts", code=0)
    assert [len(found) for found in begun] == [1, 0]


def importing() -> list[psutil.Process]:
    return [one for one in psutil.Process().children() if "warm_command" in " ".join(one.cmdline())]


def test_that_there_has_been_no_rollout_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = "transformer_serving.desk"
    target = SimpleNamespace(cli=None)
    monkeypatch.setattr(f"{desk}.cli.rollout.deploy_target", lambda _: target)
    monkeypatch.setattr(f"{desk}.deploy.rollout_plans.read_all", lambda _: {})
    assert said("status", code=0) == "no endpoint has had a rollout\n"
    assert said("status", "--json", code=0) == "[]\n"
