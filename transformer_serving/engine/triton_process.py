"""The command line and the environment of a tritonserver that takes models from the controller."""

from __future__ import annotations

import os
import secrets
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from transformer_serving.contract.naming import UNQUOTED_MARKS, is_unquoted
from transformer_serving.engine.errors import EngineError
from transformer_serving.engine.libpython import libpython_folder
from transformer_serving.engine.shared_memory import area_options

LOOPBACK = "127.0.0.1"
# The inference container pings beside calls that wait; Triton's default of five minutes between
# pings would make it close the connection in the middle of a call of minutes.
_PING_INTERVAL_MS = 1_000
# What no inference needs: whoever may load a model brings its code along.
_CONTROL = "model-repository,shared-memory,statistics,trace,logging"
# A header's name ends at its colon, so that nobody can send this one.
_UNSENDABLE = "nobody:"
_GRPC_NAME = "transformer-serving"
# Behind what is refused.
UNQUOTED = (
    "as it does not quote paths; use a folder whose path has only letters, digits and "
    f"{UNQUOTED_MARKS}"
)
# The metadata by which gRPC's restricted calls are let in; Triton puts the first part before it.
KEY_HEADER = f"triton-grpc-protocol-{_GRPC_NAME}"

# Where the controller finds it: not in a command line, which everybody may read.
KEY_VARIABLE = "TRANSFORMER_SERVING_TRITON_KEY"


@dataclass(frozen=True)
class TritonAddresses:
    """Where Triton listens.

    `host` is an address, or `unix:/folder/name`: the sockets are then /folder/name:PORT. HTTP and
    metrics may have another one.
    """

    http_port: int = 8000
    grpc_port: int = 8001
    metrics_port: int = 8002
    host: str = LOOPBACK
    http_host: str | None = None
    metrics_host: str | None = None

    @property
    def http(self) -> str:
        return f"{self.http_host or self.host}:{self.http_port}"

    @property
    def grpc(self) -> str:
        return f"{self.host}:{self.grpc_port}"

    @property
    def metrics(self) -> str:
        return f"{self.metrics_host or self.host}:{self.metrics_port}"

    def remove_sockets(self) -> None:
        """Remove the sockets that a Triton of these addresses left: it does not start over them."""
        for address in (self.http, self.grpc, self.metrics):
            if address.startswith("unix:"):
                Path(address.removeprefix("unix:")).unlink(missing_ok=True)


def triton_command(
    tritonserver: Path,
    *,
    repository: Path,
    backend_directory: Path,
    addresses: TritonAddresses | None = None,
    key: str | None = None,
    log_file: Path | None = None,
    extra: Sequence[str] = (),
) -> list[str]:
    """The command of a Triton whose models are loaded only on demand, by gRPC alone.

    `tritonserver` is the program. HTTP takes calls for inference and nothing else: any web page
    can send to it, and a large file override kills tritonserver 2.51. With a `key`, gRPC takes the
    others only beside KEY_HEADER. Readiness is asked for each model, because one failed load
    would otherwise make the whole server unready until it restarts.
    The controller writes complete configurations; letting Triton complete them starts a second
    stub for each load, 1.2 s longer. Folders may be named from the working directory of now.

    Raises EngineError for a folder that no model could be loaded from.
    """
    listen = addresses or TritonAddresses()
    command = [
        str(tritonserver),
        f"--model-repository={nameable(repository)}",
        f"--backend-directory={nameable(backend_directory)}",
        "--model-control-mode=explicit",
        "--strict-readiness=false",
        "--exit-on-error=false",
        *_http("http", listen.http),
        # gRPC adds the port to a socket's path by itself.
        f"--grpc-address={listen.host}",
        f"--grpc-port={listen.grpc_port}",
        f"--grpc-http2-min-recv-ping-interval-without-data={_PING_INTERVAL_MS}",
        *_http("metrics", listen.metrics),
        closed_http(),
        *area_options(repository, backend_directory),
        "--disable-auto-complete-config",
    ]
    if key is not None:
        command.append(closed_grpc(key))
    if log_file is not None:
        command.append(f"--log-file={log_file}")
    return [*command, *extra]


def nameable(path: Path, start: Path | None = None) -> Path:
    """The path itself, or where a shell would read it otherwise from `start`, in which Triton is
    run; without one from the working directory.

    Triton 2.51 starts a model's process with a line for bash in which it quotes no path. With a
    blank in one the process ends at once, and Triton waits for it without end. Raises EngineError
    where neither will do.
    """
    if is_unquoted(str(path)):
        return path
    relative = Path(os.path.relpath(path.resolve(), (start or Path.cwd()).resolve()))
    if not is_unquoted(str(relative)):
        raise EngineError(f"Triton loads no model from '{path}', {UNQUOTED}")
    return relative


def closed_http() -> str:
    """The option by which HTTP takes calls for inference only, from whomever.

    Triton wants a value too; it is random, though nobody can send the name.
    """
    return f"--http-restricted-api={_CONTROL}:{_UNSENDABLE}={secrets.token_hex(16)}"


def closed_grpc(key: str | None = None) -> str:
    """The option by which gRPC takes other calls than for inference only beside the key.

    Without one it takes them from nobody, by a key that is told to nobody.
    """
    return f"--grpc-restricted-protocol={_CONTROL}:{_GRPC_NAME}={key or secrets.token_hex(16)}"


def _http(door: str, address: str) -> tuple[str, str]:
    """The two options of an HTTP listener, which takes a socket's whole path as its address."""
    host, _, port = address.rpartition(":")
    return (
        f"--{door}-address={address if address.startswith('unix:') else host}",
        f"--{door}-port={port}",
    )


def triton_environment(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a tritonserver from the wheel, in which the stub finds our packages.

    The Python stub must load the libpython of the interpreter whose packages it uses: another
    build of the same minor version can differ in its compiled-in paths.
    """
    base = dict(os.environ if environment is None else environment)
    libraries = [Path(sysconfig.get_path("purelib")) / "nvidia_pytriton.libs"]
    libpython = libpython_folder()
    if libpython is not None:
        libraries.append(libpython)
    base["LD_LIBRARY_PATH"] = _joined(libraries, base.get("LD_LIBRARY_PATH"))
    # The stub starts an isolated interpreter that ignores PYTHONPATH and PYTHONHOME; it takes
    # the packages of the environment whose python3 comes first on PATH.
    base["PATH"] = _joined([Path(sys.prefix) / "bin"], base.get("PATH"))
    return base


def _joined(paths: Sequence[Path], before: str | None) -> str:
    return os.pathsep.join([*map(str, paths), *([before] if before else [])])
