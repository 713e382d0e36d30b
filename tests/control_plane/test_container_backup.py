"""The control plane of a container, by its own commands on its two volumes: backup and restore."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import requests

from tests.free_ports import free_port
from transformer_serving.control_plane.integrity import DATABASE, IN_CONTAINER, note_of
from transformer_serving.desk.clearml_tools.api import ClearmlApi
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.local import container_backup
from transformer_serving.desk.local.backup import restore as restore_a_stack
from transformer_serving.desk.local.container_backup import Volumes
from transformer_serving.desk.local.record import load_record

SCRIPT = """
import sys
from pathlib import Path
from transformer_serving.desk.local import container
root = Path(sys.argv.pop(1))
container.DATA, container.SHARED = root / "var/lib/control-plane", root / "run/local"
container.PORT = int(sys.argv.pop(1))
container.main(prog_name="container")
"""


@dataclass
class Container:
    """Its volumes below a folder, and processes as compose and the chart start them."""

    root: Path
    port: int = field(default_factory=free_port)
    serving: subprocess.Popen[bytes] | None = None

    @property
    def data(self) -> Path:
        return self.root / "var/lib/control-plane"

    @property
    def shared(self) -> Path:
        return self.root / "run/local"

    def command(self, before: str = "") -> list[str]:
        return [sys.executable, "-c", f"{before}{SCRIPT}", str(self.root), str(self.port)]

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | {IN_CONTAINER: "http://127.0.0.1:8008", "PYTHONPATH": os.getcwd()}

    def run(
        self, name: str, given: bytes = b"", before: str = ""
    ) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [*self.command(before), name], input=given, env=self.environment,
            capture_output=True, timeout=300, check=False,
        )  # fmt: skip

    def start(self) -> ClearmlApi:
        self.serving = subprocess.Popen(
            [*self.command(), "serve"], env=self.environment, stderr=subprocess.DEVNULL
        )
        host = f"http://127.0.0.1:{self.port}"
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            try:
                requests.get(f"{host}/health", timeout=5)
                break
            except requests.RequestException:
                time.sleep(0.1)
        return ClearmlApi(
            {
                "CLEARML_API_HOST": host,
                "CLEARML_API_ACCESS_KEY": (self.shared / "access-key").read_text().strip(),
                "CLEARML_API_SECRET_KEY": (self.shared / "secret-key").read_text().strip(),
            }
        )

    def stop(self) -> None:
        if self.serving is not None:
            self.serving.send_signal(signal.SIGTERM)
            self.serving.wait(30)
            self.serving = None


@pytest.fixture
def container(tmp_path: Path) -> Iterator[Container]:
    made = Container(tmp_path / "volumes")
    made.data.mkdir(parents=True)
    made.shared.mkdir(parents=True)
    yield made
    made.stop()


def names(api: ClearmlApi) -> list[str]:
    rows = api.call("tasks.get_all", order_by=["name"], only_fields=["name"])["tasks"]
    return [str(row["name"]) for row in rows]


def test_what_was_backed_up_while_it_served_is_served_again_from_new_volumes(
    container: Container, tmp_path: Path
) -> None:
    """And from those that have gone on since, whose keys stay."""
    api = container.start()
    api.call("tasks.create", name="first", type="training")
    file = "http://127.0.0.1:{}/models/m.bin"
    requests.post(file.format(container.port), files={"m.bin": b"weights"}, timeout=60)
    stored = [path for path in (container.data / "files").rglob("*") if path.is_file()]
    (container.shared / "serving-id").write_text("the-service\n")
    done = container.run("backup")
    assert (done.returncode, done.stderr) == (0, b"%d files, and the keys\n" % (2 + len(stored)))
    whole = done.stdout
    api.call("tasks.create", name="second", type="training")
    refused = container.run("restore", whole)
    assert refused.returncode == 2
    assert b"--profile local stop control-plane" in refused.stderr
    container.stop()
    keys = [(container.shared / name).read_text() for name in ("access-key", "secret-key")]

    done = container.run("restore", whole)
    assert done.returncode == 0, done.stderr
    (kept,) = container.data.glob("before-*")
    assert str(kept).encode() in done.stdout
    assert (kept / DATABASE).exists()
    assert names(container.start()) == ["first"]
    container.stop()

    for volume in (container.data, container.shared):
        shutil.rmtree(volume)
        volume.mkdir()
    done = container.run("restore", whole)
    assert done.returncode == 0, done.stderr
    assert names(container.start()) == ["first"]
    assert keys == [(container.shared / name).read_text() for name in ("access-key", "secret-key")]
    assert (container.shared / "serving-id").read_text() == "the-service\n"
    assert [path.read_bytes() for path in stored] == [b"weights"] * len(stored)
    # The file is that of an embedded stack, too.
    (tmp_path / "b.tar").write_bytes(whole)
    restore_a_stack(tmp_path / "stack", tmp_path / "b.tar")
    record = load_record(tmp_path / "stack")
    assert record is not None
    assert (record.serving_id, record.access_key + "\n") == ("the-service", keys[0])


def test_what_is_no_whole_backup_changes_nothing(container: Container) -> None:
    container.start().call("tasks.create", name="first", type="training")
    whole = container.run("backup").stdout
    container.stop()
    before = sorted(path.name for path in container.data.iterdir())
    for given in (b"", b"no tar at all", whole[: len(whole) // 2]):
        done = container.run("restore", given)
        assert done.returncode == 1
        assert done.stderr.startswith(b"error: what was read is not a whole backup")
        assert sorted(path.name for path in container.data.iterdir()) == before
    assert names(container.start()) == ["first"]


@pytest.fixture
def stopped(container: Container) -> tuple[Volumes, Path]:
    """Volumes that nobody serves, and a backup of them."""
    container.start().call("tasks.create", name="first", type="training")
    file = container.root / "b.tar"
    file.write_bytes(container.run("backup").stdout)
    container.stop()
    return Volumes(container.data, container.shared, {}), file


def test_without_room_for_a_name_it_is_as_it_was(
    container: Container, stopped: tuple[Volumes, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    volumes, file = stopped
    rename = Path.rename
    renamed: list[Path] = []

    def fail_late(path: Path, target: Path) -> Path:
        renamed.append(path)
        if len(renamed) == 3:
            raise OSError(5, "Input/output error")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fail_late)
    with (
        pytest.raises(Failure, match="Input/output error; nothing was restored"),
        file.open("rb") as stream,
    ):
        container_backup.restore(volumes, stream)
    monkeypatch.undo()
    assert not [path for path in volumes.data.iterdir() if path.name.startswith(("before-", "re"))]
    assert names(container.start()) == ["first"]


def test_one_that_was_killed_half_way_is_not_served_and_ended_by_another(
    container: Container, stopped: tuple[Volumes, Path]
) -> None:
    """The database was moved away: without the note an empty one would be begun."""
    volumes, file = stopped
    killed = (
        "import os\nfrom transformer_serving.desk.local import container_backup\n"
        "container_backup._take_place = lambda *_: os._exit(9)"
    )
    assert container.run("restore", file.read_bytes(), before=killed).returncode == 9
    (volumes.data / DATABASE).unlink()
    done = container.run("serve")
    assert done.returncode != 0
    assert b"a restore was ended half way" in done.stderr
    assert b"run --rm -T --no-deps control-plane restore < FILE, with --env-file" in done.stderr
    assert container.run("restore", file.read_bytes()).returncode == 0
    assert names(container.start()) == ["first"]


@pytest.mark.parametrize("next_one", ["restore", "serve"])
def test_what_one_that_was_killed_had_unpacked_goes(
    container: Container, stopped: tuple[Volumes, Path], next_one: str
) -> None:
    """At the next one, or when the control plane starts."""
    volumes, file = stopped
    killed = (
        "import os\nfrom transformer_serving.desk.local import backup_file\n"
        "backup_file.stored_record = lambda *_: os._exit(9)"
    )
    assert container.run("restore", file.read_bytes(), before=killed).returncode == 9
    (left,) = volumes.data.glob("re*")
    assert (left / DATABASE).exists()
    if next_one == "restore":
        assert container.run("restore", file.read_bytes()).returncode == 0
    else:
        container.start()
    assert not list(volumes.data.glob("re*"))


@pytest.mark.parametrize(
    ("pod", "said"),
    [
        ("", b"docker compose -f compose/compose.yaml --profile local stop control-plane, then "),
        ("10.0.0.1", b"helm upgrade with --set local.restoring=true"),
    ],
    ids=["compose", "pod"],
)
def test_damage_names_the_commands_that_reach_the_container(
    container: Container, stopped: tuple[Volumes, Path], monkeypatch: pytest.MonkeyPatch,
    pod: str, said: bytes,
) -> None:  # fmt: skip
    volumes, _ = stopped
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", pod)
    database = volumes.data / DATABASE
    database.write_bytes(database.read_bytes()[:100] + bytes(8192))
    done = container.run("serve")
    assert done.returncode != 0
    assert b"is damaged; lost: " in done.stderr
    assert said in done.stderr
    assert b"transformer-serving down" not in done.stderr
    assert container.run("backup").stderr.startswith(b"error: nothing to back up: ")


def test_a_pod_is_held_until_it_is_ended(container: Container) -> None:
    with subprocess.Popen(
        [*container.command(), "hold"], env=container.environment, stdout=subprocess.PIPE
    ) as held:
        assert held.stdout is not None
        assert b"nothing is served" in held.stdout.readline()
        held.send_signal(signal.SIGTERM)
        assert held.wait(30) == 0


def test_without_room_for_what_was_there_the_services_id_is_as_it_was(
    container: Container, stopped: tuple[Volumes, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    volumes, file = stopped
    (volumes.shared / "serving-id").write_text("the-service-of-now\n")
    mkdir = Path.mkdir

    def no_room(path: Path, *given: object, **named: object) -> None:
        if path.name.startswith("before-"):
            raise OSError(28, "No space left on device")
        mkdir(path, *given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "mkdir", no_room)
    with pytest.raises(Failure, match="nothing was restored"), file.open("rb") as stream:
        container_backup.restore(volumes, stream)
    monkeypatch.undo()
    assert (volumes.shared / "serving-id").read_text() == "the-service-of-now\n"
    with file.open("rb") as stream:
        kept = container_backup.restore(volumes, stream)
    assert not (volumes.shared / "serving-id").exists()
    assert (kept / "serving-id").read_text() == "the-service-of-now\n"


def test_what_a_restore_left_half_way_is_not_backed_up(
    container: Container, stopped: tuple[Volumes, Path]
) -> None:
    """Else an empty database would be made, and taken for all that there was."""
    volumes, _ = stopped
    note_of(volumes.data).write_text("a restore was ended half way\n")
    (volumes.data / DATABASE).unlink()
    done = container.run("backup")
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"nothing to back up: a restore was ended half way" in done.stderr
    note_of(volumes.data).unlink()
    done = container.run("backup")
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"has no database" in done.stderr
    assert not (volumes.data / DATABASE).exists()
