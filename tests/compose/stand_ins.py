"""Base images of the same names, of Debian's packages, where none can be pulled.

An image of that name that was not made here is the real one, and is used. Triton's has the Python
of the real image where this machine has it, else Debian's.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.compose.machine import BUILD, ROOT, debian_mirror, install, locked, run
from transformer_serving.desk.versions.lock import Lock, read_lock

LABEL = "transformer-serving.stand-in"
# That of Debian 12.
DEBIAN_PYTHON = "3.11"
# debootstrap's way of making any newer Debian; an old one does not know the newest names.
_DEBIAN_SCRIPT = "/usr/share/debootstrap/scripts/sid"
# A python that is not on PATH under its own name, as `make lock` takes it, too.
PYTHON_VARIABLE = "TRITON_PYTHON"
# What a Python that was built on Debian 12 loads.
_PYTHON_NEEDS = (
    "libbz2-1.0", "libffi8", "liblzma5", "libncursesw6", "libreadline8", "libsqlite3-0", "libssl3",
    "libuuid1", "zlib1g",
)  # fmt: skip
_LEFT_OUT = ("test", "tests", "idlelib", "tkinter", "ensurepip")


@dataclass(frozen=True)
class StandIn:
    """One base image: which release and packages it is made of, and what is done to it."""

    suite: str
    packages: tuple[str, ...]
    finish: Callable[[Path, Lock], dict[str, str]]


def like_python(folder: Path, _lock: Lock) -> dict[str, str]:
    """The real image lets pip install; Debian's asks for a virtual environment."""
    for mark in folder.glob("usr/lib/python3*/EXTERNALLY-MANAGED"):
        mark.unlink()
    return {"PATH": "/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"}


def triton_python(lock: Lock) -> Path | None:
    """The folder of a Python of the Triton image's minor version, with a shared libpython.

    None where this machine has none, or only the system's own, which cannot be taken out of /usr.
    """
    minor = ".".join(lock.image.python.split(".")[:2])
    script = "import sys, sysconfig; print(sys.base_prefix, sysconfig.get_config_var('INSTSONAME'))"
    known = sorted(Path.home().glob(f".pyenv/versions/{minor}.*/bin/python{minor}"))
    for program in (os.environ.get(PYTHON_VARIABLE), f"python{minor}", *map(str, known)):
        if not program or shutil.which(program) is None:
            continue
        done = subprocess.run([program, "-c", script], capture_output=True, text=True, check=False)
        prefix, _, library = done.stdout.strip().partition(" ")
        if prefix not in ("", "/usr") and library.startswith(f"libpython{minor}.so"):
            return Path(prefix)
    return None


def copy_python(source: Path, target: Path, minor: str) -> None:
    """The interpreter, its library and pip; nothing else of what is installed there."""
    library = f"lib/python{minor}"
    ignored = shutil.ignore_patterns("site-packages", *_LEFT_OUT)
    shutil.copytree(source / library, target / library, ignore=ignored, dirs_exist_ok=True)
    for pip in (source / library / "site-packages").glob("pip*"):
        shutil.copytree(pip, target / library / "site-packages" / pip.name)
    for shared in (source / "lib").glob("libpython*.so*"):
        shutil.copy(shared, target / "lib" / shared.name)
    (target / "bin").mkdir(exist_ok=True)
    shutil.copy(source / "bin" / f"python{minor}", target / "bin")
    (target / "bin" / "python3").symlink_to(f"python{minor}")


def like_triton(folder: Path, lock: Lock) -> dict[str, str]:
    """The wheel's tritonserver where the real image has its own, and a native openvino backend."""
    python = triton_python(lock)
    minor = DEBIAN_PYTHON if python is None else ".".join(lock.image.python.split(".")[:2])
    if python is None:
        like_python(folder, lock)
    else:
        copy_python(python, folder / "usr" / "local", minor)
    (site,) = (ROOT / ".venv" / "lib").glob("python3*/site-packages")
    wheel = site / "pytriton" / "tritonserver"
    home = folder / "opt" / "tritonserver"
    shutil.copytree(wheel / "bin", home / "bin")
    shutil.copytree(wheel / "backends", home / "backends")
    shutil.copytree(site / "nvidia_pytriton.libs", home / "lib")
    stub = home / "backends" / "python" / "triton_python_backend_stub"
    shutil.copy(wheel / "python_backend_stubs" / minor / stub.name, stub)
    for program in (stub, home / "bin" / "tritonserver"):
        program.chmod(0o755)
    (home / "backends" / "openvino").mkdir()
    (home / "backends" / "openvino" / "libtriton_openvino.so").write_bytes(b"")
    return {
        "PATH": "/opt/tritonserver/bin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "LD_LIBRARY_PATH": "/opt/tritonserver/lib:/usr/local/lib",
        "TRITON_SERVER_VERSION": lock.image.triton,
        "NVIDIA_TRITON_SERVER_VERSION": lock.image.release,
        "TRT_VERSION": lock.image.tensorrt,
    }


def like_haproxy(_folder: Path, _lock: Lock) -> dict[str, str]:
    return {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}


def stand_ins(lock: Lock) -> dict[str, StandIn]:
    python = ("python3", "python3-pip", "ca-certificates")
    own = triton_python(lock) is not None
    triton = ("ca-certificates", *_PYTHON_NEEDS) if own else (*python, f"libpython{DEBIAN_PYTHON}")
    return {
        lock.base_images["inference"].value: StandIn(
            "bookworm", (*python, "python3-venv"), like_python
        ),
        lock.image.image: StandIn("bookworm", triton, like_triton),
        # The first Debian with HAProxy 3.2.
        lock.base_images["balancer"].value: StandIn("forky", ("haproxy",), like_haproxy),
    }


def make_stand_ins() -> list[str]:
    """Make what is missing; the names of all that are stand-ins."""
    with locked("stand-ins"):
        return _make_missing(read_lock())


def _make_missing(lock: Lock) -> list[str]:
    # One with no label of ours was pulled: the real one.
    found = {image: _label(image) for image in stand_ins(lock)}
    ours = {image: one for image, one in stand_ins(lock).items() if found[image] != ""}
    missing = {image: one for image, one in ours.items() if found[image] != _recipe(one)}
    if missing:
        install("debootstrap", "xz-utils", "zstd")
        # Each waits for packages for a good part of its time.
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda image: _make(image, missing[image], lock), missing))
    return list(ours)


def _recipe(stand_in: StandIn) -> str:
    text = f"{stand_in.suite} {stand_in.packages} {inspect.getsource(stand_in.finish)}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _label(image: str) -> str | None:
    """Our mark on an image of that name; '' for one without, None when there is no image."""
    done = subprocess.run(
        ["docker", "image", "inspect", image], capture_output=True, text=True, check=False
    )
    if done.returncode:
        return None
    labels = json.loads(done.stdout)[0]["Config"].get("Labels") or {}
    return str(labels.get(LABEL, ""))


def _make(image: str, stand_in: StandIn, lock: Lock) -> None:
    folder = BUILD / f"root-{re.sub('[^a-z0-9]+', '-', image)}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    run(
        "debootstrap", "--variant=minbase", f"--include={','.join(stand_in.packages)}",
        stand_in.suite, str(folder), debian_mirror(), _DEBIAN_SCRIPT,
    )  # fmt: skip
    environment = stand_in.finish(folder, lock)
    for name in ("var/cache/apt/archives", "var/lib/apt/lists"):
        shutil.rmtree(folder / name, ignore_errors=True)
    changes = [
        f"LABEL {LABEL}={_recipe(stand_in)}",
        *(f"ENV {key}={value}" for key, value in environment.items()),
    ]
    options = [part for change in changes for part in ("--change", change)]
    tar = ["tar", "-C", str(folder), "-c", "."]
    with subprocess.Popen(tar, stdout=subprocess.PIPE) as archive:
        done = subprocess.run(
            ["docker", "import", *options, "-"], stdin=archive.stdout, check=True,
            capture_output=True, text=True,
        )  # fmt: skip
    # An archive that was cut short makes an image, too; only a whole one gets the name.
    assert archive.returncode == 0
    run("docker", "tag", done.stdout.strip(), image)
    shutil.rmtree(folder)
