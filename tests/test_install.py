"""scripts/install.py in an environment of its own, with packages of this file and the real pip;
and what `make` installs nothing for."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import psutil
import pytest

from scripts.gpu_parcel import unpack
from tests.engine.triton_server import wait_until
from tests.outside_make import outside_make

ROOT = Path(__file__).parent.parent
INSTALL = ROOT / "scripts" / "install.py"
NAMES = ("ash", "beech", "cedar", "elm", "fir", "gum")
# What no lock names, and who wants it.
PLATFORMS, UNWANTED = "hazel", "ivy"
REQUIRES = {"cedar": PLATFORMS, "willow": UNWANTED}


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    for name in (*NAMES, "willow", PLATFORMS, UNWANTED):
        _wheel(folder, name, REQUIRES.get(name))
    return folder


def _wheel(folder: Path, name: str, requires: str | None) -> None:
    info = f"{name}-1.0.dist-info"
    wanted = f"Requires-Dist: {requires}\n" if requires else ""
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{wanted}"
    wheel = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    rows = [f"{name}.py,,", *(f"{info}/{file},," for file in ("METADATA", "WHEEL", "RECORD"))]
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as packed:
        packed.writestr(f"{name}.py", "")
        packed.writestr(f"{info}/METADATA", metadata)
        packed.writestr(f"{info}/WHEEL", wheel)
        packed.writestr(f"{info}/RECORD", "\n".join(rows))


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    return folder / "bin" / "python"


def _environment(wheels: Path) -> dict[str, str]:
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("PIP_")},
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(wheels),
        "PIP_CONFIG_FILE": os.devnull,
    }


def _install(
    python: Path, wheels: Path, lock: Path, *arguments: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, INSTALL, lock, *arguments],
        env=_environment(wheels),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def _begun(
    python: Path, wheels: Path, lock: Path, stdout: int = subprocess.DEVNULL
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [python, INSTALL, lock],
        env=_environment(wheels),
        stdout=stdout,
        stderr=subprocess.DEVNULL,
    )


def _importable(python: Path, name: str) -> bool:
    return subprocess.run([python, "-c", f"import {name}"], capture_output=True).returncode == 0


def test_all_are_there_and_what_they_want_beside(
    python: Path, wheels: Path, tmp_path: Path
) -> None:
    lock, alone = tmp_path / "a.lock", tmp_path / "b.lock"
    lock.write_text("# A comment.\n" + "\n".join(f"{name}==1.0" for name in NAMES) + "\n")
    alone.write_text("willow==1.0\n")
    for adds in (True, False):
        done = _install(python, wheels, lock, "--alone", str(alone))
        assert done.returncode == 0, done.stderr
        said = done.stdout.splitlines()
        assert "packages: 7 of 7 begun, 7 fetched, 7 installed" in said
        assert (f"Successfully installed {PLATFORMS}-1.0" in said) == adds
    assert all(_importable(python, name) for name in (*NAMES, "willow", PLATFORMS))
    assert not _importable(python, UNWANTED)


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    """A package that is built for longer than a test runs."""
    folder = tmp_path / "slow"
    folder.mkdir()
    (folder / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "build"\nbackend-path = ["."]\n'
    )
    (folder / "build.py").write_text(
        "import pathlib, time\n"
        "def build_wheel(*_):\n"
        "    pathlib.Path(__file__).with_name('begun').touch()\n"
        "    time.sleep(300)\n"
    )
    return folder


def _of(python: Path) -> list[psutil.Process]:
    """The processes of this environment's Python."""
    found = psutil.process_iter(["cmdline"])
    return [one for one in found if (one.info["cmdline"] or [""])[0] == str(python)]


def test_a_package_that_is_not_to_be_had_is_named_and_ends_the_others(
    python: Path, wheels: Path, slow: Path, tmp_path: Path
) -> None:
    lock = tmp_path / "a.lock"
    lock.write_text(f"ash==1.0\nslow @ {slow.as_uri()}\noak==2.0\n")
    done = _install(python, wheels, lock)
    assert done.returncode == 1
    assert "No matching distribution found for oak==2.0" in done.stderr
    assert not _of(python)


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_its_end_is_that_of_its_pips(
    python: Path, wheels: Path, slow: Path, tmp_path: Path, sent: signal.Signals
) -> None:
    lock = tmp_path / "a.lock"
    lock.write_text(f"ash==1.0\nslow @ {slow.as_uri()}\n")
    # A shell's background has it ignored, which a process would be started with.
    before = signal.signal(sent, signal.SIG_DFL)
    begun = _begun(python, wheels, lock)
    signal.signal(sent, before)
    with begun as running:
        wait_until(lambda: (slow / "begun").exists(), 60)
        running.send_signal(sent)
        assert running.wait(30) == 128 + sent
    assert not _of(python)


@pytest.mark.parametrize("left", ["nothing", "the wheel's own"])
def test_what_a_pip_was_ended_in_is_installed_again(
    python: Path, wheels: Path, tmp_path: Path, left: str
) -> None:
    lock = tmp_path / "a.lock"
    lock.write_text("ash==1.0\nbeech==1.0\n")
    assert _install(python, wheels, lock).returncode == 0
    where = "import beech, pathlib; print(pathlib.Path(beech.__file__).parent)"
    packages = subprocess.run([python, "-c", where], capture_output=True, text=True, check=True)
    folder = Path(packages.stdout.strip())
    (folder / "ash.py").unlink()
    record = folder / "ash-1.0.dist-info" / "RECORD"
    whole = record.read_text()
    record.unlink()
    if left != "nothing":
        record.write_text("".join(row for row in whole.splitlines(True) if "INSTALLER" not in row))
    done = _install(python, wheels, lock)
    assert done.returncode == 0, done.stderr
    assert "installed by half, so again: ash-1.0\n" in done.stdout
    assert _importable(python, "ash")
    assert record.read_text() == whole


def test_it_goes_on_where_nobody_reads_what_it_says(
    python: Path, wheels: Path, tmp_path: Path
) -> None:
    lock = tmp_path / "a.lock"
    lock.write_text("ash==1.0\nbeech==1.0\ncedar==1.0\n")
    read, write = os.pipe()
    os.close(read)
    with _begun(python, wheels, lock, stdout=write) as running:
        os.close(write)
        running.wait(60)
    assert not _of(python)
    assert all(_importable(python, name) for name in ("ash", "beech", "cedar"))


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The project's Makefile, and what an installation reads."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "requirements").mkdir()
    for name in ("pyproject.toml", "requirements/desk.lock", "requirements/carried.lock"):
        (tmp_path / name).touch()
    return tmp_path


def _make(clone: Path, *arguments: str) -> str:
    """What it prints."""
    done = subprocess.run(
        ["make", *arguments], cwd=clone, env=outside_make(), capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    return done.stdout


def test_the_python_that_the_tests_make_was_told_is_not_named_here(
    clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHON", "another")
    assert "another" not in _make(clone, "-n", "lock")


@pytest.mark.parametrize("target", ["clean", "down", "status"])
def test_what_ends_or_looks_at_a_stack_installs_nothing(clone: Path, target: str) -> None:
    assert "install.py" in _make(clone, "-n", "up")
    lines = _make(clone, "-n", target)
    assert "install.py" not in lines
    assert "bin/transformer-serving" not in lines
    kept = clone / ".stack"
    kept.mkdir()
    _make(clone, target)
    assert kept.exists() == (target != "clean")


@pytest.mark.parametrize("target", ["clean", "down", "status"])
def test_a_stack_of_another_installation_stays(clone: Path, target: str) -> None:
    """It may run: without its data nothing would find it again."""
    record = clone / ".stack" / "stack.json"
    record.parent.mkdir()
    record.touch()
    with pytest.raises(subprocess.CalledProcessError) as failed:
        _make(clone, target)
    assert "install again (make up)" in failed.value.stderr
    assert record.exists()


@pytest.mark.parametrize("target", ["down", "status"])
def test_a_lock_that_changed_is_not_installed_under_a_stack_that_runs(
    clone: Path, target: str
) -> None:
    command = clone / ".venv/bin/transformer-serving"
    command.parent.mkdir(parents=True)
    command.write_text("#!/bin/sh\necho did $*\n")
    command.chmod(0o755)
    installed = clone / ".venv/.desk"
    installed.touch()
    os.utime(installed, (1, 1))
    assert _make(clone, target).splitlines()[-1] == f"did {target}"


def test_a_tree_that_is_copied_once_more_installs_nothing(clone: Path) -> None:
    """Its times are new. A machine without network could not."""
    made_of = [clone / name for name in unpack.MADE_OF]
    for number, file in enumerate(made_of):
        file.write_text(f"{number}\n")
    installed = clone / ".venv/.desk"
    installed.parent.mkdir()
    installed.write_bytes(b"".join(file.read_bytes() for file in made_of))
    os.utime(installed, (1, 1))
    lines = _make(clone, "-n", "check-gpu")
    assert "benchmarks check-gpu" in lines
    assert "install.py" not in lines
    made_of[1].write_text("another\n")
    assert "install.py" in _make(clone, "-n", "check-gpu")


def _played(clone: Path, version: str) -> Path:
    """A Python that makes environments of itself, as venv does: what is there stays unless it is
    cleared."""
    python = clone / f"python{version}"
    python.write_text(
        "#!/bin/sh\n"
        'case "$*" in\n'
        '*--clear) rm -r "$3/bin" ;;\n'
        "esac\n"
        'case "$*" in\n'
        '"-m venv "*) mkdir -p "$3/bin"; test -e "$3/bin/python" || cp "$0" "$3/bin/python" ;;\n'
        f"*version_info*) case $* in *print*) echo {version} ;; "
        f"*) test {version} != 3.10 ;; esac ;;\n"
        f'"-m transformer_serving.engine.libpython") echo looked for that of {version} ;;\n'
        "esac\n"
    )
    python.chmod(0o755)
    return python


def test_another_python_that_is_named_is_installed_for(clone: Path) -> None:
    """Also where everything is installed, and where an installation for one was broken off."""
    older, newer = _played(clone, "3.12"), _played(clone, "3.13")
    _make(clone, "libpython", ".venv/.desk", f"PYTHON={older}")
    in_use = clone / ".venv/bin/python"
    assert in_use.read_text() == older.read_text()
    assert "install.py" not in _make(clone, "libpython", ".venv/.desk", f"PYTHON={older}")
    assert "install.py" not in _make(clone, "libpython", ".venv/.desk")
    said = _make(clone, "libpython", ".venv/.desk", f"PYTHON={newer}")
    assert "looked for that of 3.13" in said
    assert "install.py" in said
    assert in_use.read_text() == newer.read_text()
    (clone / ".venv/.desk").unlink()
    assert "looked for that of 3.13" in _make(clone, "libpython", ".venv/.desk")
    assert in_use.read_text() == newer.read_text()


def test_a_python_that_is_too_old_is_refused_before_anything_is_made(clone: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError) as failed:
        _make(clone, ".venv/.desk", f"PYTHON={_played(clone, '3.10')}")
    assert "python3.10 is no Python 3.11 to 3.13 with venv" in failed.value.stderr
    assert not (clone / ".venv").exists()


def test_what_cannot_be_compiled_is_installed_all_the_same(clone: Path) -> None:
    """As where root, in a container that mounts the checkout, has made the folders for it."""
    python = clone / "python"
    python.write_text(
        "#!/bin/sh\n"
        'case "$*" in\n'
        f'"-m venv "*) mkdir -p "$3/bin"; cp {shlex.quote(str(python))} "$3/bin" ;;\n'
        f'"-m compileall "*) exec {shlex.quote(sys.executable)} "$@" ;;\n'
        "esac\n"
    )
    python.chmod(0o755)
    for name in ("preprocess", "transformer_serving"):
        (clone / name).mkdir()
        (clone / name / "one.py").touch()
    # Not a mode, which root would not mind.
    (clone / "transformer_serving" / "__pycache__").touch()
    _make(clone, ".venv/.desk", f"PYTHON={python}")
    assert "install.py" not in _make(clone, "-n", "up")
    os.utime(clone / ".venv/.desk", (1, 1))
    assert "install.py" not in _make(clone, "-n", "up")
    assert list((clone / "preprocess/__pycache__").glob("one.*.pyc"))
