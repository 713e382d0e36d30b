"""Makes a Debian machine ready with a Docker Engine and compose; root installs what is missing.

What already runs is used as it is; only a daemon that was started here is stopped again, once no
other process of tests uses it.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from transformer_serving.contract.replacement import replace_file
from transformer_serving.desk.doctor.containers import COMPOSE_MIN

ROOT = Path(__file__).parent.parent.parent
BUILD = ROOT / "build" / "compose-tests"
# Debian 12 has no compose new enough; the next release's package is one static binary.
COMPOSE_SUITE = "trixie"
_DAEMON_S = 90


def run(*command: str, **options: object) -> str:
    """Run a command; its stdout. A failure shows its stderr."""
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, **options
    )  # type: ignore[call-overload]
    assert done.returncode == 0, (
        f"{' '.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    )
    return str(done.stdout)


def install(*packages: str) -> None:
    missing = [name for name in packages if not _installed(name)]
    if not missing:
        return
    assert os.geteuid() == 0, f"not installed, and only root can: {' '.join(missing)}"
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    run("apt-get", "update", "-q")
    run("apt-get", "install", "-y", "-q", "--no-install-recommends", *missing, env=environment)


def _installed(package: str) -> bool:
    done = subprocess.run(["dpkg", "-s", package], capture_output=True, text=True, check=False)
    return "install ok installed" in done.stdout


@contextmanager
def locked(what: str, mode: int = fcntl.LOCK_EX) -> Iterator[None]:
    """One process of tests at a time, or with LOCK_SH several but none that wants to be alone."""
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / f"{what}.lock").open("w") as lock:
        fcntl.flock(lock, mode)
        yield


@contextmanager
def docker_engine(*options: str) -> Iterator[None]:
    """A daemon that answers: the machine's, another process's of the tests, or one of our own until
    the block has run and nobody else uses it.

    `options`: of our own dockerd.
    """
    with ExitStack() as stack:
        with locked("engine"):
            if not answers():
                install("docker.io", "iptables", "ca-certificates")
            use_compose()
            if not answers():
                stack.callback(_end, _started(options))
            stack.enter_context(locked("engine-use", fcntl.LOCK_SH))
        yield


def _started(options: Sequence[str]) -> subprocess.Popen[bytes]:
    assert os.geteuid() == 0, "no Docker Engine answers, and only root can start one"
    with (BUILD / "dockerd.log").open("wb") as log:
        daemon = subprocess.Popen(
            ["dockerd", f"--data-root={BUILD / 'docker'}", *options], stdout=log, stderr=log
        )
    try:
        deadline = time.monotonic() + _DAEMON_S
        while not answers():
            assert daemon.poll() is None, f"dockerd ended; see {log.name}"
            assert time.monotonic() < deadline, f"dockerd does not answer; see {log.name}"
            time.sleep(0.5)
    except BaseException:
        daemon.terminate()
        raise
    return daemon


def _end(daemon: subprocess.Popen[bytes]) -> None:
    """Nobody begins to use it meanwhile."""
    with locked("engine"), locked("engine-use"):
        daemon.terminate()
        daemon.wait(60)


def answers() -> bool:
    return (
        shutil.which("docker") is not None
        and not subprocess.run(["docker", "version"], capture_output=True, check=False).returncode
    )


def use_compose() -> None:
    """A compose that is new enough: the machine's, or the next Debian's in a folder of ours."""
    if _compose_version() >= _numbers(COMPOSE_MIN):
        return
    configuration = BUILD / "docker-config"
    plugin = configuration / "cli-plugins" / "docker-compose"
    if not plugin.exists():
        plugin.parent.mkdir(parents=True, exist_ok=True)
        unpacked = fetch(COMPOSE_SUITE, BUILD / "compose-package", "docker-compose")
        (binary,) = unpacked.rglob("cli-plugins/docker-compose")
        shutil.copy(binary, plugin)
    os.environ["DOCKER_CONFIG"] = str(configuration)
    assert _compose_version() >= _numbers(COMPOSE_MIN)


def _compose_version() -> tuple[int, ...]:
    if shutil.which("docker") is None:
        return ()
    done = subprocess.run(
        ["docker", "compose", "version", "--short"], capture_output=True, text=True, check=False
    )
    return _numbers(done.stdout) if done.returncode == 0 else ()


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def debian_mirror() -> str:
    """The address that this machine's own apt takes Debian from."""
    for path in [Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*")]:
        for line in path.read_text("utf-8").splitlines() if path.is_file() else []:
            found = re.match(r"(?:deb\s+(?:\[[^]]*\]\s*)?|URIs:\s*)(\S+/debian/?)(?:\s|$)", line)
            if found:
                return found[1].rstrip("/")
    raise AssertionError("apt's sources name no Debian mirror; this needs a Debian machine")


def fetch(suite: str, folder: Path, *packages: str) -> Path:
    """Unpack packages of another suite into `folder`, checked by apt, without installing them."""
    options = _apt(suite, folder, "deb")
    # With the suite, or apt would want the version that is installed, from wherever that came.
    named = [f"{package}/{suite}" for package in packages]
    run("apt-get", "-q", *options, "download", *named, cwd=folder)
    (folder / "unpacked").mkdir()
    for archive in folder.glob("*.deb"):
        run("dpkg", "-x", str(archive), str(folder / "unpacked"))
    return folder / "unpacked"


def fetch_source(suite: str, folder: Path, package: str) -> Path:
    """The same of a source package, with Debian's patches."""
    install("dpkg-dev")
    options = _apt(suite, folder, "deb-src")
    run("apt-get", "-q", *options, "source", "--download-only", package, cwd=folder)
    (description,) = folder.glob("*.dsc")
    run("dpkg-source", "--no-check", "-x", str(description), str(folder / "unpacked"))
    return folder / "unpacked"


def _apt(suite: str, folder: Path, kind: str) -> list[str]:
    """Empty the folder and read the suite's lists into it: options of apt that use these alone."""
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True)
    keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
    sources = folder / "sources.list"
    sources.write_text(f"{kind} [signed-by={keyring}] {debian_mirror()} {suite} main\n")
    options = [
        f"-oDir::Etc::sourcelist={sources}", "-oDir::Etc::sourceparts=-",
        f"-oDir::State::lists={folder / 'lists'}", f"-oDir::Cache={folder / 'cache'}",
        "-oAPT::Sandbox::User=root",
    ]  # fmt: skip
    run("apt-get", "-q", *options, "update")
    return options


def pip_configuration() -> tuple[Path, Path]:
    """This machine's way to its package index, as build secrets: a pip.conf and certificates."""
    BUILD.mkdir(parents=True, exist_ok=True)
    listed = run(str(ROOT / ".venv" / "bin" / "python"), "-m", "pip", "config", "list")
    rows = dict(re.findall(r"^(?:global|:env:)\.([\w-]+)='(.*)'$", listed, re.MULTILINE))
    certificates = rows.get("cert") or os.environ.get("SSL_CERT_FILE") or ""
    lines = ["[global]", "timeout = 180"]
    lines += [
        f"{name} = {rows[name]}"
        for name in ("index-url", "extra-index-url", "trusted-host")
        if name in rows and "file:" not in rows[name]
    ]
    bundle = BUILD / "ca-bundle.crt"
    # Another process may have a build read them.
    replace_file(bundle, Path(certificates).read_bytes() if certificates else b"")
    if certificates:
        lines.append("cert = /run/ca-bundle.crt")
    configuration = BUILD / "pip.conf"
    replace_file(configuration, "\n".join(lines) + "\n", mode=0o600)
    return configuration, bundle


def inspected(container: str) -> dict[str, object]:
    (row,) = json.loads(run("docker", "inspect", container))
    return dict(row)
