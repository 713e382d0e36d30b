"""The command line against a running stack."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from tests.engine.triton_server import wait_until
from tests.free_ports import free_port_base
from tests.stack.conftest import CLI, ROOT, Stack
from tests.stack.desk import Desk
from tests.stack.small_bundles import TEXT, write_small
from transformer_serving.desk.local import supervision
from transformer_serving.desk.local.parts import PARTS


def test_status_is_true_of_every_part_and_endpoint(stack: Stack) -> None:
    stack.until(lambda: all(part["health"] == "ok" for part in stack.parts().values()), "all well")
    status = stack.json("status")
    assert [part["name"] for part in status["parts"]] == [
        "control-plane", "triton", "controller", "inference", "watchdog"
    ]  # fmt: skip
    for part in status["parts"]:
        assert part["health"] == "ok"
        assert Path(f"/proc/{part['pid']}").is_dir()
        assert part["version"]
    endpoints = {row["endpoint"]: row for row in status["endpoints"]}
    assert endpoints.keys() >= {"transformer_model", "sentence_embeddings"}
    for row in endpoints.values():
        assert row["ready"], row


def test_a_second_up_changes_nothing(stack: Stack) -> None:
    before = [part["pid"] for part in stack.json("status")["parts"]]
    again = stack.json("up", "--demo")
    assert [row["changed"] for row in again["deployed"]] == [False, False]
    assert [part["pid"] for part in again["parts"]] == before


def test_up_leaves_the_users_own_under_the_demos_names(plain: Stack, tmp_path: Path) -> None:
    """One by `deploy` and one by ClearML's own commands."""
    bundle, desk = write_small(tmp_path / "mine"), Desk(plain, tmp_path)
    desk.upload("stock", "--path", str(desk.model(1.0).parent))
    desk.add("sentence_embeddings", "--name", "stock", "--project", "commands")
    plain.run("deploy", str(bundle.folder), "--endpoint", "transformer_model")
    desk.until_answers("sentence_embeddings", 1.0)
    assert plain.json("up", "--demo")["deployed"] == []
    seen = plain.seen("transformer_model", {"text": TEXT})
    assert seen.version == bundle.manifest.bundle_version
    assert desk.answers("sentence_embeddings", 1.0)
    for name in ("transformer_model", "sentence_embeddings"):
        plain.run("remove", name)


def test_env_points_clearmls_own_tools_at_the_stack(stack: Stack) -> None:
    listed = stack.clearml_serving("model", "list")
    assert "transformer_model" in listed


def test_logs_of_a_part_and_of_no_part(stack: Stack) -> None:
    assert " serves" in stack.run("logs", "inference", "-n", "200")
    assert "there is no part 'kafka'" in stack.run("logs", "kafka", code=2)


def test_status_watch_goes_on_until_it_is_interrupted(stack: Stack) -> None:
    process = subprocess.Popen(
        [CLI, "status", "--watch", "--json", "--state", str(stack.state)],
        stdout=subprocess.PIPE, text=True,
        # What a shell starts in the background ignores Ctrl-C, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    try:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        assert first["running"]
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        assert process.returncode == 0
    finally:
        process.kill()


def test_two_stacks_beside_each_other(stack: Stack, plain: Stack) -> None:
    """Each has its own ports, endpoints, credentials and data."""
    assert stack.post("transformer_model", {"text": "hello"})[0] == 200
    assert plain.post("transformer_model", {"text": "hello"})[0] == 404
    ports = [{part["port"] for part in one.json("status")["parts"]} for one in (stack, plain)]
    assert ports[0] & ports[1] <= {None}
    assert stack.serving_id not in plain.clearml_serving("list")


def test_the_logs_are_rotated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part that never stops talking takes its share of the disk and no more."""
    monkeypatch.setattr(supervision, "LOG_BYTES", 10_000)
    plan = supervision.configuration()
    talk = """-c "while True: print('x' * 99)" """
    plan, replaced = re.subn(r"-m transformer_serving\.\S+ \S+", lambda found: talk, plan)
    assert replaced == len(PARTS)
    monkeypatch.setattr(supervision, "configuration", lambda: plan)
    supervisor = supervision.Supervisor(tmp_path)
    supervisor.start()
    try:
        supervisor.start_part("triton")
        logs = tmp_path / "logs"
        wait_until(lambda: (logs / "triton.log.2").exists(), 30)
        sizes = {}
        for path in logs.glob("triton.log*"):
            with contextlib.suppress(FileNotFoundError):  # it is being renamed just now
                sizes[path.name] = path.stat().st_size
        assert sizes
        assert len(sizes) <= 1 + supervision.LOG_BACKUPS
        assert max(sizes.values()) < 10 * 10_000, sizes
    finally:
        supervisor.stop()


def test_deploy_and_remove_a_second_name(stack: Stack, demo: Path) -> None:
    bundle = str(demo / "transformer_model")
    stack.run("deploy", bundle, "--endpoint", "second")
    assert stack.post("second", {"text": "hello"})[0] == 200
    assert stack.json("remove", "second") == {
        "endpoint": "second",
        "removed": True,
        "forgotten": 0,
    }
    assert "there is no endpoint 'second'" in stack.run("remove", "second", code=2)


def test_a_backup_while_it_serves_is_restored_where_nothing_runs(
    plain: Stack, tmp_path: Path
) -> None:
    file = tmp_path / "b.tar"
    assert f"{file} holds " in plain.run("backup", str(file))
    done = plain.json("backup", str(file))
    assert done["files"] >= 2
    assert done["bytes"] == file.stat().st_size
    pids = [part["pid"] for part in plain.json("status")["parts"]]
    said = plain.run("restore", str(file), code=2)
    named = re.escape(shlex.quote(str(plain.state)))
    assert re.search(f"; stop it first: .*transformer-serving down --state {named}$", said)
    assert [part["pid"] for part in plain.json("status")["parts"]] == pids
    other = Stack(tmp_path / "other", plain.base)
    assert f"{file} is restored; what was there is kept in" in other.run("restore", str(file))
    kept = other.json("restore", str(file))["kept"]
    assert file_names(Path(kept)) == file_names(other.state / "control-plane")
    none = str(tmp_path / "none")
    assert f"there is no {none}" in other.run("restore", none, code=2)


def file_names(folder: Path) -> set[Path]:
    """Of all that are stored."""
    stored = folder / "files"
    return {path.relative_to(stored) for path in stored.rglob("*") if path.is_file()}


def test_refusals_say_what_and_how_to_fix_it(stack: Stack, demo: Path, tmp_path: Path) -> None:
    def deploy(bundle: Path, endpoint: str = "x") -> str:
        return stack.run("deploy", str(bundle), "--endpoint", endpoint, code=2)

    assert "is no bundle" in deploy(tmp_path)
    altered = tmp_path / "altered"
    shutil.copytree(demo / "transformer_model", altered)
    (altered / "tokenizer.json").write_text("{}")
    assert "'tokenizer.json' is not the one of the manifest" in deploy(altered)
    manifest = altered / "model" / "manifest.json"
    values = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**values, "engine": "abacus"}))
    assert "must be one of openvino, onnxruntime, tensorrt" in deploy(altered)
    assert "an endpoint's name takes" in deploy(demo / "transformer_model", "a b")
    for refusal in (deploy(altered), deploy(tmp_path)):
        assert len(refusal.strip().splitlines()) == 1


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    base = free_port_base()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", base + 2))
        taken.listen()
        done = subprocess.run(
            [CLI, "up", "--state", str(tmp_path), "--port-base", str(base)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 2
    assert f"port {base + 2} for triton metrics cannot be used" in done.stderr
    assert "--port-base" in done.stderr


@pytest.mark.parametrize("command", ["status", "env", "logs", "remove x"])
def test_without_a_stack_the_fix_is_named(command: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [CLI, *command.split(), "--state", str(tmp_path)],
        capture_output=True, text=True, check=False, cwd=ROOT, env=os.environ,
    )  # fmt: skip
    assert done.returncode == 2
    assert f"transformer-serving up --state {tmp_path}'" in done.stderr
