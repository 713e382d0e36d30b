"""deploy ends within its --timeout, whatever it waits for, and says what that was."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.doctor.conftest import CLI, answering
from tests.stack.small_bundles import write_small
from transformer_serving.desk.deploy.target import service_lock
from transformer_serving.desk.deploy.time_limit import within
from transformer_serving.desk.deploy.upload import upload
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.user_cache import user_cache

# More than a busy machine needs to start Python, and less than a server that is silent gets
# (ClearmlApi.wait): the end of the command's time is to come first, however soon it started.
LIMIT_S = 8
HANG_S = 60
# Its server's address, and what the command said.
Said = tuple[str, str]
Ended = dict[Callable[[Path], Said], Future[Said]]


def slow_after_a_login() -> Callable[[str], tuple[int, bytes, dict[str, str]]]:
    """A ClearML server that stops answering at the third login: the first ones are the command's,
    which looks for a rollout and at the service's version, and the next one ClearML's own.
    """
    logins = itertools.count()

    def reply(path: str) -> tuple[int, bytes, dict[str, str]]:
        if "auth.login" in path and next(logins) > 1:
            time.sleep(HANG_S)
        task = {"runtime": {"version": version("clearml-serving")}}
        body = {"data": {"token": "x", "task": task}, "meta": {}}
        return 200, json.dumps(body).encode(), {}

    return reply


def deploy(tmp_path: Path, address: str) -> str:
    """What the command says that ran out of its time; its seconds go to stderr."""
    write_small(tmp_path / "bundle")
    begun = time.monotonic()
    done = subprocess.run(
        [CLI, "deploy", "bundle", "--endpoint", "x", "--timeout", str(LIMIT_S)],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=HANG_S,
        env={
            **os.environ, "CLEARML_API_HOST": address, "CLEARML_FILES_HOST": address,
            "CLEARML_WEB_HOST": address, "CLEARML_API_ACCESS_KEY": "k",
            "CLEARML_API_SECRET_KEY": "s", "CLEARML_SERVING_TASK_ID": "0" * 32,
            "CLEARML_DEFAULT_BASE_SERVE_URL": "http://127.0.0.1:9/serve", "HOME": str(tmp_path),
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
        },
    )  # fmt: skip
    sys.stderr.write(f"ended after {time.monotonic() - begun:.1f} s of {LIMIT_S}\n")
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stderr


@contextmanager
def silent() -> Iterator[str]:
    """Takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def of_silence(folder: Path) -> Said:
    with silent() as address:
        return address, deploy(folder, address)


def of_an_upload(folder: Path) -> Said:
    with answering_daemon(slow_after_a_login()) as address:
        return address, deploy(folder, address)


def of_another_deploy(folder: Path) -> Said:
    cache = folder / "cache" / user_cache().name
    lock = cache / service_lock("0" * 32).relative_to(user_cache())
    lock.parent.mkdir(parents=True)
    with lock.open("w") as file, silent() as address:
        fcntl.flock(file, fcntl.LOCK_EX)
        return address, deploy(folder, address)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """Each waits for as long as it may: all of them at once."""
    asked = (of_silence, of_an_upload, of_another_deploy)
    with ThreadPoolExecutor(len(asked)) as pool:
        return {one: pool.submit(one, tmp_path_factory.mktemp("deploy")) for one in asked}


@pytest.mark.slow
def test_a_server_that_says_nothing(ended: Ended) -> None:
    address, said = ended[of_silence].result()
    # The deploy's time and that for one answer are equal here: either may end first.
    doing = "asking whether x is in a rollout"
    whole = f"deploying x did not end within {LIMIT_S} s; it was {doing}; look:" in said
    assert whole or f"the ClearML server at {address} did not answer within {LIMIT_S} s" in said


@pytest.mark.slow
def test_a_server_that_hangs_in_the_middle_of_an_upload(ended: Ended) -> None:
    """The ping is answered; ClearML's own command line, which retries without end, is killed."""
    address, said = ended[of_an_upload].result()
    assert "it was uploading x" in said
    # By the address of their server: others' tests run such commands, too.
    assert not [row for row in processes("cmdline", "environ") if address in row]


@contextmanager
def answering_daemon(reply: Callable[[str], tuple[int, bytes, dict[str, str]]]) -> Iterator[str]:
    """answering, whose threads may still be asleep at its end."""
    import http.server

    before = http.server.ThreadingHTTPServer.block_on_close
    http.server.ThreadingHTTPServer.block_on_close = False
    try:
        with answering(reply) as address:
            yield address
    finally:
        http.server.ThreadingHTTPServer.block_on_close = before


def processes(*told: str) -> list[str]:
    """What /proc says of each process but this one, in these of its files."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if folder.name != str(os.getpid()):
                found.append("".join((folder / one).read_text("utf-8", "replace") for one in told))
    return found


@pytest.mark.slow
def test_another_deploy_that_never_ends(ended: Ended) -> None:
    _, said = ended[of_another_deploy].result()
    assert "it was waiting for another deploy of this machine to end" in said


def test_the_alarm_is_off_afterwards_and_nothing_takes_it_for_its_own() -> None:
    def stubborn() -> None:
        try:
            time.sleep(20)
        except Exception:
            pytest.fail("the alarm must pass through here")

    with (
        pytest.raises(Failure, match="x did not end within 0 s; it was starting"),
        within(0.1, "x", lambda _: None, look="here"),
    ):
        stubborn()
    with within(0.1, "x", lambda _: None, look="here"):
        pass
    time.sleep(1.5)


def test_the_alarm_names_the_way_on_of_a_command_that_has_changed_something() -> None:
    def change() -> None:
        with within(60, "x", lambda _: None, look="here") as limit:
            limit.advice = "serve the other one"
            signal.raise_signal(signal.SIGALRM)

    with pytest.raises(Failure, match="look: here; serve the other one$"):
        change()


def test_an_upload_has_all_of_a_commands_time(tmp_path: Path) -> None:
    given: list[float] = []

    class Cli:
        def upload_model(self, *_: object, timeout_s: float) -> str:
            given.append(timeout_s)
            return "m"

    registry = SimpleNamespace(has_address=lambda model_id: True)
    target: Any = SimpleNamespace(cli=Cli(), files_host="http://f", registry=lambda: registry)
    bundle = write_small(tmp_path / "bundle")
    with within(5_000, "x", lambda _: None, look="here") as limit:
        assert upload(target, bundle, "x", limit) == "m"
    assert given[0] > 4_000


def test_in_another_thread_the_time_that_is_left_is_known() -> None:
    seen: list[float] = []

    def work() -> None:
        with within(30, "x", lambda _: None, look="here") as limit:
            seen.append(limit.left())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert 0 < seen[0] <= 30
