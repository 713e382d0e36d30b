"""SIGTERM ends each command that changes something as Ctrl-C does, and nothing of it is left."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.deploy.test_time_limit import HANG_S, answering_daemon, slow_after_a_login
from tests.doctor.conftest import CLI
from tests.engine.triton_server import wait_until
from tests.stack.small_bundles import write_small

pytestmark = pytest.mark.slow
PATIENCE_S = 120


@contextmanager
def started(
    folder: Path, *arguments: str, address: str = "http://127.0.0.1:9"
) -> Iterator[subprocess.Popen[str]]:
    """The real command line at a ClearML server of that address; killed if it does not end."""
    with subprocess.Popen(
        [CLI, *arguments], cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env={
            **os.environ, "CLEARML_API_HOST": address, "CLEARML_FILES_HOST": address,
            "CLEARML_WEB_HOST": address, "CLEARML_API_ACCESS_KEY": "k",
            "CLEARML_API_SECRET_KEY": "s", "CLEARML_SERVING_TASK_ID": "0" * 32,
            "CLEARML_DEFAULT_BASE_SERVE_URL": "http://127.0.0.1:9/serve", "HOME": str(folder),
        },
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def ended(process: subprocess.Popen[str], when: Callable[[], object]) -> None:
    wait_until(lambda: when() or process.poll() is not None, PATIENCE_S)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1, said
    assert said.strip().endswith("Aborted!")


def goes_on(process: psutil.Process) -> bool:
    """A zombie does not: whoever has to reap it may never do so."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("command", ["deploy bundle --endpoint x", "rollback x", "remove x"])
def test_clearml_servings_own_command_ends_with_ours(command: str, tmp_path: Path) -> None:
    """The server hangs in its login, where it would wait for minutes."""
    write_small(tmp_path / "bundle")
    begun: list[psutil.Process] = []
    with (
        answering_daemon(slow_after_a_login()) as address,
        started(tmp_path, *command.split(), address=address) as process,
    ):

        def has_begun() -> bool:
            # The process that has imported it, and its call.
            begun[:] = psutil.Process(process.pid).children(recursive=True)
            return len(begun) > 1

        ended(process, has_begun)
        assert begun
        try:
            wait_until(lambda: not any(map(goes_on, begun)), HANG_S / 2)
        finally:
            for one in filter(goes_on, begun):
                one.kill()
    assert list(tmp_path.glob(".upload-*")) == []


def test_a_bundle_that_is_not_done_leaves_nothing(
    tiny_classifier: Path, tiny_bundle: Path, tmp_path: Path
) -> None:
    with started(
        tmp_path, "bundle", "--from", str(tiny_bundle / "model" / "model.onnx"), "--tokenizer",
        str(tiny_classifier), "--task", "text-classification", "--text", "rain", "--output", "own",
    ) as process:  # fmt: skip
        ended(process, lambda: list(tmp_path.glob(".bundle.*")))
    assert list(tmp_path.glob("*own*")) == []
    assert list(tmp_path.glob(".bundle.*")) == []


def test_adopting_ends_in_order(tmp_path: Path) -> None:
    """It logs in, then asks ClearML through the SDK in its own process."""
    asked: list[str] = []

    def reply(path: str) -> tuple[int, bytes, dict[str, str]]:
        asked.append(path)
        return slow(path)

    slow = slow_after_a_login()
    # One of two of the commands that ask more by themselves first.
    slow("auth.login")
    with (
        answering_daemon(reply) as address,
        started(
            tmp_path, "adopt", "x", "--tokenizer", str(tmp_path), "--task", "text-classification",
            "--text", "rain", "--output", "own", address=address,
        ) as process,
    ):  # fmt: skip
        ended(process, lambda: len([path for path in asked if "auth.login" in path]) > 1)
