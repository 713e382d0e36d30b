"""The command line and the environment of a tritonserver that takes models from the controller."""

from __future__ import annotations

import ctypes.util
import os
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.errors import EngineError

LOOPBACK = "127.0.0.1"
# The inference container pings beside calls that wait; Triton's default of five minutes between
# pings would make it close the connection in the middle of a call of minutes.
_PING_INTERVAL_MS = 1_000


@dataclass(frozen=True)
class TritonAddresses:
    """Where Triton listens. HTTP must never be reachable from outside: a large file override
    over HTTP kills tritonserver 2.51."""

    http_port: int = 8000
    grpc_port: int = 8001
    metrics_port: int = 8002
    host: str = LOOPBACK


def triton_command(
    tritonserver: Path,
    *,
    repository: Path,
    backend_directory: Path,
    addresses: TritonAddresses | None = None,
    log_file: Path | None = None,
    complete_configurations: bool = False,
    extra: Sequence[str] = (),
) -> list[str]:
    """The command of a Triton whose models are loaded only on demand.

    `tritonserver` is the program. Readiness is asked for each model, because one failed load
    would otherwise make the whole server unready until it restarts.
    The controller writes complete configurations; letting Triton complete them starts a second
    stub for each load, 1.2 s longer.
    """
    listen = addresses or TritonAddresses()
    command = [
        str(tritonserver),
        f"--model-repository={repository}",
        f"--backend-directory={backend_directory}",
        "--model-control-mode=explicit",
        "--strict-readiness=false",
        "--exit-on-error=false",
        f"--http-address={listen.host}",
        f"--http-port={listen.http_port}",
        f"--grpc-address={listen.host}",
        f"--grpc-port={listen.grpc_port}",
        f"--grpc-http2-min-recv-ping-interval-without-data={_PING_INTERVAL_MS}",
        f"--metrics-address={listen.host}",
        f"--metrics-port={listen.metrics_port}",
    ]
    if not complete_configurations:
        command.append("--disable-auto-complete-config")
    if log_file is not None:
        command.append(f"--log-file={log_file}")
    return [*command, *extra]


def triton_environment(
    environment: Mapping[str, str] | None = None, *, site_packages: Path | None = None
) -> dict[str, str]:
    """The environment of a tritonserver from the wheel, in which the stub finds our packages.

    The Python stub must load the libpython of the interpreter whose packages it uses: another
    build of the same minor version can differ in its compiled-in paths.
    """
    base = dict(os.environ if environment is None else environment)
    packages = site_packages or Path(sysconfig.get_path("purelib"))
    libraries = [packages / "nvidia_pytriton.libs"]
    libpython = libpython_folder()
    if libpython is not None:
        libraries.append(libpython)
    base["LD_LIBRARY_PATH"] = _joined(libraries, base.get("LD_LIBRARY_PATH"))
    # The stub starts an isolated interpreter that ignores PYTHONPATH and PYTHONHOME; it takes
    # the packages of the environment whose python3 comes first on PATH.
    base["PATH"] = _joined([Path(sys.prefix) / "bin"], base.get("PATH"))
    return base


def libpython_folder() -> Path | None:
    """The folder with the running interpreter's shared libpython; None when the system's is it.

    Raises EngineError when there is no shared libpython at all.
    """
    name = sysconfig.get_config_var("INSTSONAME") or ""
    folder = Path(sysconfig.get_config_var("LIBDIR") or "/nonexistent")
    if ".so" in name and (folder / name).is_file():
        return folder
    minor = f"python{sys.version_info.major}.{sys.version_info.minor}"
    if ctypes.util.find_library(minor):
        return None
    raise EngineError(
        f"no shared lib{minor}.so was found in {folder} or on the system; Triton's Python stub "
        f"needs one: install lib{minor} or a Python built with --enable-shared"
    )


def _joined(paths: Sequence[Path], before: str | None) -> str:
    return os.pathsep.join([*map(str, paths), *([before] if before else [])])
