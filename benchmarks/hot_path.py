"""What happens between the socket and Triton, in time: `python -m benchmarks.hot_path`.

Every target answers the same short text. Targets take turns within each round, so that a ratio
compares what the machine did at about the same time; the lower bound of a ratio is its worst round.

empty    a Preprocess that answers at once: what clearml-serving's app costs without one
null     ours, before an engine that answers zeros at once: what a GPU host's CPU pays
real     ours, before the demo's own engine
example  as ClearML's example does it, before the null engine: lists of integers, the host's gRPC

Each is asked in the stock app and behind the gateway, but for the example, which is not ours.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import psutil

from contract.endpoint import read_endpoint
from engine.model_config import TensorConfig, build_config, from_text, to_text, with_versions
from preprocess.tensors import Tensor
from preprocess.triton_http import HttpTriton
from tests.engine.triton_server import TritonServer, running_triton
from tests.gateway.conftest import Server, Session, running_session
from tests.gateway.kept_connections import KeptConnections
from tests.gateway.text_serving import register
from tests.triton_text import client_of, end
from transformer_serving import preprocess_file

Measured = TypeVar("Measured")

ROOT = Path(__file__).parent.parent
BUNDLE = ROOT / "build" / "demo" / "transformer_model"
RESULT = Path(__file__).parent / "results" / "hot_path.json"
TEXT = "This is a ClearML example to show how Triton binaries are deployed."
CALLERS = 128

NULL_MODEL = """
import ctypes, json
import numpy as np
import triton_python_backend_utils as pb_utils

set_name = ctypes.pythonapi.PyCapsule_SetName
set_name.argtypes = (ctypes.py_object, ctypes.c_char_p)


class TritonPythonModel:
    def initialize(self, args):
        self.width = int(json.loads(args["model_config"])["output"][0]["dims"][0])

    def execute(self, requests):
        answers = []
        for request in requests:
            rows = request.inputs()[0].shape()[0]
            capsule = np.zeros((rows, self.width), np.float32).__dlpack__()
            tensor = pb_utils.Tensor.from_dlpack("output", capsule)
            set_name(capsule, b"used_dltensor")
            answers.append(pb_utils.InferenceResponse([tensor]))
        return answers
"""

EMPTY = """
from starlette.responses import Response


class Preprocess:
    serves_responses = True

    def preprocess(self, body, state, collect=None):
        return body

    async def process(self, body, state, collect=None):
        return body

    def postprocess(self, body, state, collect=None):
        return Response(b'{"label":"NEGATIVE","score":0.5}', 200, None, "application/json")
"""

EXAMPLE = """
from transformers import AutoTokenizer


class Preprocess:
    def __init__(self):
        self.tokenizer = AutoTokenizer.from_pretrained("{folder}")

    def preprocess(self, body, state, collect=None):
        tokens = self.tokenizer(
            body["text"], padding="max_length", max_length=32, truncation=True,
            return_token_type_ids=True,
        )
        return [[tokens[name]] for name in {inputs}]

    def postprocess(self, data, state, collect=None):
        return {{"data": data.tolist()}}
"""


@dataclass(frozen=True)
class Target:
    """One row of the table: a server and the endpoint that is asked there."""

    name: str
    server: Server
    endpoint: str

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.port}/serve/{self.endpoint}"


def write_models(repository: Path) -> list[str]:
    """The engines: null at the bundle's version and at the stock version, and the real one."""
    endpoint = read_endpoint((BUNDLE / "endpoint.json").read_text())
    inputs = [TensorConfig(one.name, one.dtype, (-1,)) for one in endpoint.inputs]
    outputs = [TensorConfig(one.name, one.dtype, one.dims) for one in endpoint.outputs]
    for name, number in (("null", endpoint.bundle_version), ("example", 1)):
        folder = repository / name / str(number)
        folder.mkdir(parents=True)
        (folder / "model.py").write_text(NULL_MODEL)
        config = build_config(
            name=name, backend="python", inputs=inputs, outputs=outputs, max_batch_size=64
        )
        config.version_policy.all.SetInParent()
        (repository / name / "config.pbtxt").write_text(to_text(config))
    folder = repository / "real" / str(endpoint.bundle_version)
    folder.mkdir(parents=True)
    for file in ("model.xml", "model.bin"):
        shutil.copy(BUNDLE / "model" / file, folder / file)
    config = from_text((BUNDLE / "model" / "config.pbtxt").read_text())
    config = with_versions(config, "real", [endpoint.bundle_version])
    (repository / "real" / "config.pbtxt").write_text(to_text(config))
    return ["null", "example", "real"]


def write_endpoints(folder: Path) -> list[str]:
    from transformers import PreTrainedTokenizerFast

    tokenizer = BUNDLE / "tokenizer.json"
    endpoint = read_endpoint((BUNDLE / "endpoint.json").read_text())
    text = preprocess_file.build((BUNDLE / "endpoint.json").read_text(), tokenizer.read_bytes())
    hugging_face = folder / "tokenizer"
    names = tuple(one.name for one in endpoint.inputs)
    made = PreTrainedTokenizerFast(tokenizer_file=str(tokenizer), pad_token="[PAD]")
    made.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    made.save_pretrained(hugging_face)
    files = {
        "empty": EMPTY, "null": text, "real": text,
        "example": EXAMPLE.format(folder=hugging_face, inputs=names),
    }  # fmt: skip
    for name, content in files.items():
        (folder / f"{name}.py").write_text(content)
    tensors = {
        "input_name": names, "input_type": ["int32"] * len(names),
        "input_size": [[-1]] * len(names),
        "output_name": ["output"], "output_type": ["float32"], "output_size": [[2]],
    }  # fmt: skip
    (folder / "example.json").write_text(json.dumps(tensors))
    return list(files)


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[tuple[Session, TritonServer]]:
    """A control plane with the endpoints, and a Triton with the engines."""
    for name in ("session", "endpoints"):
        (folder / name).mkdir()
    with (
        running_session(folder / "session") as session,
        running_triton(folder / "triton") as triton,
    ):
        with client_of(triton) as client:
            for name in write_models(triton.repository):
                client.load_model(name)
        names = write_endpoints(folder / "endpoints")
        service = register(session, folder / "endpoints", names)
        environment = {
            **session.environment,
            "CLEARML_SERVING_TASK_ID": service,
            "CLEARML_DEFAULT_TRITON_GRPC_ADDR": triton.grpc,
            "TRANSFORMER_SERVING_TRITON_HTTP": f"127.0.0.1:{triton.addresses.http_port}",
            "TOKENIZERS_PARALLELISM": "false",
            "HF_HUB_OFFLINE": "1",
            # Minutes, as by default: the tests' endless polling would be counted as the requests'.
            "CLEARML_SERVING_POLL_FREQ": "5",
        }
        yield replace(session, environment=environment, folder=folder), triton
        end(triton)


def wait(server: Server, path: str, *endpoints: str) -> None:
    """Until the server is there and each endpoint has answered."""
    server.wait_for(path, 300)
    for name in endpoints:
        for attempt in range(5):
            # The first answer of an endpoint waits for its imports.
            with contextlib.suppress(TimeoutError):
                reply = server.post(name, {"text": TEXT})
                assert reply.status == 200, reply.raw
                break
            print(f"{name}: no answer to attempt {attempt + 1}", flush=True)  # noqa: T201


class Load(NamedTuple):
    """Answers a second, and the worker's own processor time for each, in microseconds.

    Processor time is what remains comparable on a machine that has other things to do.
    """

    rate: float
    cost_us: float


def throughput(target: Target, body: Path, seconds: float) -> Load:
    """CALLERS over kept connections; every answer must be a 200."""
    worker = psutil.Process(target.server.process.pid)
    for _ in range(3):
        before = sum(worker.cpu_times()[:2])
        done = subprocess.run(
            ["ab", "-q", "-k", "-l", "-c", str(CALLERS), "-t", str(seconds), "-n", "1000000",
             "-T", "application/json", "-p", str(body), target.url],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert "Non-2xx" not in done.stdout, done.stdout
        count = int(_figure(r"Complete requests:\s+(\d+)", done.stdout))
        if count > CALLERS:
            cost = sum(worker.cpu_times()[:2]) - before
            rate = _figure(r"Requests per second:\s+([\d.]+)", done.stdout)
            return Load(rate, 1e6 * cost / count)
    raise AssertionError(f"{target.name}: the machine is too busy for a figure")


def _figure(pattern: str, text: str) -> float:
    found = re.search(pattern, text)
    assert found, text
    return float(found.group(1))


def one_at_a_time(target: Target, seconds: float) -> float:
    """The median, in milliseconds, over one kept connection."""

    async def measure() -> float:
        connections = KeptConnections(target.server.port)
        times = []
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            began = time.perf_counter()
            status, _ = await connections.post(target.endpoint, {"text": TEXT})
            times.append(time.perf_counter() - began)
            assert status == 200
        await connections.close()
        return 1000 * statistics.median(times)

    return asyncio.run(measure())


def engine_alone(triton: TritonServer, model: str, seconds: float) -> float:
    """The median of one call at a time of one text, in milliseconds, without any app."""
    endpoint = read_endpoint((BUNDLE / "endpoint.json").read_text())
    ids = np.ones((1, 16), np.int32)
    tensors = [Tensor(one.name, one.dtype, ids) for one in endpoint.inputs]

    async def measure() -> float:
        server = HttpTriton(f"127.0.0.1:{triton.addresses.http_port}")
        times = []
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            began = time.perf_counter()
            await server.infer(model, endpoint.bundle_version, tensors, endpoint.outputs)
            times.append(time.perf_counter() - began)
        server.close()
        await asyncio.sleep(0)
        return 1000 * statistics.median(times)

    return asyncio.run(measure())


def neighbour(server: Server, seconds: float, *, beside: str | None) -> float:
    """p99 in milliseconds of 8 callers of `null`, alone or beside one caller of 1 MB batches."""
    big = {"text": ["tea and cups " * 770] * 100, "truncate": True}

    async def measure() -> float:
        connections, times, stop = KeptConnections(server.port), [], False

        async def caller() -> None:
            while not stop:
                began = time.perf_counter()
                status, _ = await connections.post("null", {"text": TEXT})
                times.append(time.perf_counter() - began)
                assert status == 200

        async def batches() -> None:
            while not stop and beside:
                status, answer = await connections.post(beside, big)
                assert status == 200, answer

        callers = [asyncio.create_task(caller()) for _ in range(8)]
        other = asyncio.create_task(batches())
        await asyncio.sleep(seconds)
        stop = True
        await asyncio.gather(*callers, other)
        await connections.close()
        return 1000 * statistics.quantiles(times, n=100)[98]

    return asyncio.run(measure())


def cold_start(make: Callable[[], Server], path: str, endpoint: str) -> dict[str, float]:
    """Seconds to the first answer, the first and second answers' milliseconds, and MiB."""
    server = make()
    began = time.perf_counter()
    try:
        server.start().wait_for(path, 300)
        times = [asked(server, endpoint) for _ in range(3)]
        return {
            "first_answer_s": time.perf_counter() - began - sum(times[1:]),
            "first_ms": 1000 * times[0],
            "second_ms": 1000 * times[1],
            "memory_mib": server.resident_mib(),
        }
    finally:
        server.stop()


def asked(server: Server, endpoint: str) -> float:
    began = time.perf_counter()
    assert server.post(endpoint, {"text": TEXT}).status == 200
    return time.perf_counter() - began


def rounds_of(
    targets: list[Target], count: int, measure: Callable[[Target], Measured]
) -> dict[str, list[Measured]]:
    found: dict[str, list[Measured]] = {target.name: [] for target in targets}
    for number in range(count):
        for target in targets:
            found[target.name].append(measure(target))
        row = ", ".join(f"{name} {values[-1]}" for name, values in found.items())
        print(f"round {number + 1}: {row}", flush=True)  # noqa: T201
    return found


def ratios(rounds: dict[str, list[float]], pairs: list[tuple[str, str]]) -> dict[str, Any]:
    """Of each pair, round by round: the median, and the lower bound."""
    found = {}
    for one, other in pairs:
        if one not in rounds or other not in rounds:
            continue
        row = [a / b for a, b in zip(rounds[one], rounds[other], strict=True)]
        found[f"{one} / {other}"] = {"median": statistics.median(row), "lower": min(row)}
    return found


PAIRS = [
    ("stock null", "stock empty"),
    ("gateway null", "stock empty"),
    ("gateway empty", "stock empty"),
    ("stock null", "stock example"),
    ("gateway null", "stock example"),
    ("gateway real, 1 in flight", "gateway real, 2 in flight"),
]


OURS = ("empty", "null", "real")
# The unmodified app, imported without the torch that only this environment has.
STOCK = "gateway.host:host.app"


@dataclass(frozen=True)
class Servers:
    stock: Server
    gateway: Server
    one: Server  # calls in flight
    two: Server

    def targets(self) -> list[Target]:
        return [
            *(Target(f"stock {name}", self.stock, name) for name in (*OURS, "example")),
            *(Target(f"gateway {name}", self.gateway, name) for name in OURS),
            *(
                Target(f"gateway {name}, {number} in flight", server, name)
                for name in ("real", "null")
                for number, server in ((1, self.one), (2, self.two))
            ),
        ]


@contextlib.contextmanager
def running_servers(session: Session) -> Iterator[Servers]:
    made = Servers(
        session.uvicorn(STOCK),
        session.gateway(),
        session.gateway(TRANSFORMER_SERVING_CALLS_IN_FLIGHT="1"),
        session.gateway(TRANSFORMER_SERVING_CALLS_IN_FLIGHT="2"),
    )
    with contextlib.ExitStack() as stack:
        for server in (made.stock, made.gateway, made.one, made.two):
            stack.callback(server.start().stop)
        wait(made.stock, "/docs", *OURS, "example")
        for server in (made.gateway, made.one, made.two):
            wait(server, "/health/ready", *OURS)
        yield made


def under_load(
    servers: Servers, triton: TritonServer, options: argparse.Namespace
) -> dict[str, Any]:
    count, seconds = options.rounds, options.seconds
    targets = [
        one for one in servers.targets() if not (options.without_real and "real" in one.name)
    ]
    engines = ["null"] if options.without_real else ["null", "real"]
    with tempfile.NamedTemporaryFile("w") as body:
        json.dump({"text": TEXT}, body)
        body.flush()
        path = Path(body.name)
        loads = rounds_of(targets, count, lambda one: throughput(one, path, seconds))
    rates = {name: [load.rate for load in row] for name, row in loads.items()}
    costs = {name: [load.cost_us for load in row] for name, row in loads.items()}
    return {
        "requests_per_s_128_callers": rates,
        "ratios": ratios(rates, PAIRS),
        "worker_processor_us_a_request": costs,
        "processor_ratios": ratios(costs, [(other, one) for one, other in PAIRS]),
        "one_at_a_time_ms": rounds_of(
            targets, count, lambda one: one_at_a_time(one, seconds / 2)
        ),
        "engine_alone_ms": {
            name: engine_alone(triton, name, seconds) for name in engines
        },
        "p99_ms_beside_1_mb_batches": {
            str(name): [neighbour(servers.gateway, seconds, beside=name) for _ in range(count)]
            for name in (None, *engines)
        },
        "memory_after_load_mib": {
            "stock": servers.stock.resident_mib(), "gateway": servers.gateway.resident_mib(),
        },
    }  # fmt: skip


def cold(session: Session) -> dict[str, Any]:
    ways: dict[str, tuple[Callable[[], Server], str]] = {
        "stock": (lambda: session.uvicorn(STOCK), "/docs"),
        "gateway": (session.gateway, "/health/ready"),
    }
    return {
        f"{way} {name}": cold_start(make, path, name)
        for name in ("empty", "null")
        for way, (make, path) in ways.items()
    }


def machine() -> dict[str, Any]:
    packages = ("clearml-serving", "fastapi", "uvicorn", "orjson", "tokenizers", "numpy")
    return {
        "date": datetime.now(UTC).isoformat(timespec="minutes"),
        "processor": next(
            (line.split(": ")[1] for line in Path("/proc/cpuinfo").read_text().splitlines()
             if line.startswith("model name")), platform.processor(),
        ),
        "cores": os.cpu_count(),
        "load_before": os.getloadavg()[0],
        "python": platform.python_version(),
        **{name: version(name) for name in packages},
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0, help="of one measurement")
    parser.add_argument("--without-real", action="store_true", help="leave out the real engine")
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    if not (BUNDLE / "endpoint.json").is_file():
        sys.exit("error: no demo bundle; build it: make up")
    before = machine()
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as (session, triton):
        with running_servers(session) as servers:
            found = under_load(servers, triton, options)
        found["cold_start"] = cold(session)
    options.out.parent.mkdir(exist_ok=True)
    new = options.out.with_suffix(".new")
    result = {"machine": {**before, "load_after": os.getloadavg()[0]}, **found}
    new.write_text(json.dumps(result, indent=1) + "\n")
    new.replace(options.out)
    sys.stdout.write(json.dumps({"ratios": found["ratios"]}, indent=1) + "\n")


if __name__ == "__main__":
    main()
