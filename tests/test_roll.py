"""compose/roll.sh beside a docker that keeps its containers in a file.

tests/compose/test_stack.py rolls real ones.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.engine.triton_server import wait_until

ROOT = Path(__file__).parent.parent
OLD, NEW = "old image", "new image"
BESIDE = {"state": "running", "image": OLD, "health": "healthy"}
# As compose does it: `up SERVICE` scales no service but that and what it depends on, starts what
# has ended, takes away what is beyond a number, 1 in the file, and makes what is then missing.
DOCKER = f"""#!{sys.executable}
import json, signal, sys, time
from pathlib import Path

signal.signal(signal.SIGINT, signal.SIG_DFL)
file = Path(__file__).with_name("containers.json")
rows = json.loads(file.read_text())
for row in rows:
    if row.get("ends", float("inf")) < time.time():
        row["state"] = "exited"
words = sys.argv[1:]
at = [number for number, row in enumerate(rows) if row["id"] == words[-1]]
shown = [row["id"] for row in rows if row["service"] == words[-1]
         and (row["state"] == "running" or "--all" in words)]
if words[:2] == ["stop", words[-1]]:
    drain = float(Path(__file__).with_name("drain").read_text())
    rows[at[0]] |= dict(state="exited") if drain == 0 else dict(ends=time.time() + drain)
    file.write_text(json.dumps(rows))
    Path(__file__).with_name("stopping").touch()
    # Who asks may leave: it goes on.
    time.sleep(drain)
    sys.exit()
elif words[0] == "wait":
    time.sleep(max(0, rows[at[0]].get("ends", 0) - time.time()) + 0.1)
elif words[:2] == ["rm", "--volumes"]:
    assert rows.pop(at[0])["state"] == "exited"
elif words[0] == "inspect" and ".Image" in words[2]:
    print(rows[at[0]]["image"], "the hash")
elif words[0] == "inspect" and "RestartCount" in words[2]:
    print(3 if rows[at[0]]["health"] == "ends at once" else 0)
elif words[0] == "inspect":
    Path(__file__).with_name("looked").touch()
    print(rows[at[0]]["state"], rows[at[0]]["health"])
elif "config" in words:
    assert words[-1] == "inference"
    print("name: kit\\nservices:\\n  inference:\\n    image: kit\\n  triton:\\n    scale: 1")
    print("networks:\\n  default:\\nx-clearml:\\n  balancer:")
elif "ps" in words:
    print(*shown, sep="\\n")
elif "rm" in words:
    assert "--force" in words and "--stop" not in words
    rows = [row for row in rows if row["service"] != words[-1] or row["state"] == "running"]
elif "up" in words:
    scales = [words[n + 1].split("=") for n, word in enumerate(words) if word == "--scale"]
    numbers = dict(inference="1", triton="1") | dict(scales)
    if len(numbers) > 2:
        sys.exit(f"no such service: {{list(numbers)[2]}}: disabled")
    for service, number in numbers.items():
        there = [row for row in rows if row["service"] == service]
        for row in there[int(number):]:
            rows.remove(row)
        for row in there:
            if row["state"] == "exited":
                row["state"] = "running"
                row.pop("ends", None)
        health = Path(__file__).with_name("health").read_text()
        for _ in range(int(number) - len(there)):
            made = 1 + max(int(row["id"][1:]) for row in there)
            image = Path(__file__).with_name("image").read_text()
            rows.append(dict(id=f"c{{made}}", service=service, state="running", image=image,
                             health=health))
file.write_text(json.dumps(rows))
if "up" in words:
    # It says that it is done when the new one runs for a while.
    Path(__file__).with_name("up").touch()
    time.sleep(float(Path(__file__).with_name("slow").read_text()))
"""


class Rolled(NamedTuple):
    """What it says and leaves."""

    code: int
    said: str
    images: dict[str, str]
    tritons: list[str]


Roll = Callable[..., Rolled]


@pytest.fixture
def roll(tmp_path: Path) -> Roll:
    docker, containers = tmp_path / "docker", tmp_path / "containers.json"
    docker.write_text(DOCKER)
    docker.chmod(0o755)

    def roll(
        *states: str, health: str = "healthy", image: str = NEW, seconds: str = "0",
        drain: float = 0, slow: float = 0, tritons: Sequence[str] = ("running",),
        meanwhile: Callable[[subprocess.Popen[str]], None] = lambda _: None,
    ) -> Rolled:  # fmt: skip
        """Of containers in these states (rolled: it runs and has the new image already); of those
        that were left where none is given."""
        if states:
            rows = [
                BESIDE
                | {"id": f"c{number}", "service": "inference"}
                | ({"image": NEW} if state == "rolled" else {"state": state})
                for number, state in enumerate(states, 1)
            ]
            rows += [
                BESIDE | {"id": f"t{number}", "service": "triton", "state": state}
                for number, state in enumerate(tritons, 1)
            ]
            containers.write_text(json.dumps(rows))
        (tmp_path / "slow").write_text(str(slow))
        (tmp_path / "health").write_text(health)
        (tmp_path / "image").write_text(image)
        (tmp_path / "drain").write_text(str(drain))
        path = f"{tmp_path}:{os.environ['PATH']}"
        with subprocess.Popen(
            [ROOT / "compose" / "roll.sh", "inference", "-f", "compose.yaml"], text=True,
            env={"PATH": path, "ROLL_SECONDS": seconds}, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, start_new_session=True,
        ) as rolls:  # fmt: skip
            try:
                meanwhile(rolls)
                said, _ = rolls.communicate(timeout=60)
            finally:
                rolls.kill()
        runs = [row for row in json.loads(containers.read_text()) if row["state"] == "running"]
        left = {row["id"]: row["image"] for row in runs if row["service"] == "inference"}
        others = [row["id"] for row in runs if row["service"] == "triton"]
        return Rolled(rolls.returncode, said, left, others)

    return roll


def ctrl_c_at(file: Path) -> Callable[[subprocess.Popen[str]], None]:
    """Once the docker beside it has made this file."""

    def end(rolls: subprocess.Popen[str]) -> None:
        wait_until(file.exists, 20)
        os.killpg(rolls.pid, signal.SIGINT)

    return end


def test_every_container_is_replaced(roll: Roll) -> None:
    rolled = roll("running", "running")
    assert rolled.code == 0, rolled.said
    assert rolled.said == "inference: 1 of 2 replaced\ninference: 2 of 2 replaced\n"
    assert list(rolled.images.values()) == [NEW, NEW]


def test_tritons_stay_as_many_as_they_are(roll: Roll) -> None:
    """Not the one of the file; of one that was stopped by hand the other is not taken away."""
    assert roll("running", tritons=["running", "running"]).tritons == ["t1", "t2"]
    assert "t2" in roll("running", tritons=["exited", "running"]).tritons


def test_who_rolls_what_runs_already_is_told_so(roll: Roll) -> None:
    """As after `git checkout` without a build: the tag is still that of the old image."""
    rolled = roll("running", "running", image=OLD)
    assert rolled.code == 0, rolled.said
    assert rolled.said.count("note: the new containers of inference have the image and the") == 1
    assert list(rolled.images) == ["c3", "c4"]


def test_who_goes_on_with_a_roll_that_was_broken_off_is_told_nothing(roll: Roll) -> None:
    for states in (("rolled", "running"), ("running", "rolled")):
        rolled = roll(*states)
        assert rolled.said == "inference: 1 of 2 replaced\ninference: 2 of 2 replaced\n"
        assert list(rolled.images.values()) == [NEW, NEW]


def test_one_that_has_ended_is_not_taken_for_the_new_one(roll: Roll) -> None:
    """As Ctrl-C leaves it in the middle of a stop, or `docker stop` by hand."""
    rolled = roll("exited", "running", "running")
    assert rolled.code == 0, rolled.said
    assert rolled.said.endswith("inference: 2 of 2 replaced\n")
    assert list(rolled.images.values()) == [NEW, NEW]


def test_a_roll_that_failed_leaves_the_number_as_it_was(roll: Roll) -> None:
    failed = roll("running", "running", health="unhealthy")
    assert failed.code == 1
    assert "c3 is not healthy after 0 s: running unhealthy, restarted 0 times; the" in failed.said
    assert failed.images == {"c1": OLD, "c2": OLD}
    rolled = roll()
    assert rolled.code == 0, rolled.said
    assert rolled.said.endswith("inference: 2 of 2 replaced\n")
    assert list(rolled.images.values()) == [NEW, NEW]


def test_a_roll_that_is_told_to_end_leaves_the_number_as_it_was(roll: Roll, tmp_path: Path) -> None:
    """As by Ctrl-C while the new container loads: the next roll would count it as an old one."""

    def end(rolls: subprocess.Popen[str]) -> None:
        wait_until((tmp_path / "looked").exists, 20)
        rolls.terminate()

    ended = roll("running", "running", health="starting", seconds="300", meanwhile=end)
    assert (ended.code, ended.images) == (1, {"c1": OLD, "c2": OLD})
    assert ended.said == "error: told to end; the old containers serve on, c3 is stopped\n"
    assert list(roll().images.values()) == [NEW, NEW]


def test_a_new_one_that_runs_before_its_up_is_done_is_stopped_too(
    roll: Roll, tmp_path: Path
) -> None:
    ended = roll("running", "running", slow=30, meanwhile=ctrl_c_at(tmp_path / "up"))
    assert (ended.code, ended.images) == (1, {"c1": OLD, "c2": OLD})
    assert ended.said == "error: told to end; the old containers serve on, c3 is stopped\n"


def test_one_that_refuses_its_settings_is_not_waited_for(roll: Roll) -> None:
    """As a gateway does, within a second; Docker starts it again and again."""
    failed = roll("running", "running", health="ends at once", seconds="300")
    assert failed.code == 1
    assert "c3 is not healthy after 0 s: running ends at once, restarted 3 times;" in failed.said
    assert failed.images == {"c1": OLD, "c2": OLD}


def test_an_old_one_that_is_ending_has_ended_when_a_roll_is_broken_off(
    roll: Roll, tmp_path: Path
) -> None:
    """By Ctrl-C, which `docker stop` gets as well: the next roll would count one too many."""

    ended = roll("running", "running", drain=1, meanwhile=ctrl_c_at(tmp_path / "stopping"))
    assert (ended.code, ended.images) == (1, {"c2": OLD, "c3": NEW})
    assert ended.said == (
        "error: told to end; c3 serves, and the end of c1 in its place is waited for\n"
    )
    rolled = roll()
    assert rolled.said.endswith("inference: 2 of 2 replaced\n")
    assert list(rolled.images.values()) == [NEW, NEW]


def test_one_that_ends_meanwhile_is_not_started_again(roll: Roll, tmp_path: Path) -> None:
    """As of a roll that was killed: its old one drains still when the next roll begins."""

    def end_of_the_second(_: subprocess.Popen[str]) -> None:
        wait_until((tmp_path / "stopping").exists, 20)
        rows = json.loads((tmp_path / "containers.json").read_text())
        rows[1]["state"] = "exited"
        (tmp_path / "containers.json").write_text(json.dumps(rows))

    rolled = roll("running", "running", "running", drain=1, meanwhile=end_of_the_second)
    assert rolled.code == 0, rolled.said
    assert "inference: 2 of 3 has ended by itself\n" in rolled.said
    assert list(rolled.images.values()) == [NEW, NEW]


@pytest.mark.parametrize("seconds", ["5m", "-1", "1.5"])
def test_a_limit_that_is_no_number_is_named_at_once(roll: Roll, seconds: str) -> None:
    refused = roll("running", seconds=seconds)
    assert (refused.code, refused.images) == (2, {"c1": OLD})
    assert f"ROLL_SECONDS must be a number of seconds, not '{seconds}'" in refused.said
