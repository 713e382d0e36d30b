"""What `up` understands of --demo and --key, and needs for --monitoring; tests/stack runs it."""

from __future__ import annotations

import importlib
import os
import shlex
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import psutil
import pytest
from click.testing import CliRunner

from tests.engine.triton_server import wait_until
from transformer_serving.contract.pip_line import pip_line
from transformer_serving.contract.stack_line import MARK
from transformer_serving.desk.clearml_tools.cli import ClearmlCli
from transformer_serving.desk.cli import main, stack
from transformer_serving.desk.cli.stack import up
from transformer_serving.desk.demo import DemoBundle
from transformer_serving.desk.deploy.endpoint import Deployed
from transformer_serving.desk.deploy.golden import Reply
from transformer_serving.desk.deploy.target import DeployTarget
from transformer_serving.desk.deploy.time_limit import within
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.local.free_ports import free_row
from transformer_serving.desk.local.record import Ports
from transformer_serving.desk.local.supervision import Supervisor
from transformer_serving.desk.local.wanted import check_ports
from transformer_serving.gateway.settings import GENERATE_ENDPOINT, WORKERS

CLI = str(Path(sys.executable).with_name("transformer-serving"))


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


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """With which the gateway of a played stack is asked for its demo."""
    target = DeployTarget(ClearmlCli({}, "0" * 32), "http://f", "http://s", tmp_path / "lock")
    keys: list[str | None] = []

    def deployed(target: DeployTarget, *_: Any, **__: Any) -> list[Deployed]:
        keys.append(target.key)
        return [Deployed("texts", "http://s/serve/texts", 1, None, True)]

    def answered(url: str, request: Any, **options: Any) -> Reply:
        keys.append(options["headers"].get("x-api-key"))
        return Reply(200, {}, 1)

    bundles = [DemoBundle("texts", tmp_path, {"text": "a"})]
    monkeypatch.setattr(stack, "demo_bundles", lambda demo, phases: bundles)
    running = SimpleNamespace(target=lambda: target, unheard=())
    desk = "transformer_serving.desk"
    monkeypatch.setattr(f"{desk}.local.stack.start", lambda *_, **__: running)
    monkeypatch.setattr(f"{desk}.local.wanted.check", lambda *_, **__: None)
    monkeypatch.setattr(f"{desk}.bundle.folder.open_bundle", lambda path: None)
    monkeypatch.setattr(f"{desk}.demo.left_alone.served_instead", lambda *_: {})
    monkeypatch.setattr(f"{desk}.deploy.endpoint.deploy_together", deployed)
    monkeypatch.setattr(f"{desk}.deploy.golden.ask", answered)
    return keys


def demo(tmp_path: Path, *options: str) -> str:
    done = CliRunner().invoke(up, ["--demo", "--state", str(tmp_path / "state"), *options])
    assert done.exit_code == 0, done.output
    return done.output


def test_a_gateway_with_keys_is_asked_with_the_key(
    keys: list[str | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRANSFORMER_SERVING_KEY", "a-key")
    said = demo(tmp_path)
    assert keys == ["a-key", "a-key"]
    assert '-H "x-api-key: $TRANSFORMER_SERVING_KEY" -d' in said
    assert "a-key" not in said
    assert "export" not in said


@pytest.mark.parametrize("held", [None, "another-key"])
def test_a_key_that_the_shell_does_not_hold_is_to_be_exported(
    keys: list[str | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: str | None
) -> None:
    monkeypatch.delenv("TRANSFORMER_SERVING_KEY", raising=False)
    if held:
        monkeypatch.setenv("TRANSFORMER_SERVING_KEY", held)
    said = demo(tmp_path, "--key", "a-key")
    assert keys == ["a-key", "a-key"]
    line = next(line for line in said.splitlines() if "must hold the key" in line)
    assert line.endswith("export TRANSFORMER_SERVING_KEY=KEY")
    assert '-H "x-api-key: $TRANSFORMER_SERVING_KEY" -d' in said.split(line)[1]
    assert "a-key" not in said.replace("another-key", "")
    assert "a-key" not in said
    assert "another-key" not in said


def test_without_a_key_nothing_is_to_be_exported(
    keys: list[str | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRANSFORMER_SERVING_KEY", raising=False)
    said = demo(tmp_path)
    assert keys == [None, None]
    assert "TRANSFORMER_SERVING_KEY" not in said


def test_what_is_the_users_own_is_left_and_named(
    keys: list[str | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = "transformer_serving.desk.demo.left_alone.served_instead"
    monkeypatch.setattr(served, lambda *_: {"texts": "serves bundle 7, of the model mine"})
    said = demo(tmp_path)
    # Nothing is deployed, and nobody is asked for an answer to show.
    assert keys == []
    assert "texts serves bundle 7, of the model mine, and is left as it is" in said
    assert f"transformer-serving deploy {tmp_path} --endpoint NAME" in said
    assert "transformer-serving remove texts" in said


Played = Callable[[int, int], list[Any]]


@pytest.fixture
def recipe(keys: list[str | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Played:
    """Played as `keys`, with the language model's demo: what is asked, and what `up` starts with.

    POST /generate answers that status, by that version.
    """
    monkeypatch.delenv(GENERATE_ENDPOINT.name, raising=False)
    settings = {GENERATE_ENDPOINT.name: "texts"}
    bundles = [DemoBundle("texts", tmp_path, {"text": "a", "stream": True}, settings=settings)]
    monkeypatch.setattr(stack, "demo_bundles", lambda demo, phases: bundles)
    desk = "transformer_serving.desk"
    running = importlib.import_module(f"{desk}.local.stack").start()

    def played(status: int, version: int) -> list[Any]:
        seen: list[Any] = []

        def start(*_: Any, **options: Any) -> Any:
            seen.append(options["settings"])
            return running

        def answered(url: str, request: Any, **_: Any) -> Reply:
            seen.append((url, request))
            return Reply(status, {}, version) if url.endswith("/generate") else Reply(200, {}, 1)

        monkeypatch.setattr(f"{desk}.local.stack.start", start)
        monkeypatch.setattr(f"{desk}.deploy.golden.ask", answered)
        return seen

    return played


def test_the_language_models_demo_is_at_the_recipes_path_too(
    recipe: Played, tmp_path: Path
) -> None:
    seen = recipe(200, 1)
    said = demo(tmp_path)
    assert seen == [
        {GENERATE_ENDPOINT.name: "texts"},
        ("http://s/serve/texts", {"text": "a"}), ("http://s/generate", {"text": "a"}),
    ]  # fmt: skip
    line = 'curl -X POST http://s/generate -H "Content-Type: application/json" -d \'{"text": "a"}\''
    assert line in said.splitlines()


@pytest.mark.parametrize(("status", "told"), [(404, True), (503, False)])
def test_a_stack_that_ran_before_keeps_what_it_was_started_with(
    recipe: Played, tmp_path: Path, status: int, told: bool
) -> None:
    recipe(status, 1)
    said = demo(tmp_path)
    assert "curl -X POST http://s/generate" not in said
    assert ("POST /generate asks no endpoint: the stack ran before" in said) == told


def test_an_endpoint_that_the_user_names_stays_the_one_of_the_path(
    recipe: Played, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe(200, 2)
    assert "/generate" not in demo(tmp_path)
    monkeypatch.setenv(GENERATE_ENDPOINT.name, "mine")
    seen = recipe(404, 1)
    assert "/generate" not in demo(tmp_path)
    assert len(seen) == 2


def test_what_is_no_key_is_refused_before_anything_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stack, "demo_bundles", lambda *_: pytest.fail("it was built"))
    options = ["--demo", "--key", "not a key", "--state", str(tmp_path / "state")]
    done = CliRunner().invoke(up, options)
    assert isinstance(done.exception, Failure)
    assert "has a blank or a sign that no key has" in str(done.exception)
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("demo", [(), ("--demo",)])
def test_a_python_without_a_shared_library_is_refused_before_anything_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, demo: tuple[str, ...]
) -> None:
    monkeypatch.setattr(stack, "demo_bundles", lambda *_: pytest.fail("it was built"))
    monkeypatch.setattr(sysconfig, "get_config_var", lambda name: None)
    monkeypatch.setattr("ctypes.util.find_library", lambda name: None)
    done = CliRunner().invoke(main, ["up", *demo, "--state", str(tmp_path / "state")])
    assert done.exit_code == 2
    assert "Triton's Python stub needs one: install libpython3." in done.output
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("demo", [(), ("--demo",)])
def test_without_a_triton_the_line_that_installs_it_comes_before_anything_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, demo: tuple[str, ...]
) -> None:
    monkeypatch.setattr(stack, "demo_bundles", lambda *_: pytest.fail("it was built"))
    elsewhere = [one for one in sys.path if not Path(one or ".", "pytriton").exists()]
    monkeypatch.setattr(sys, "path", elsewhere)
    done = CliRunner().invoke(main, ["up", *demo, "--state", str(tmp_path / "state")])
    assert done.exit_code == 2
    assert pip_line("--no-deps nvidia-pytriton==") in done.output
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--open-inference", "8080"], "inference"),
        (["--port-base", "9000", "--open-inference", "9002"], "triton metrics"),
    ],
)
def test_a_port_of_the_stacks_own_is_none_to_open_inference_at(
    arguments: list[str], part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bound one after the other each is free; then the two parts take it from each other."""
    monkeypatch.setattr(Supervisor, "start", lambda *_: pytest.fail("it was started"))
    done = CliRunner().invoke(main, ["up", *arguments, "--state", str(tmp_path / "state")])
    assert done.exit_code == 2, done.output
    said = f"port {arguments[-1]} is the stack's own ({part}), so --open-inference cannot have it"
    assert said in " ".join(done.output.split())
    assert not (tmp_path / "state/stack.json").exists()


def test_without_prometheus_its_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    done = subprocess.run(
        [CLI, "up", "--monitoring", "--state", str(tmp_path / "state")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "apt-get install prometheus" in done.stderr
    assert not (tmp_path / "state").exists()


def test_another_demo_is_refused_with_those_there_are() -> None:
    with pytest.raises(click.BadParameter, match="generation"):
        up.make_context("up", ["--demo", "poetry"])


def test_a_taken_port_is_moved_by_its_own_option() -> None:
    """--port-base moves the six in a row, which open inference is none of."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Failure, match=f"{port} for open inference .* --open-inference PORT$"):
            check_ports({"open_inference": port}, lambda: "up")
        with pytest.raises(Failure, match=f"{port} for inference .* all ports: up$"):
            check_ports({"inference": port}, lambda: "up")


def test_a_taken_port_is_told_with_the_whole_line_before_anything_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stack, "demo_bundles", lambda *_: pytest.fail("it was built"))
    state = tmp_path / "state"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        opened = str(free_row(len(fields(Ports))) + 1)
        asked = ["up", "--demo", "--open-inference", opened, "--state", str(state), "--key", "abc"]
        done = CliRunner().invoke(main, [*asked, "--port-base", str(port)])
        assert done.exit_code == 2
        line = done.output.strip().partition("move all ports: transformer-serving ")[2]
        words = shlex.split(line)
        base = int(words[words.index("--port-base") + 1])
        for name, free in asdict(Ports.from_base(base)).items():
            assert free != int(opened)
            check_ports({name: free}, lambda: "up")
    assert words == [
        *("up", "--demo", "texts", "--open-inference", opened, "--key", "KEY"),
        *("--port-base", str(base), "--state", str(state)),
    ]
    assert up.make_context("up", words[1:]).params["demo"] == "texts"


def test_a_wrong_setting_is_told_before_anything_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stack, "demo_bundles", lambda *_: pytest.fail("it was built"))
    monkeypatch.setenv(WORKERS.name, "none")
    done = CliRunner().invoke(main, ["up", "--demo", "--state", str(tmp_path / "state")])
    assert done.exit_code == 2
    assert WORKERS.name in done.output
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("advice", ["again", "add it again"], ids=["at its start", "in a deploy"])
def test_ctrl_c_names_what_goes_on_and_how_it_is_ended(
    advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is said of a stack where nothing of one runs."""
    begun: list[subprocess.Popen[bytes]] = []
    state = tmp_path / "state"

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    def begins(*_: Any, **__: Any) -> None:
        environment = {**os.environ, MARK: str(state)}
        begun.append(subprocess.Popen(["sleep", "600"], env=environment))
        # Until then its environment is this process's own, or none yet.
        wait_until(lambda: psutil.Process(begun[-1].pid).environ().get(MARK) == str(state), 60)
        with within(600, "adding texts", lambda _: None, look="status", advice="again") as limit:
            limit.advice = advice
            raise KeyboardInterrupt

    start = "transformer_serving.desk.local.stack.start"
    monkeypatch.setattr(start, interrupted)
    asked = ["up", "--monitoring", "--state", str(state)]
    done = CliRunner().invoke(main, asked)
    assert (done.exit_code, done.stderr.split()) == (1, ["Aborted!"])

    monkeypatch.setattr(start, begins)
    try:
        done = CliRunner().invoke(main, asked)
    finally:
        begun[0].kill()
        begun[0].wait()
    assert done.exit_code == 1
    assert ("\nerror: adding texts was interrupted" in done.stderr) == (advice != "again")
    assert f"end it: transformer-serving down --state {state}; or start the rest" in done.stderr
    assert f"transformer-serving up --monitoring --state {state}\n" in done.stderr
