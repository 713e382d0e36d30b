"""The demo of `up`: its bundles, their deployment, and the requests that one can paste.

Tested by tests/cli/test_up.py.
"""

from __future__ import annotations

import json
import os
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_serving.desk.cli.options import key_was_typed
from transformer_serving.desk.http import KEY_HEADER, KEY_VARIABLE, key_header

if TYPE_CHECKING:
    from rich.console import Console

    from transformer_serving.desk.cli.progress import Phases
    from transformer_serving.desk.demo import DemoBundle
    from transformer_serving.desk.deploy.endpoint import Deployed
    from transformer_serving.desk.deploy.target import DeployTarget
    from transformer_serving.desk.local.stack import Stack

_GOLDEN_S = 120.0


def demo_bundles(demo: str, phases: Phases) -> list[DemoBundle]:
    with phases.phase("build the demo models"):
        from transformer_serving.desk.demo import build_demo_models, build_generation_demo

        if demo == "generation":
            folder = Path("build/demo-generation")
            return build_generation_demo(folder, report=phases.report)
        return build_demo_models(Path("build/demo"), precision=None, report=phases.report)


def deploy_demo(
    running: Stack, bundles: list[DemoBundle], phases: Phases, key: str | None
) -> list[tuple[Deployed, DemoBundle]]:
    """All but what would take the place of the user's own."""
    from transformer_serving.desk.bundle.folder import open_bundle
    from transformer_serving.desk.demo.left_alone import served_instead
    from transformer_serving.desk.deploy.endpoint import deploy_together

    opened = {bundle.endpoint: open_bundle(bundle.path) for bundle in bundles}
    target = replace(running.target(), key=key)
    with phases.phase(f"deploy {' and '.join(opened)}"):
        phases.report("asking what is served already")
        standing = served_instead(target, opened)
        taken = [bundle for bundle in bundles if bundle.endpoint not in standing]
        asked = {bundle.endpoint: opened[bundle.endpoint] for bundle in taken}
        done = deploy_together(
            target, asked, timeout_s=_GOLDEN_S * len(asked), report=phases.report
        ) if asked else []  # fmt: skip
    for bundle in bundles:
        if bundle.endpoint in standing:
            _show_left_alone(phases.console, target, bundle, standing[bundle.endpoint])
    return list(zip(done, taken, strict=True))


def _show_left_alone(
    console: Console, target: DeployTarget, bundle: DemoBundle, standing: str
) -> None:
    name = bundle.endpoint
    console.print(
        f"{name} {standing}, and is left as it is; the demo under another name: "
        f"{target.command(f'deploy {bundle.path} --endpoint NAME')}; or in its place, after: "
        f"{target.command(f'remove {name}')}",
        soft_wrap=True, highlight=False, markup=False,
    )  # fmt: skip


def show_requests(
    console: Console, state: Path, deployed: list[tuple[Deployed, DemoBundle]], key: str | None
) -> None:
    # A shell would put nothing, or another key, in the place of a key that was given by --key.
    if deployed and key_was_typed(key):
        console.print()
        console.print(
            f"for these requests {KEY_VARIABLE} must hold the key: export {KEY_VARIABLE}=KEY",
            soft_wrap=True, highlight=False, markup=False,
        )  # fmt: skip
    for done, bundle in deployed:
        _show_curl(console, done, bundle, key)
        _show_generate(console, state, done, bundle, key)


def _show_generate(
    console: Console, state: Path, done: Deployed, bundle: DemoBundle, key: str | None
) -> None:
    """The curl line of the generation recipe, where this stack has its path for the demo."""
    from transformer_serving.desk.command_line import command_line
    from transformer_serving.desk.deploy.golden import ask
    from transformer_serving.gateway.settings import GENERATE, GENERATE_ENDPOINT

    wanted = bundle.settings.get(GENERATE_ENDPOINT.name)
    if wanted is None or os.environ.get(GENERATE_ENDPOINT.name, "") not in ("", wanted):
        return
    url = done.url.partition("/serve/")[0] + GENERATE
    reply = ask(url, _whole(bundle.request), headers=key_header(key))
    if reply.status == 200 and reply.version == done.bundle_version:
        line = _curl(url, _whole(bundle.request), key)
        console.print(line, style="bold", soft_wrap=True, highlight=False, markup=False)
    elif reply.status == 404:
        console.print(
            f"POST {GENERATE} asks no endpoint: the stack ran before, and keeps what it was "
            f"started with; after '{command_line('down', state)}' this command starts one that has "
            "it",
            soft_wrap=True, highlight=False,
        )  # fmt: skip


def _show_curl(console: Console, done: Deployed, bundle: DemoBundle, key: str | None) -> None:
    """The curl line as one can paste it, and what it answers right now; a key is not shown."""
    from transformer_serving.desk.deploy.golden import ask

    line = _curl(done.url, bundle.request, key)
    answer = json.dumps(ask(done.url, _whole(bundle.request), headers=key_header(key)).body)
    console.print()
    if bundle.about:
        console.print(bundle.about, soft_wrap=True, highlight=False)
    console.print(line, style="bold", soft_wrap=True, highlight=False, markup=False)
    shown = answer if len(answer) <= 200 else f"{answer[:160]} ... ({len(answer)} characters)"
    console.print(shown, soft_wrap=True, highlight=False, markup=False)


def _whole(request: dict[str, Any]) -> dict[str, Any]:
    """What comes as events is shown whole."""
    return {name: value for name, value in request.items() if name != "stream"}


def _curl(url: str, request: dict[str, Any], key: str | None) -> str:
    body = shlex.quote(json.dumps(request))
    # Without -N curl shows events when it has a page full of them.
    options = "-N -X" if request.get("stream") else "-X"
    headers = ["Content-Type: application/json"]
    if key:
        headers.append(f"{KEY_HEADER}: ${KEY_VARIABLE}")
    stated = " ".join(f'-H "{header}"' for header in headers)
    return f"curl {options} POST {url} {stated} -d {body}"
