"""Calls of clearml-serving from a process that has imported it are as those from new ones, and
nothing of either is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.clearml_tools.stand_in_command import in_its_place, path_with
from tests.control_plane.conftest import ServerProcess
from tests.doctor.conftest import answering
from tests.engine.triton_server import wait_until
from transformer_serving.desk.clearml_tools import warm_command
from transformer_serving.desk.clearml_tools.cli import ClearmlCli
from transformer_serving.desk.failure import Failure

PATIENCE_S = 60
COMMAND = "transformer_serving.desk.clearml_tools.command"
# What is in no two tasks the same.
OWN = {"id", "name", "comment", "created", "last_update", "last_change", "status_changed"}
# A call that starts a program of its own and goes on until it is killed; it tells both.
HANGING = """
import os, subprocess, sys, time
from pathlib import Path
told = Path(os.environ["TOLD"])
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
told.with_suffix(".new").write_text(f"{os.getpid()} {child.pid}")
told.with_suffix(".new").rename(told)
time.sleep(600)
"""
DESK = """
import signal, sys
# What runs the tests in the background may have it ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
from transformer_serving.desk.clearml_tools.cli import ClearmlCli
cli = ClearmlCli({"CLEARML_API_HOST": sys.argv[1]})
cli.prepare()
sys.argv[2:] and cli.run("list")
print("ready", flush=True)
sys.stdin.read()
"""


# Of servers that other files' tests have started, some have ended and nobody has asked for it.
_there_before: set[psutil.Process] = set()


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    """Each test begins without one, and leaves none."""
    warm_command.end_waiting()
    _there_before.update(psutil.Process().children(recursive=True))
    yield
    _there_before.clear()
    warm_command.end_waiting()


@pytest.fixture
def address() -> Iterator[str]:
    with answering(lambda path: (200, b"", {})) as address:
        yield address


@pytest.fixture
def cli(clearml_environment: dict[str, str]) -> ClearmlCli:
    """One with a serving service on a real control plane; its SDK prints sets in one order."""
    clearml_environment["PYTHONHASHSEED"] = "0"
    return ClearmlCli(clearml_environment, ClearmlCli(clearml_environment).create_service("warm"))


def others() -> list[psutil.Process]:
    """Processes that this one's calls have, with their own."""
    mine = set(psutil.Process().children(recursive=True)) - _there_before
    return [one for one in mine if "warm_command" in " ".join(one.cmdline())]


def goes_on(pid: int) -> bool:
    """A zombie does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def gone(pids: list[int]) -> None:
    wait_until(lambda: not any(map(goes_on, pids)), PATIENCE_S, lambda: str(pids))


def told(path: Path) -> list[int]:
    wait_until(path.exists, PATIENCE_S)
    return [int(pid) for pid in path.read_text().split()]


def new_process(environment: dict[str, str], *arguments: str) -> str:
    """What the same command prints in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", COMMAND, *arguments], stdin=subprocess.DEVNULL, check=False,
        env={**os.environ, **environment}, capture_output=True, text=True, timeout=PATIENCE_S,
    )  # fmt: skip
    return done.stdout + done.stderr


def test_calls_print_what_new_processes_do(
    cli: ClearmlCli, clearml_environment: dict[str, str]
) -> None:
    assert cli.serving_id is not None
    service = ("--id", cli.serving_id)
    for arguments in (("list",), ("model", "list"), ("--help",), ("metrics", "list")):
        assert cli.run(*arguments) == new_process(clearml_environment, *service, *arguments)


def test_a_service_is_the_same_task(
    cli: ClearmlCli, clearml_environment: dict[str, str], server: ServerProcess
) -> None:
    """The SDK writes down by what program a task is made."""
    said = new_process(clearml_environment, "create", "--name", "new")
    ids = (cli.serving_id, said.rpartition("id=")[2].strip())

    def stored(identity: str | None) -> dict[str, Any]:
        task = server.call(server.session(), "tasks.get_by_id", task=identity)["task"]
        return {name: value for name, value in task.items() if name not in OWN}

    assert stored(ids[0]) == stored(ids[1])


def test_one_process_with_one_thread_serves_all_calls(cli: ClearmlCli) -> None:
    [process] = others()
    assert process.num_threads() == 1
    cli.run("model", "list")
    assert (others(), process.num_threads()) == ([process], 1)
    assert not process.children()


def test_a_call_that_fails_says_why_and_the_next_one_does_not(cli: ClearmlCli) -> None:
    with pytest.raises(Failure, match="model remove failed: .*not find base endpoint URL: none"):
        cli.run("model", "remove", "--endpoint", "none")
    with pytest.raises(Failure, match="model nothing failed: .*invalid choice: 'nothing'"):
        cli.run("model", "nothing")
    assert "Endpoints:" in cli.run("model", "list")


def test_what_cannot_be_imported_is_told(tmp_path: Path, address: str) -> None:
    in_its_place(tmp_path, "pass")
    (tmp_path / "clearml_serving" / "__main__.py").write_text("import not_there")
    tool = ClearmlCli({"CLEARML_API_HOST": address, "PYTHONPATH": path_with(tmp_path)})
    with pytest.raises(Failure, match="list failed: ModuleNotFoundError: No module named 'not_the"):
        tool.run("list")


def test_each_call_has_its_own_surroundings(
    tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "import os, sys, tempfile\n"
        "print(sys.argv, os.environ.get('ONE'), os.getcwd(), tempfile.gettempdir())\n"
        "print(repr(sys.stdin.read()), os.environ.get('OPENBLAS_NUM_THREADS'), file=sys.stderr)\n"
        "print(sys.modules['__main__'].__spec__.name, len(os.listdir('/proc/self/fd')))"
    )
    in_its_place(tmp_path, code)
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    tool = ClearmlCli({"CLEARML_API_HOST": address, "PYTHONPATH": path_with(tmp_path)})
    said = []
    for one in ("a", "b"):
        (tmp_path / one).mkdir()
        monkeypatch.chdir(tmp_path / one)
        said.append(tool.run("list", variables={"ONE": one, "TMPDIR": str(tmp_path / one)}))
    # The folder that is listed has a number of its own, and the call one by which its end is seen.
    assert said == [
        f"['clearml-serving', 'list'] {one} {tmp_path / one} {tmp_path / one}\n"
        f"{COMMAND} 6\n'' None\n"
        for one in ("a", "b")
    ]


def test_another_environment_has_another_process(
    tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """clearml reads of it while it is imported."""
    in_its_place(tmp_path, "print(os.getppid(), AT_IMPORT)")
    main = tmp_path / "clearml_serving" / "__main__.py"
    main.write_text(f"import os\nAT_IMPORT = os.environ.get('ONE')\n{main.read_text()}")
    tool = ClearmlCli({"CLEARML_API_HOST": address, "PYTHONPATH": path_with(tmp_path)})
    first = tool.run("list")
    assert tool.run("list") == first
    monkeypatch.setenv("ONE", "a")
    assert tool.run("list").endswith(" a\n")
    assert len(others()) == 1


def test_before_there_is_a_service_and_with_one_it_is_the_same_process(
    tmp_path: Path, address: str
) -> None:
    """As on a first start, which creates one between its calls."""
    in_its_place(
        tmp_path, "import os; print(os.getppid(), os.environ.get('CLEARML_SERVING_TASK_ID'))"
    )
    surroundings = {"CLEARML_API_HOST": address, "PYTHONPATH": path_with(tmp_path)}
    without, none = ClearmlCli(surroundings).run("list").split()
    served = ClearmlCli({**surroundings, "CLEARML_SERVING_TASK_ID": "one"}, "one")
    assert (none, served.run("list").split()) == ("None", [without, "one"])
    assert ClearmlCli(surroundings).run("list").split() == [without, "None"]


def test_a_call_that_outlives_its_limit_is_killed_with_what_it_started(
    tmp_path: Path, address: str
) -> None:
    in_its_place(tmp_path, HANGING)
    tool = ClearmlCli({"CLEARML_API_HOST": address, "PYTHONPATH": path_with(tmp_path)})
    variables = {"TOLD": str(tmp_path / "told")}
    with pytest.raises(Failure, match="list did not end within 20 s; look: transformer-serving"):
        tool.run("list", timeout_s=20, variables=variables)
    gone(told(tmp_path / "told"))
    assert others() == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_with_the_desk_its_call_ends(tmp_path: Path, address: str, number: signal.Signals) -> None:
    in_its_place(tmp_path, HANGING)
    with desk(tmp_path, address, "call") as process:
        pids = told(tmp_path / "told")
        pids += [one.pid for one in psutil.Process(process.pid).children()]
        process.send_signal(number)
        process.wait(PATIENCE_S)
    gone(pids)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, None])
def test_with_the_desk_what_waits_ends(
    tmp_path: Path, address: str, number: signal.Signals | None
) -> None:
    """Also while it imports."""
    in_its_place(tmp_path, "pass")
    with desk(tmp_path, address) as process:
        assert process.stdout is not None
        process.stdout.readline()
        pids = [one.pid for one in psutil.Process(process.pid).children()]
        assert pids
        if number is not None:
            process.send_signal(number)
        process.communicate(timeout=PATIENCE_S)
    gone(pids)


def desk(
    folder: Path, address: str, *call: str, before: Callable[[], None] | None = None
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", DESK, address, *call], text=True, preexec_fn=before,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path_with(folder), "TOLD": str(folder / "told")},
    )  # fmt: skip


def test_a_killed_process_is_a_call_that_failed(tmp_path: Path, address: str) -> None:
    in_its_place(tmp_path, HANGING)
    variables = {"TOLD": str(tmp_path / "told")}
    tool = ClearmlCli({"CLEARML_API_HOST": address, "PYTHONPATH": path_with(tmp_path)})
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(tool.run, "list", variables=variables)
        pids = told(tmp_path / "told")
        [warm] = [one for one in others() if one.ppid() == os.getpid()]
        warm.kill()
        with pytest.raises(Failure, match="list failed: no output"):
            asked.result(PATIENCE_S)
    gone(pids)
    (tmp_path / "clearml_serving" / "__main__.py").write_text("def main():\n    print('well')")
    assert tool.run("list") == "well\n"


def test_one_that_was_killed_has_ended_by_the_next_call() -> None:
    command = warm_command.WarmCommand(os.environ)
    command.process.kill()
    assert command.call(["list"], {}, PATIENCE_S) == (-signal.SIGKILL, "")
    assert command.process.returncode == -signal.SIGKILL
    command.end()


def test_a_call_of_whoever_ignores_the_end_of_others_is_told_as_it_was(
    tmp_path: Path, address: str
) -> None:
    in_its_place(tmp_path, "pass")
    with desk(tmp_path, address, "call", before=ignore_ends) as process:
        assert process.communicate(timeout=PATIENCE_S) == ("ready\n", "")


def ignore_ends() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)


def test_two_calls_at_a_time_do_not_wait_for_each_other(tmp_path: Path, address: str) -> None:
    """Each ends only when the other one has begun."""
    code = (
        "import os, time\nfrom pathlib import Path\n"
        "Path(os.environ['MINE']).touch()\n"
        "while not Path(os.environ['OTHERS']).exists():\n    time.sleep(0.05)\n"
        "print(os.environ['MINE'])"
    )
    in_its_place(tmp_path, code)
    tool = ClearmlCli({"CLEARML_API_HOST": address, "PYTHONPATH": path_with(tmp_path)})
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    call: Callable[[str, str], str] = lambda mine, its: tool.run(  # noqa: E731
        "list", variables={"MINE": mine, "OTHERS": its}
    )
    with ThreadPoolExecutor(2) as pool:
        said = list(pool.map(call, (one, two), (two, one)))
    assert said == [f"{one}\n", f"{two}\n"]
    assert len(others()) <= 2
