"""The vLLM backend's tensors behind real gRPC: a server of this process, or a real Triton.

The Python backend of Triton 2.51 misreads texts under numpy 2, so that the Triton needs another
environment for its model: `make check-vllm`. The other one answers by the same rule.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.engine.triton_server import TritonServer, running_triton
from tests.text_engine import VERSION
from tests.vllm_engine import rule
from transformer_serving.engine.model_config import TensorConfig, build_config, to_text

NAME = "vllm"
# By `make check-vllm`: a folder for an environment with numpy 1, made where it is not there.
CHECK = "CHECK_VLLM"
ROOT = Path(__file__).parents[2]
_TYPES = {"BYTES": "STRING"}


@dataclass
class VllmServer:
    """`address` of its gRPC; what became of its sequences is `lived`, or stands in `file`."""

    address: str
    notes: list[str] = field(default_factory=list)
    file: Path | None = None

    def lived(self) -> list[str]:
        if self.file is None:
            return list(self.notes)
        return self.file.read_text("utf-8").splitlines() if self.file.is_file() else []


Messages = Callable[[dict[str, Any], Callable[[], bool], Callable[[str], None]], Iterator[Any]]


class Servicer(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Takes the requests of a stream one after the other."""

    def __init__(self, notes: list[str], messages: Messages) -> None:
        self._notes = notes
        self._messages = messages

    def ModelStreamInfer(self, requests: Iterator[Any], context: Any) -> Iterator[Any]:
        for request in requests:
            try:
                pairs = zip(request.inputs, request.raw_input_contents, strict=True)
                inputs = dict(_input(*pair) for pair in pairs)
                silent = True
                for message in self._messages(
                    inputs, lambda: not context.is_active(), self._notes.append
                ):
                    silent = not message.last
                    yield _reply(message, request.id)
            except rule.BackendError as error:
                context.abort(grpc.StatusCode.INTERNAL, str(error))
            if silent:
                # As a process that hangs: nothing comes, nor ends, until the caller leaves.
                next(requests, None)


def _input(tensor: Any, raw: bytes) -> tuple[str, Any]:
    assert rule.INPUTS[tensor.name] == tensor.datatype
    assert list(tensor.shape) == [1]
    if tensor.datatype == "BOOL":
        return tensor.name, bool(raw[0])
    [size] = struct.unpack_from("<I", raw)
    assert len(raw) == size + 4
    return tensor.name, raw[4:].decode()


def _reply(message: rule.Message, identity: str) -> Any:
    reply = service_pb2.ModelInferResponse(id=identity)
    for name, value in message.outputs.items():
        reply.outputs.add(name=name, datatype=rule.OUTPUTS[name], shape=[1])
        if isinstance(value, str):
            raw = struct.pack("<I", len(value.encode())) + value.encode()
        else:
            raw = np.array([value], np.uint32).tobytes()
        reply.raw_output_contents.append(raw)
    reply.parameters["triton_final_response"].bool_param = message.last
    return service_pb2.ModelStreamInferResponse(infer_response=reply)


@contextmanager
def serving_here(messages: Messages = rule.messages) -> Iterator[VllmServer]:
    notes: list[str] = []
    server = grpc.server(ThreadPoolExecutor(32))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(Servicer(notes, messages), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield VllmServer(f"127.0.0.1:{port}", notes)
    server.stop(None).wait()


def with_numpy_1() -> Path:
    environment = Path(os.environ[CHECK])
    if not (environment / "bin" / "python").exists():
        subprocess.run([sys.executable, "-m", "venv", environment], check=True)
        pip = [str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, "numpy<2"], check=True)
    return environment.absolute()


@contextmanager
def stand_in_triton(folder: Path, environment: Path) -> Iterator[TritonServer]:
    """A Triton that has a backend `vllm`: transformers behind its tensors (backend.py)."""
    worker = [sys.executable, "-m", "tests.vllm_engine.transformers_engine"]
    variables = {
        "PATH": os.pathsep.join([str(environment / "bin"), os.environ["PATH"]]),
        "STAND_IN_COMMAND": json.dumps(worker),
        "STAND_IN_FOLDER": str(ROOT),
    }
    with running_triton(folder, variables=variables) as triton:
        backend = triton.backends / "vllm"
        backend.mkdir()
        parts = {"backend.py": "model.py", "model.py": "rule_model.py", "rule.py": "rule.py"}
        for source, target in parts.items():
            shutil.copy(Path(__file__).with_name(source), backend / target)
        yield triton


@contextmanager
def serving_in_triton(folder: Path, environment: Path) -> Iterator[VllmServer]:
    """`environment` is one with numpy 1."""
    with running_triton(folder) as triton:
        model = triton.repository / NAME
        (model / str(VERSION)).mkdir(parents=True)
        for name in ("model.py", "rule.py"):
            shutil.copy(Path(__file__).with_name(name), model / str(VERSION) / name)
        (model / "config.pbtxt").write_text(_config(environment))
        client = triton.client()
        client.load_model(NAME)
        client.close()
        yield VllmServer(triton.grpc, file=model / "lived")


def _config(environment: Path) -> str:
    inputs, outputs = (
        [TensorConfig(name, _TYPES.get(dtype, dtype), dims) for name, dtype in tensors.items()]
        for tensors, dims in ((rule.INPUTS, (1,)), (rule.OUTPUTS, (-1,)))
    )
    config = build_config(
        name=NAME,
        backend="python",
        inputs=inputs,
        outputs=outputs,
        max_batch_size=0,
        decoupled=True,
        parameters={"EXECUTION_ENV_PATH": str(environment.absolute())},
    )
    for tensor in config.input:
        tensor.optional = tensor.name != "text_input"
    config.version_policy.all.SetInParent()
    return to_text(config)
