"""The command line `transformer-serving`: a thin edge; heavy imports stay inside the commands."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from transformer_serving.bundle_cli import BUNDLE_COMMANDS
from transformer_serving.failure import Failure
from transformer_serving.options import (
    deploy_timeout_option,
    json_option,
    keep_option,
    state_option,
)


class Commands(click.Group):
    """Prints a Failure as one line and leaves with its exit code."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except Failure as failure:
            click.echo(f"error: {failure}", err=True)
            context.exit(failure.exit_code)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="transformer-serving")
def main() -> None:
    """Serve Hugging Face transformers on ClearML Serving and NVIDIA Triton."""


for bundle_command in BUNDLE_COMMANDS:
    main.add_command(bundle_command)


@main.command()
@state_option
@click.option("--port-base", type=click.IntRange(1024, 65530), metavar="N",
              help="First of four ports in a row: inference, control plane, Triton's metrics, "
              "controller's metrics.  [default: 8080, 8008, 8002, 8003, or as before]")  # fmt: skip
@click.option("--open-inference", type=click.IntRange(1024, 65535), metavar="PORT",
              help="Let every program of this machine call Triton's HTTP at 127.0.0.1:PORT, for "
              "inference only. Without it Triton has no port.")  # fmt: skip
@click.option("--demo/--no-demo", default=False, help="Also build and deploy the two demo models.")
@json_option
def up(
    state: str | None,
    port_base: int | None,
    open_inference: int | None,
    demo: bool,
    as_json: bool,
) -> None:
    """Start the whole stack on this machine and wait until every part answers."""
    from transformer_serving.desk.local import commands

    commands.up(
        commands.folder(state),
        port_base,
        demo=demo,
        as_json=as_json,
        open_inference=open_inference,
    )


@main.command()
@state_option
@json_option
def down(state: str | None, as_json: bool) -> None:
    """Stop the stack, also after a crash of any part; data and endpoints stay."""
    from transformer_serving.desk.local import commands

    commands.down(commands.folder(state), as_json=as_json)


@main.command()
@click.option("--watch", is_flag=True, help="Go on showing it until Ctrl-C.")
@state_option
@json_option
def status(watch: bool, state: str | None, as_json: bool) -> None:
    """Show each part (pid, port, health, version) and each endpoint (bundle, engine, ready)."""
    from transformer_serving.desk.local import commands

    if watch:
        commands.watch(commands.folder(state), as_json=as_json)
    elif not commands.status(commands.folder(state), as_json=as_json):
        sys.exit(1)


@main.command()
@click.argument("part", required=False)
@click.option("-f", "--follow", is_flag=True, help="Go on printing what is added.")
@click.option("-n", "--lines", default=50, show_default=True, help="Lines from the end.")
@state_option
def logs(part: str | None, follow: bool, lines: int, state: str | None) -> None:
    """Print the end of the logs of one PART, or of all."""
    from transformer_serving.desk.local import commands

    commands.logs(commands.folder(state), part, follow=follow, lines=lines)


@main.command()
@state_option
@json_option
def env(state: str | None, as_json: bool) -> None:
    """Print the stack's CLEARML_* variables: eval "$(transformer-serving env)"."""
    from transformer_serving.desk.local import commands

    commands.env(commands.folder(state), as_json=as_json)


@main.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--endpoint", required=True, metavar="NAME", help="Name under /serve/.")
@deploy_timeout_option
@keep_option
@state_option
@json_option
def deploy(
    bundle: Path, endpoint: str, timeout_s: float, keep: int, state: str | None, as_json: bool
) -> None:
    """Serve BUNDLE under a name; returns when its golden request answers as recorded."""
    from transformer_serving.desk.local import commands

    commands.deploy(
        commands.folder(state), bundle, endpoint, timeout_s=timeout_s, keep=keep, as_json=as_json
    )


@main.command()
@click.argument("endpoint")
@deploy_timeout_option
@state_option
@json_option
def rollback(endpoint: str, timeout_s: float, state: str | None, as_json: bool) -> None:
    """Serve the bundle that ENDPOINT served before the present one."""
    from transformer_serving.desk.local import commands

    commands.rollback(commands.folder(state), endpoint, timeout_s=timeout_s, as_json=as_json)


@main.command()
@click.argument("endpoint")
@click.option("--forget", is_flag=True,
              help="Take its bundles out of the model registry too, with their files.")  # fmt: skip
@state_option
@json_option
def remove(endpoint: str, forget: bool, state: str | None, as_json: bool) -> None:
    """Take ENDPOINT out of service; its bundles stay in the model registry."""
    from transformer_serving.desk.local import commands

    commands.remove(commands.folder(state), endpoint, forget=forget, as_json=as_json)


@main.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@state_option
@json_option
def backup(file: Path, state: str | None, as_json: bool) -> None:
    """Write all that the stack stores, its keys too, to FILE; also while it serves."""
    from transformer_serving.desk.local import commands

    commands.backup(commands.folder(state), file, as_json=as_json)


@main.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@state_option
@json_option
def restore(file: Path, state: str | None, as_json: bool) -> None:
    """Put a backup in place of the data of a stack that is down; the old data is kept."""
    from transformer_serving.desk.local import commands

    commands.restore(commands.folder(state), file, as_json=as_json)


@main.command()
@click.argument("url")
@click.option("--text", help="The text to send.  [default: ClearML's own example]")
@click.option("--texts", type=click.IntRange(1), default=1, show_default=True, metavar="N",
              help="Texts in one request.")  # fmt: skip
@click.option("--words", type=click.IntRange(1), multiple=True, metavar="N",
              help="Send texts of so many words; may be repeated, to mix lengths.")  # fmt: skip
@click.option("--body", type=click.Path(path_type=Path), metavar="FILE",
              help="Send this file instead, as JSON.")  # fmt: skip
@click.option("--header", "headers", multiple=True, metavar="NAME:VALUE",
              help="Send this header too; may be repeated.")  # fmt: skip
@click.option("--concurrency", "-c", type=click.IntRange(1, 10_000), multiple=True, metavar="N",
              help="Clients of a closed loop; repeatable.  [default: 1, 8, 32, 128]")  # fmt: skip
@click.option("--rate", type=click.FloatRange(0, min_open=True), metavar="N",
              help="Requests a second of the open loop.  [default: 70 % of the best]")  # fmt: skip
@click.option("--seconds", type=click.FloatRange(0, min_open=True), default=5.0, show_default=True,
              help="Length of each load.")  # fmt: skip
@json_option
def bench(url: str, text: str | None, texts: int, words: tuple[int, ...], body: Path | None,
          headers: tuple[str, ...], concurrency: tuple[int, ...], rate: float | None,
          seconds: float, as_json: bool) -> None:  # fmt: skip
    """Load the endpoint at URL and show answers a second and latencies."""
    from transformer_serving.desk.bench import command

    command.bench(
        command.Bench(
            command.address(url, headers), command.payloads(body, text, texts, words),
            concurrency or command.CONCURRENCY, rate, seconds,
        ),
        as_json=as_json,
    )  # fmt: skip


@main.group(invoke_without_command=True)
@json_option
@click.pass_context
def versions(context: click.Context, as_json: bool) -> None:
    """Show the Triton releases with their evidence, and what the kit is pinned to."""
    from transformer_serving.desk.versions import commands

    if context.invoked_subcommand is None:
        commands.show(as_json=as_json)


@versions.command()
@click.argument("release")
@json_option
def use(release: str, as_json: bool) -> None:
    """Move the image pin to RELEASE, such as 25.06, and say what must be rebuilt."""
    from transformer_serving.desk.versions import commands

    commands.use(release, as_json=as_json)


@main.command()
@click.option("--env-file", type=click.Path(path_type=Path), metavar="FILE",
              help="Look at the ClearML server and Triton that this file names.")  # fmt: skip
@click.option("--bundle", type=click.Path(path_type=Path), metavar="PATH",
              help="Also check this bundle, or say what this .plan, .onnx or .xml is.")  # fmt: skip
@click.option("--endpoint", metavar="NAME", help="Of the endpoints only this one.")
@click.option("--log", type=click.Path(path_type=Path), metavar="FILE",
              help="Explain the known errors in this log of Triton.")  # fmt: skip
@state_option
@json_option
def doctor(env_file: Path | None, bundle: Path | None, endpoint: str | None, log: Path | None,
           state: str | None, as_json: bool) -> None:  # fmt: skip
    """Say what is wrong here, why, and the fix; exit code 1 when a check failed."""
    from transformer_serving.desk.doctor import command
    from transformer_serving.desk.local.record import state_directory

    if not command.doctor(state_directory(state), env_file=env_file, bundle=bundle,
                          endpoint=endpoint, log=log, as_json=as_json):  # fmt: skip
        sys.exit(1)


if __name__ == "__main__":
    main()
