"""`rollout`: a new bundle beside the old one, step by step, and back by itself where it does worse.

Tested by tests/cli/test_rollout.py and tests/stack/test_rollout.py.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from transformer_serving.contract.rollout import Allowed
from transformer_serving.desk.cli.deploy import deploy_target
from transformer_serving.desk.cli.options import (
    deploy_timeout_option,
    json_option,
    keep_option,
    key_option,
    state_option,
)
from transformer_serving.desk.number import Number

if TYPE_CHECKING:
    from transformer_serving.desk.deploy.rollout_plans import Rollout
    from transformer_serving.desk.deploy.target import DeployTarget

_START = "start"
_MOST_TIMES = 1000
_MOST_HOLD_S = 30 * 24 * 3600
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600}
# What a rollout that went back ends the command with.
_WENT_BACK_CODE = 3
_GOOD = ("promoted", "passed")
_ALLOWED = Allowed()


def _percents(_context: click.Context, _option: click.Parameter, value: str) -> tuple[float, ...]:
    """Of `1,10,50,100`."""
    try:
        return tuple(float(part) for part in value.split(","))
    except ValueError:
        raise click.BadParameter(f"'{value}' are no percents such as 1,10,50,100") from None


def check_shadow(shadow: bool, steps_from: ParameterSource | None) -> None:
    """Raises BadParameter for a shadow with steps."""
    if shadow and steps_from is ParameterSource.COMMANDLINE:
        raise click.BadParameter("a --shadow has no --steps: the old bundle answers everything")


def _seconds(_context: click.Context, _option: click.Parameter, value: str) -> float:
    """Of `60s`, `5m`, or seconds alone."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", value)
    if found is None:
        raise click.BadParameter(f"'{value}' is no time such as 60s or 5m")
    seconds = float(found[1]) * _SECONDS[found[2]]
    if seconds > _MOST_HOLD_S:
        raise click.BadParameter(f"a step takes at most {_MOST_HOLD_S // 3600}h")
    return seconds


class BundleOrCommand(click.Group):
    """What is none of its commands is a bundle, and begins a rollout of it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, *ctx.help_option_names):
            args = [_START, *args]
        return super().parse_args(ctx, args)


@click.group(cls=BundleOrCommand)
def rollout() -> None:
    """Serve a new bundle beside the old one, to ever more of the requests.

    `rollout BUNDLE --endpoint NAME` is `rollout start`; for a folder that is named as a command,
    ./NAME.
    """


@rollout.command(_START)
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--endpoint", required=True, metavar="NAME", help="An endpoint that serves.")
@click.option("--steps", callback=_percents, default="1,10,50,100", show_default=True,
              metavar="PERCENTS", help="Shares of the requests, one after the other.")  # fmt: skip
@click.option("--hold", "hold_s", callback=_seconds, default="60s", show_default=True,
              metavar="TIME", help="How long a step takes at least.")  # fmt: skip
@click.option("--allow-harm", "harm", type=Number(0.01, 50), default=100 * _ALLOWED.harm,
              show_default=True, metavar="PERCENT",
              help="Of all requests, how many more may be errors, or from 1 on slow.")  # fmt: skip
@click.option("--allow-p50", "p50", type=Number(1, _MOST_TIMES), default=_ALLOWED.p50,
              show_default=True, metavar="TIMES",
              help="How far its median may be above the old one's.")  # fmt: skip
@click.option("--allow-p99", "p99", type=Number(1, _MOST_TIMES), default=_ALLOWED.p99,
              show_default=True, metavar="TIMES",
              help="What is slower than so many times the old p99 is slow.")  # fmt: skip
@click.option("--allow-differ", "differ", type=Number(0.01, 100), default=100 * _ALLOWED.differ,
              show_default=True, metavar="PERCENT",
              help="Of mirrored requests, how many may be answered otherwise.")  # fmt: skip
@click.option("--allow-cosine", "cosine", type=Number(-1, 1), default=_ALLOWED.cosine,
              show_default=True, metavar="COSINE",
              help="Vectors that are less alike differ.")  # fmt: skip
@click.option("--mirror", type=Number(0, 50), default=25.0, show_default=True,
              metavar="PERCENT",
              help="Of each worker's time, for mirrored requests; 0: compare no answers."
              )  # fmt: skip
@click.option("--shadow", is_flag=True,
              help="The old bundle alone answers; nothing is promoted.")  # fmt: skip
@click.option("--confidence", type=Number(50, 99.99), default=100 * _ALLOWED.confidence,
              show_default=True, metavar="PERCENT",
              help="Of the whole rollout, in either direction.")  # fmt: skip
@click.option("--detach", is_flag=True, help="Return as soon as the controller has the plan.")
@deploy_timeout_option
@keep_option
@key_option
@state_option
@json_option
def start(bundle: Path, endpoint: str, steps: tuple[float, ...], hold_s: float, harm: float,
          p50: float, p99: float, differ: float, cosine: float, mirror: float, shadow: bool,
          confidence: float, detach: bool, timeout_s: float, keep: int,
          key: str | None, state: str | None, as_json: bool) -> None:  # fmt: skip
    """Begin a rollout of BUNDLE and watch it; it goes on when the terminal ends.

    --timeout is for the candidate to be there. Ends with 3 where the rollout went back, or the
    shadow did not pass.
    """

    from transformer_serving.desk.bundle.folder import open_bundle
    from transformer_serving.desk.cli.progress import plain_console, step_line
    from transformer_serving.desk.deploy.rollout import (
        check_steps,
        mirrored_share,
        start as start_rollout,
    )
    from transformer_serving.desk.deploy.time_limit import since_start
    from transformer_serving.desk.interruption import interruptible

    opened = open_bundle(bundle)  # what is no bundle is refused before the stack is asked for
    check_steps(steps)
    check_shadow(shadow, click.get_current_context().get_parameter_source("steps"))
    mirrored_share(opened, mirror, shadow=shadow)
    allowed = Allowed(
        harm=harm / 100, p50=p50, p99=p99, confidence=confidence / 100, differ=differ / 100,
        cosine=cosine,
    )  # fmt: skip
    target = replace(deploy_target(state), key=key)
    target.cli.prepare()
    console = plain_console(stderr=True)
    with interruptible(), console.status("rolling out") as line:
        begun = start_rollout(
            target, opened, endpoint, steps=steps, hold_s=hold_s, timeout_s=timeout_s,
            allowed=allowed, mirror=mirror / 100, shadow=shadow,
            spent_s=since_start(), report=step_line(line),
            tell=lambda said: console.print(said, soft_wrap=True, highlight=False),
        )  # fmt: skip
    _after_plan(target, begun, keep, detach=detach, as_json=as_json)


@rollout.command()
@click.argument("endpoint", required=False)
@state_option
@json_option
def status(endpoint: str | None, state: str | None, as_json: bool) -> None:
    """Show the last rollout of ENDPOINT, or of each."""
    from transformer_serving.desk.deploy.rollout_plans import read_all
    from transformer_serving.desk.failure import Failure

    found = read_all(deploy_target(state).cli)
    if endpoint is not None and endpoint not in found:
        raise Failure(f"'{endpoint}' has had no rollout", exit_code=2)
    rows = [row for name, row in sorted(found.items()) if endpoint in (None, name)]
    if as_json:
        click.echo(json.dumps([_values(row) for row in rows], indent=2))
        return
    if not rows:
        click.echo("no endpoint has had a rollout")
    for row in rows:
        _print(row, as_json=False)


@rollout.command()
@click.argument("endpoint")
@state_option
@json_option
def abort(endpoint: str, state: str | None, as_json: bool) -> None:
    """Have the old bundle of ENDPOINT answer everything again."""
    from transformer_serving.contract.rollout import ABORT

    _end(endpoint, ABORT, state, as_json)


@rollout.command()
@click.argument("endpoint")
@state_option
@json_option
def promote(endpoint: str, state: str | None, as_json: bool) -> None:
    """Have the new bundle of ENDPOINT answer everything, whatever the figures say."""
    from transformer_serving.contract.rollout import PROMOTE

    _end(endpoint, PROMOTE, state, as_json)


def _end(endpoint: str, wanted: str, state: str | None, as_json: bool) -> None:
    from transformer_serving.contract.rollout import PROMOTE, PROMOTED, RETURNING
    from transformer_serving.desk.deploy.rollout import watch, wish
    from transformer_serving.desk.failure import Failure

    target = deploy_target(state)
    asked = wish(target, endpoint, wanted)
    try:
        *_, last = watch(target, asked.plan)
    except KeyboardInterrupt:
        _tell(_goes_on(target, endpoint))
        if wanted == PROMOTE:
            _tell(f"to call it back: {target.command(f'rollout abort {endpoint}')}")
        sys.exit(1)
    _print(last, as_json)
    outcome, reason = (last.state.outcome, last.state.reason) if last.state else ("", "")
    if (outcome == PROMOTED) != (wanted == PROMOTE):
        is_late = wanted != PROMOTE or (asked.state and asked.state.phase == RETURNING)
        late, why = "it was too late for that: " if is_late else "", f": {reason}" if reason else ""
        raise Failure(f"{late}{endpoint} {outcome}{why}")


def _after_plan(
    target: DeployTarget, begun: Rollout, keep: int, *, detach: bool, as_json: bool
) -> None:
    """What Ctrl-C ends well: the rollout goes on. Each change is printed, for JSON the last."""
    from transformer_serving.desk.clearml_tools import warm_command
    from transformer_serving.desk.cli.progress import plain_console
    from transformer_serving.desk.deploy.rollout import keep_newest, watch
    from transformer_serving.desk.interruption import interruptible

    last, waiting = begun, "taking older bundles out of the registry"
    try:
        with interruptible(), plain_console(stderr=True).status(waiting):
            keep_newest(target, begun.plan, keep)
            # To watch may take hours, and asks clearml-serving for nothing.
            warm_command.end_waiting()
        for last in () if detach else watch(target, begun.plan):
            if not as_json:
                _print(last, as_json=False)
    except KeyboardInterrupt:
        _tell(_goes_on(target, begun.plan.endpoint))
        return
    if as_json or detach:
        _print(last, as_json)
    if last.state is not None and last.state.outcome not in _GOOD:
        sys.exit(_WENT_BACK_CODE)


def _goes_on(target: DeployTarget, endpoint: str) -> str:
    return f"it goes on; look: {target.command(f'rollout status {endpoint}')}"


def _tell(line: str) -> None:
    click.echo(line, err=True)


def _print(row: Rollout, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(_values(row), indent=2))
        return
    says: Sequence[str] = row.state.says if row.state is not None else ()
    click.echo("\n".join([row.line, *(f"  {line}" for line in says)]))


def _values(row: Rollout) -> dict[str, Any]:
    state = {} if row.state is None else asdict(row.state)
    for own in ("by", "beat", "beat_at", "before", "looked_at"):
        state.pop(own, None)
    return {"line": row.line, "plan": asdict(row.plan), "state": state or None}


COMMANDS = (rollout,)
