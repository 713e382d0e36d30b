"""What the control plane is sent, and what its disk does to it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import requests

from tests.attack.bundles import command
from tests.attack.ground import Ground
from tests.attack.seen import Seen, counted
from tests.free_ports import free_port_base
from tests.gateway.heavy_bodies import MIB, Statuses, post
from tests.local.test_backup import damage
from tests.small_disk import fill
from tests.stack.small_bundles import Parts
from transformer_serving.contract.open_files import most_files

_PART = "control-plane"
_BODY_MB = 63
_HALF_HEADS = 1_100
# More than the watchdog waits before it ends a part that does not answer.
_PATIENCE_S = 120


class Caller:
    """A session of the control plane's API with the stack's keys."""

    def __init__(self, ground: Ground) -> None:
        record = ground.record
        self.port = record.ports.control_plane
        self.url = f"http://127.0.0.1:{self.port}"
        self.keys = (record.access_key, record.secret_key)
        self.session = requests.Session()
        token = self.get("/auth.login", auth=self.keys).json()["data"]["token"]
        self.session.headers["Authorization"] = f"Bearer {token}"

    def get(self, path: str, **options: Any) -> requests.Response:
        return self.session.get(self.url + path, timeout=_PATIENCE_S, **options)

    def call(self, method: str, **fields: Any) -> requests.Response:
        return self.get(f"/v2.23/{method}", json=fields)


@contextlib.contextmanager
def peak(process: psutil.Process) -> Iterator[list[float]]:
    """The process's memory, MiB, again and again while the block runs."""
    ended, seen = threading.Event(), [process.memory_info().rss / MIB]

    def look() -> None:
        while not ended.wait(0.02):
            seen.append(process.memory_info().rss / MIB)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield seen
    finally:
        ended.set()
        looking.join()


def no_credentials(ground: Ground) -> Seen:
    """Large bodies at once to a call and to an upload: nothing of them is held."""
    port, process = ground.record.ports.control_plane, ground.process(_PART)
    body = b"a" * (_BODY_MB * 1_000_000)
    head = b"POST /%s HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
    paths = (b"v2.23/tasks.get_all", b"a/file") * (3 if ground.short else 10)

    async def all_at_once() -> Statuses:
        every = (post(port, body, head=head % path) for path in paths)
        return Counter(await asyncio.gather(*every))

    with peak(process) as memory:
        statuses = asyncio.run(all_at_once())
    holds = set(statuses) <= {401, "reset", "closed"} and max(memory) < 1.2 * memory[0] + _BODY_MB
    told = f"{counted(statuses)}; {memory[0]:.0f} to {max(memory):.0f} MiB"
    return Seen(told, holds and process.is_running())


def half_heads(ground: Ground) -> Seen:
    """More connections than a shell lets a process have, none of which ever asks."""
    most_files()
    caller, process = Caller(ground), ground.process(_PART)
    with contextlib.ExitStack() as held:
        for _ in range(_HALF_HEADS):
            wire = socket.create_connection(("127.0.0.1", caller.port), _PATIENCE_S)
            held.enter_context(wire).sendall(b"GET / HT")
        statuses = Counter(
            [requests.get(caller.url + "/health", timeout=_PATIENCE_S).status_code]
            + [caller.call("tasks.get_all").status_code for _ in range(10)]
        )
    return Seen(
        f"{_HALF_HEADS} half heads; beside them {counted(statuses)}",
        set(statuses) == {200} and process.is_running(),
    )


def backtracking(ground: Ground) -> Seen:
    """A filter that would search for hours, and other calls meanwhile."""
    caller, process = Caller(ground), ground.process(_PART)
    name = "a" * 60 + "!"
    task = caller.call("tasks.create", name=name, type="training").json()["data"]["id"]
    others = Counter[int]()
    begun = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        searching = pool.submit(caller.call, "tasks.get_all", name="(a|aa)+$")
        while not searching.done():
            others[requests.get(f"{caller.url}/health", timeout=_PATIENCE_S).status_code] += 1
        status = searching.result().status_code
    took = time.monotonic() - begun
    caller.call("tasks.delete", task=task, force=True)
    holds = status == 400 and set(others) == {200} and process.is_running()
    return Seen(
        f"{status}; {sum(others.values())} other calls answered meanwhile",
        holds,
        f"it ends after {took:.1f} s",
    )


def thousands_of_digits(ground: Ground) -> Seen:
    caller, digits = Caller(ground), "9" * 5_000
    stored = requests.post(
        f"{caller.url}/digits", files={"digits": ("digits", b"content")}, timeout=_PATIENCE_S,
        headers={"Authorization": str(caller.session.headers["Authorization"])},
    )  # fmt: skip
    path = f"/{stored.json()[0]}"
    asked = [
        caller.get(f"/auth.login?expiration_sec={digits}", auth=caller.keys),
        caller.get(path, headers={"Range": f"bytes={digits}-"}),
        caller.get(path, headers={"Range": f"bytes=-{digits}"}),
    ]
    caller.session.delete(caller.url + path, timeout=_PATIENCE_S)
    statuses = Counter[int | str](answer.status_code for answer in asked)
    return Seen(counted(statuses), set(statuses) == {400})


def damaged_pages(ground: Ground) -> Seen:
    """Pages of the database's copy are zeros: who says so."""
    state, kept = ground.folder / "copied", ground.folder / "kept.tar"
    ground.stack.run("backup", str(kept))
    command("restore", str(kept), "--state", str(state))
    damage(state)
    told = {
        "up": ("up", "--port-base", str(free_port_base())),
        "status": ("status",),
        "doctor": ("doctor",),
    }
    silent = [name for name, words in told.items() if not _says(state, *words)]
    command("down", "--state", str(state))
    names = ", ".join(name for name in told if name not in silent)
    said = f"{names} say what is lost" if names else "nobody says it"
    rows = ground.process("triton").net_connections("unix")
    sockets = [str(row.laddr) for row in rows if row.laddr]
    left = all(map(os.path.exists, sockets))
    told_of = "goes on" if left else "lost its sockets"
    return Seen(f"{said}; the stack itself {told_of}", not silent and left)


def _says(state: Path, *words: str) -> bool:
    from tests.stack.conftest import CLI, ROOT

    # Without the COLUMNS that readline, which pytest loads, puts where children inherit it.
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    done = subprocess.run(
        [CLI, *words, "--state", str(state)], cwd=ROOT, capture_output=True, text=True,
        check=False, timeout=_PATIENCE_S * 4, env=environment,
    )  # fmt: skip
    said = " ".join((done.stdout + done.stderr).split())
    return done.returncode != 0 and "is damaged" in said and "lost" in said


def full_disk(ground: Ground) -> Seen:
    """No room where uploads arrive; only root can mount such a place."""
    place = ground.stack.state / "control-plane" / "incoming"
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)],
        capture_output=True, check=False,
    )  # fmt: skip
    if mounted.returncode:
        return Seen("not tried: it needs the right to mount a small disk", None)
    try:
        fill(place)
        folder = ground.bundle("full", Parts(scale=7.0))
        code, said = command("deploy", str(folder), "--endpoint", "full", "--state",
                             str(ground.stack.state), "--timeout", "300")  # fmt: skip
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=False)
    named = "disk" in said or "No space" in said
    told = "the disk is named" if named else json.dumps(said[-200:])
    return Seen(f"exit code {code}, {told}; the endpoint goes on",
                code == 1 and named and ground.well())  # fmt: skip
