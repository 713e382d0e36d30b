"""Another user of the machine, who looks for a way into a stack's Triton.

`python -m tests.stack.intruder` reads an ExposedStack as JSON from stdin, becomes that user, and
prints what it could read and what each of Triton's interfaces answered.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil
import tritonclient.grpc as grpc
from tritonclient.utils import InferenceServerException

from tests.engine.triton_server import shared_memory
from transformer_serving.desk.local.leftovers import leftovers

NOBODY = 65_534
_ANSWER_S = 15.0
_RESTRICTED = re.compile(
    r"--(?:http-restricted-api|grpc-restricted-protocol)=[^:]*:(.*)=(.*)", re.S
)
# The files of a process that another user may want.
_OF_PROCESS = ("cmdline", "environ", "maps", "cwd", "root", "fd")


@dataclass(frozen=True)
class ExposedStack:
    """A running stack, as one sees it who may see everything."""

    folders: list[str]
    pids: list[int]
    triton: int
    ports: list[int]
    sockets: list[str]
    areas: list[str]
    marker: str


@dataclass
class Found:
    """What the other user got: files, keys, and which interfaces did not refuse."""

    files: list[str] = field(default_factory=list)
    keys: list[tuple[str, str]] = field(default_factory=list)
    answered: list[str] = field(default_factory=list)
    asked: int = 0


def target_of(state: Path, sockets: Path, marker: Path) -> ExposedStack:
    """The stack's processes and everything that its Triton listens on."""
    pids = [process.pid for process in leftovers(state)]
    triton = next(pid for pid in pids if psutil.Process(pid).name() == "tritonserver")
    return ExposedStack(
        [str(state), str(sockets)],
        pids,
        triton,
        sorted(tcp_ports([triton])),
        [str(row.laddr) for row in psutil.Process(triton).net_connections("unix") if row.laddr],
        sorted(map(str, shared_memory(triton))),
        str(marker),
    )


def tcp_ports(pids: list[int]) -> set[int]:
    """The TCP ports that the processes listen on."""
    rows = (row for pid in pids for row in psutil.Process(pid).net_connections("tcp"))
    return {row.laddr.port for row in rows if row.status == psutil.CONN_LISTEN}


def break_in(target: ExposedStack) -> Found:
    """Try it, as user nobody; only root can become another user."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.stack.intruder"],
        input=json.dumps(asdict(target)), capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return Found(**json.loads(done.stdout))


def code(marker: Path | str) -> dict[str, str]:
    """`parameters` of a load that brings a model along, whose code writes the marker."""
    lines = f"open({str(marker)!r}, 'w').close()\nclass TritonPythonModel:\n    pass\n"
    config = {"backend": "python", "max_batch_size": 0, "input": [], "output": []}
    return {
        "config": json.dumps(config),
        "file:1/model.py": base64.b64encode(lines.encode()).decode(),
    }


def send(
    address: tuple[str, int] | str, method: str, path: str, body: bytes, heads: str
) -> tuple[int, bytes]:
    """Status and body of the answer; 0 without one."""
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    with socket.socket(family) as wire, contextlib.suppress(OSError, ValueError, IndexError):
        wire.settimeout(_ANSWER_S)
        wire.connect(address)
        head = f"{method} {path} HTTP/1.1\r\n{heads}Connection: close\r\n"
        wire.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        answer = b"".join(iter(lambda: wire.recv(65_536), b""))
        return int(answer.split()[1]), answer.partition(b"\r\n\r\n")[2]
    return 0, b""


def http_calls(marker: str) -> list[tuple[str, str, bytes]]:
    """Triton's HTTP interfaces beyond inference."""
    load = json.dumps({"parameters": code(marker)}).encode()
    region = b'{"key": "/intruder", "offset": 0, "byte_size": 8}'
    return [
        ("POST", "/v2/repository/index", b"{}"),
        ("POST", "/v2/repository/models/intruder/load", load),
        ("POST", "/v2/repository/models/intruder/unload", b"{}"),
        ("GET", "/v2/models/stats", b""),
        ("GET", "/v2/systemsharedmemory/status", b""),
        ("POST", "/v2/systemsharedmemory/region/intruder/register", region),
        ("POST", "/v2/systemsharedmemory/unregister", b"{}"),
        ("GET", "/v2/cudasharedmemory/status", b""),
        ("POST", "/v2/cudasharedmemory/unregister", b"{}"),
        ("GET", "/v2/trace/setting", b""),
        ("POST", "/v2/trace/setting", b'{"trace_level": ["TIMESTAMPS"]}'),
        ("GET", "/v2/logging", b""),
        ("POST", "/v2/logging", b'{"log_verbose_level": 1}'),
    ]


def grpc_calls(marker: str) -> dict[str, dict[str, Any]]:
    """The same over gRPC: methods of tritonclient with their arguments."""
    level = {"settings": {"trace_level": ["TIMESTAMPS"]}}
    files = {"file:1/model.py": base64.b64decode(code(marker)["file:1/model.py"])}
    return {
        "get_model_repository_index": {},
        "load_model": {"model_name": "intruder", "config": code(marker)["config"], "files": files},
        "unload_model": {"model_name": "intruder"},
        "get_inference_statistics": {},
        "get_system_shared_memory_status": {},
        "unregister_system_shared_memory": {},
        "get_cuda_shared_memory_status": {},
        "unregister_cuda_shared_memory": {},
        "get_trace_settings": {},
        "update_trace_settings": level,
        "get_log_settings": {},
        "update_log_settings": {"settings": {"log_verbose_level": 1}},
    }


def _look(target: ExposedStack, found: Found) -> None:
    """Read what can be read; keys of Triton's command line are tried afterwards."""
    paths: Iterator[Path] = (
        Path(f"/proc/{pid}/{name}") for pid in target.pids for name in _OF_PROCESS
    )
    for path in [*map(Path, target.folders), *map(Path, target.areas), *paths]:
        with contextlib.suppress(OSError):
            read = sorted(os.listdir(path)) if path.is_dir() else path.read_bytes()
            if read and path.name != "cmdline":  # a command line is everybody's to read
                found.files.append(str(path))
    words = Path(f"/proc/{target.triton}/cmdline").read_text("utf-8").split("\0")
    found.keys = [(key[1], key[2]) for word in words if (key := _RESTRICTED.fullmatch(word))]


def _ask(target: ExposedStack, found: Found) -> None:
    headers: list[dict[str, str]] = [{}, *({name: value} for name, value in found.keys)]
    addresses: list[tuple[str, int] | str] = [("127.0.0.1", port) for port in target.ports]
    for address in [*addresses, *target.sockets]:
        name = address if isinstance(address, str) else f"127.0.0.1:{address[1]}"
        for more in headers:
            heads = "Host: t\r\n" + "".join(f"{key}: {value}\r\n" for key, value in more.items())
            for method, path, body in http_calls(target.marker):
                found.asked += 1
                status, answer = send(address, method, path, body, heads)
                # The metrics' listener answers every GET, with nothing.
                if status == 200 and (answer or method == "POST"):
                    found.answered.append(f"{method} {name}{path}")
        _ask_grpc(f"unix:{name}" if isinstance(address, str) else name, headers, target, found)


def _ask_grpc(
    address: str, headers: list[dict[str, str]], target: ExposedStack, found: Found
) -> None:
    client = grpc.InferenceServerClient(address)
    for more in headers:
        prefixed = {**more, **{f"triton-grpc-protocol-{key}": value for key, value in more.items()}}
        # gRPC itself refuses to send what is no header.
        sendable = {
            key: value for key, value in prefixed.items() if re.fullmatch(r"[a-z0-9_.-]+", key)
        }
        for method, arguments in grpc_calls(target.marker).items():
            found.asked += 1
            call: Callable[..., Any] = getattr(client, method)
            with contextlib.suppress(InferenceServerException):
                call(**arguments, headers=sendable, client_timeout=_ANSWER_S)
                found.answered.append(f"{method} {address}")
    client.close()


def main() -> None:
    target = ExposedStack(**json.loads(sys.stdin.read()))
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    found = Found()
    _look(target, found)
    _ask(target, found)
    sys.stdout.write(json.dumps(asdict(found)))


if __name__ == "__main__":
    main()
