"""`deploy`, `rollback` and `remove`: what an endpoint serves, on the stack or a ClearML server.

Tested by tests/stack/test_desk_folder.py and tests/cli/test_ended.py.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from transformer_serving.desk.cli.options import (
    deploy_timeout_option,
    json_option,
    keep_option,
    key_option,
    state_option,
)
from transformer_serving.desk.failure import Failure

if TYPE_CHECKING:
    from transformer_serving.desk.deploy.target import DeployTarget


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--endpoint", required=True, metavar="NAME", help="Name under /serve/.")
@deploy_timeout_option
@keep_option
@key_option
@state_option
@json_option
def deploy(bundle: Path, endpoint: str, timeout_s: float, keep: int, key: str | None,
           state: str | None, as_json: bool) -> None:  # fmt: skip
    """Serve BUNDLE under a name; returns when its golden request answers as recorded."""
    from transformer_serving.desk.bundle.folder import open_bundle
    from transformer_serving.desk.cli.progress import plain_console, step_line
    from transformer_serving.desk.deploy.endpoint import deploy as deploy_bundle
    from transformer_serving.desk.deploy.time_limit import since_start
    from transformer_serving.desk.interruption import interruptible

    opened = open_bundle(bundle)  # what is no bundle is refused before the stack is asked for
    target = replace(deploy_target(state), key=key)
    target.cli.prepare()
    console = plain_console(stderr=as_json)
    with interruptible(), console.status("deploying") as line:
        done = deploy_bundle(
            target, opened, endpoint, timeout_s=timeout_s, keep=keep, spent_s=since_start(),
            report=step_line(line),
        )  # fmt: skip
    if as_json:
        click.echo(json.dumps(asdict(done), indent=2))
        return
    what = "serves" if done.changed else "already served"
    console.print(f"{endpoint} {what} bundle {done.bundle_version} at {done.url}", soft_wrap=True)


@click.command()
@click.argument("endpoint")
@deploy_timeout_option
@key_option
@state_option
@json_option
def rollback(endpoint: str, timeout_s: float, key: str | None, state: str | None,
             as_json: bool) -> None:  # fmt: skip
    """Serve the bundle that ENDPOINT served before the present one."""
    from transformer_serving.desk.cli.progress import plain_console, step_line
    from transformer_serving.desk.deploy.rollback import rollback as rollback_endpoint
    from transformer_serving.desk.deploy.time_limit import since_start
    from transformer_serving.desk.interruption import interruptible

    target = replace(deploy_target(state), key=key)
    target.cli.prepare()
    console = plain_console(stderr=as_json)
    with interruptible(), console.status("rolling back") as line:
        done = rollback_endpoint(
            target, endpoint, timeout_s=timeout_s, spent_s=since_start(),
            report=step_line(line),
        )  # fmt: skip
    if as_json:
        click.echo(json.dumps(asdict(done), indent=2))
        return
    instead = f" instead of {done.withdrawn_version}" if done.withdrawn_version else ""
    console.print(f"{endpoint} serves bundle {done.bundle_version}{instead}", soft_wrap=True)


@click.command()
@click.argument("endpoint")
@click.option("--forget", is_flag=True,
              help="Take its bundles out of the model registry too, with their files.")  # fmt: skip
@state_option
@json_option
def remove(endpoint: str, forget: bool, state: str | None, as_json: bool) -> None:
    """Take ENDPOINT out of service; its bundles stay in the model registry."""
    from transformer_serving.desk.deploy.removal import remove as remove_endpoint
    from transformer_serving.desk.interruption import interruptible

    target = deploy_target(state)
    target.cli.prepare()
    with interruptible():
        done = remove_endpoint(target, endpoint, forget=forget)
    if as_json:
        click.echo(json.dumps(asdict(done), indent=2))
        return
    if done.removed:
        click.echo(f"{endpoint} is removed")
    if forget:
        click.echo(f"{done.forgotten} of its bundles are forgotten")


def deploy_target(state: str | None) -> DeployTarget:
    """The embedded stack of that folder; without one, the server that CLEARML_* names.

    Raises Failure for a stack that is not running, and (exit code 2) where there is neither.
    """
    from transformer_serving.desk.command_line import command_line
    from transformer_serving.desk.local.leftovers import absence
    from transformer_serving.desk.local.record import load_record, state_directory
    from transformer_serving.desk.local.stack import Stack
    from transformer_serving.desk.local.supervision import Supervisor

    folder = state_directory(state)
    record = load_record(folder)
    if record is None:
        return _named_target(folder)
    supervisor = Supervisor(folder)
    if not supervisor.is_up():
        raise Failure(f"{folder}: {absence(folder)}{_other_server(record.serving_id)}")
    if record.serving_id is None:
        raise Failure(
            f"the stack in {folder} was not started whole; start the rest: "
            f"{command_line('up', folder)}{_other_server(record.serving_id)}"
        )
    return Stack(folder, record, supervisor).target()


def _other_server(serving_id: str | None) -> str:
    """How the server that CLEARML_* names is reached, where that is not the stack's own."""
    from transformer_serving.desk.deploy.target import target_of

    named = target_of(os.environ)
    if named is None or named.cli.serving_id == serving_id:
        return ""
    return (
        "; for the ClearML server that CLEARML_API_HOST names, name a folder without a stack: "
        "--state none"
    )


def _named_target(state: Path) -> DeployTarget:
    from transformer_serving.desk.command_line import STATE_VARIABLE, command_line
    from transformer_serving.desk.deploy.target import TARGET_VARIABLES, target_of
    from transformer_serving.desk.http import LOGIN, has_login

    target = target_of(os.environ)
    if target is None:
        missing = ", ".join(name for name in TARGET_VARIABLES if not os.environ.get(name))
        raise Failure(
            f"no stack in {state}; start one with '{command_line('up', state)}', or name its "
            f"folder with --state or {STATE_VARIABLE}; for a ClearML server of your own set "
            f"{missing}, as clearml.conf is not read for them",
            exit_code=2,
        )
    for name in TARGET_VARIABLES:
        if name.endswith(("_HOST", "_URL")) and has_login(os.environ[name]):
            raise Failure(f"{name}: {LOGIN}", exit_code=2)
    return replace(target, state=state)


COMMANDS = (deploy, rollback, remove)
