"""A bundle in a Triton without ClearML, asked with JSON, binary tensors and tritonclient."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import struct
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from click.testing import CliRunner
from tritonclient.utils import InferenceServerException

from tests.engine.triton_server import wait_until
from tests.free_ports import free_ports
from tests.stack.intruder import grpc_calls, http_calls, send
from transformer_serving.contract.manifest import Golden
from transformer_serving.desk.builders.calibration import feeds_of
from transformer_serving.desk.bundle.folder import Bundle, open_bundle
from transformer_serving.desk.cli import main
from transformer_serving.desk.deploy.plain_triton import write_repository
from transformer_serving.desk.failure import Failure
from transformer_serving.engine.model_config import from_text


@dataclass(frozen=True)
class Plain:
    """The server, and the golden request's tensors with what they must answer."""

    http: str
    grpc: str
    bundle: Bundle
    inputs: dict[str, np.ndarray]

    @property
    def golden(self) -> Golden:
        return self.bundle.manifest.golden

    def label_of(self, logits: Any) -> str:
        assert self.bundle.endpoint.classification is not None
        return self.bundle.endpoint.classification.labels[int(np.argmax(logits))]

    def post(self, path: str, body: bytes, **headers: str) -> tuple[bytes, Any]:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(f"http://{self.http}/{path}", body, names)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.read(), answer.headers


@pytest.fixture(scope="module")
def plain(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plain]:
    """The repository laid out by the command, served by the line that it prints."""
    with served(tiny_bundle, tmp_path_factory.mktemp("plain"), "tiny") as running:
        yield running


@pytest.fixture(scope="module")
def ensemble(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plain]:
    """Likewise with the tokenizer, in an environment of its own with numpy 1."""
    environment = Path(os.environ["CHECK_ENSEMBLE"]).absolute()
    if not (environment / "made").is_file():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(environment)], check=True)
        pip = [str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, "numpy<2", "tokenizers"], check=True)
        (environment / "made").touch()
    options = ("--ensemble", "--python-environment", str(environment))
    with served(tiny_bundle, tmp_path_factory.mktemp("text"), "tiny_text", *options) as running:
        yield running


@contextlib.contextmanager
def served(source: Path, folder: Path, model: str, *options: str) -> Iterator[Plain]:
    arguments = ["repository", str(source), "--output", str(folder), "--name", "tiny", "--json"]
    printed = CliRunner().invoke(main, [*arguments, *options])
    assert printed.exit_code == 0, printed.output
    told = json.loads(printed.stdout)
    assert told["models"][-1] == model
    http, grpc, metrics = free_ports(3)
    ports = f" --http-port={http} --grpc-port={grpc} --metrics-port={metrics}"
    log = folder / "triton.log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            ["bash", "-c", f"exec env {told['commands']['here']}{ports}"],
            stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
    bundle = open_bundle(source)
    tokenizer = (source / "tokenizer.json").read_bytes()
    (feed,) = feeds_of(bundle.endpoint, tokenizer, [bundle.manifest.golden.request])
    running = Plain(f"127.0.0.1:{http}", f"127.0.0.1:{grpc}", bundle, dict(feed))
    try:
        wait_until(
            lambda: ready(running.http, model) or server.poll() is not None,
            180,
            lambda: log.read_text(errors="replace")[-3000:],
        )
        assert server.poll() is None, log.read_text(errors="replace")
        yield running
    finally:
        server.send_signal(signal.SIGINT)
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def ready(http: str, model: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{http}/v2/models/{model}/ready", timeout=5):
            return True
    except OSError:
        return False


def test_nobody_controls_it(plain: Plain, tmp_path: Path) -> None:
    host, port = plain.http.split(":")
    for method, path, body in http_calls(str(tmp_path / "ran")):
        assert send((host, int(port)), method, path, body, "Host: t\r\n")[0] == 403, path
    with triton.InferenceServerClient(plain.grpc) as client:
        for method, arguments in grpc_calls(str(tmp_path / "ran")).items():
            with pytest.raises(InferenceServerException, match="protocol is restricted"):
                getattr(client, method)(**arguments)


def test_json(plain: Plain) -> None:
    body = {
        "inputs": [
            {
                "name": name,
                "shape": rows.shape,
                "datatype": "INT32",
                "data": rows.ravel().tolist(),
            }
            for name, rows in plain.inputs.items()
        ]
    }
    raw, _ = plain.post("v2/models/tiny/infer", json.dumps(body).encode())
    answer = json.loads(raw)
    (output,) = answer["outputs"]
    assert plain.label_of(output["data"]) == plain.golden.answer["label"]
    # Triton names the version, and the version is the bundle's.
    assert answer["model_version"] == str(plain.bundle.manifest.bundle_version)


def test_binary_tensors(plain: Plain) -> None:
    head = json.dumps(
        {
            "inputs": [
                {
                    "name": name,
                    "shape": rows.shape,
                    "datatype": "INT32",
                    "parameters": {"binary_data_size": rows.nbytes},
                }
                for name, rows in plain.inputs.items()
            ],
            "outputs": [{"name": "output", "parameters": {"binary_data": True}}],
        }
    ).encode()
    body = head + b"".join(rows.tobytes() for rows in plain.inputs.values())
    raw, headers = plain.post(
        "v2/models/tiny/infer", body, Inference_Header_Content_Length=str(len(head))
    )
    values = raw[int(headers["Inference-Header-Content-Length"]) :]
    logits = struct.unpack(f"<{len(values) // 4}f", values)
    assert plain.label_of(logits) == plain.golden.answer["label"]


def test_tritonclient(plain: Plain) -> None:
    inputs = []
    for name, rows in plain.inputs.items():
        tensor = triton.InferInput(name, rows.shape, "INT32")
        tensor.set_data_from_numpy(rows)
        inputs.append(tensor)
    with triton.InferenceServerClient(plain.grpc) as client:
        logits = client.infer("tiny", inputs).as_numpy("output")
    assert plain.label_of(logits) == plain.golden.answer["label"]


apart = pytest.mark.skipif(
    "CHECK_ENSEMBLE" not in os.environ,
    reason="installs numpy 1 in an environment of its own: make check-ensemble",
)


@apart
def test_raw_text_through_the_ensemble(ensemble: Plain) -> None:
    texts = [ensemble.golden.request["text"], "so good !", "naïve 電車"]
    raw, _ = ensemble.post("v2/models/tiny_text/infer", text_body(texts))
    (output,) = json.loads(raw)["outputs"]
    assert output["shape"] == [3, 3]
    assert ensemble.label_of(output["data"][:3]) == ensemble.golden.answer["label"]
    assert not np.allclose(output["data"][:3], output["data"][3:6], atol=1e-4)
    # Alone, a text has less padding beside it and the same answer.
    raw, _ = ensemble.post("v2/models/tiny_text/infer", text_body(texts[1:2]))
    alone = json.loads(raw)["outputs"][0]["data"]
    assert np.allclose(alone, output["data"][3:6], atol=1e-4)


@apart
def test_a_text_that_is_too_long_is_refused_by_the_ensemble(ensemble: Plain) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        ensemble.post("v2/models/tiny_text/infer", text_body(["train " * 400]))
    message = json.loads(refused.value.read())["error"]
    assert "more than 48 tokens" in message
    assert "train" not in message


def text_body(texts: list[str]) -> bytes:
    row = {"name": "text", "shape": [len(texts), 1], "datatype": "BYTES", "data": texts}
    return json.dumps({"inputs": [row]}).encode()


def test_under_numpy_2_the_tokenizer_is_refused_and_not_wrong(
    tiny_bundle: Path, tmp_path: Path
) -> None:
    with (
        pytest.raises(AssertionError, match="built for numpy 1"),
        served(tiny_bundle, tmp_path, "tiny_text", "--ensemble"),
    ):
        pass


def test_the_ensemble_hands_tokens_from_one_model_to_the_next(
    tiny_bundle: Path, tmp_path: Path
) -> None:
    write_repository(open_bundle(tiny_bundle), tmp_path, "tiny", ensemble=True)
    config = from_text((tmp_path / "tiny_text" / "config.pbtxt").read_text())
    first, second = config.ensemble_scheduling.step
    assert (first.model_name, second.model_name) == ("tiny_tokenizer", "tiny")
    assert dict(first.output_map) == {role: name for name, role in second.input_map.items()}
    assert config.max_batch_size == 4
    assert [list(output.dims) for output in config.output] == [[3]]


def test_an_environment_that_a_shell_reads_otherwise_is_refused(
    tiny_bundle: Path, tmp_path: Path
) -> None:
    bundle, target = open_bundle(tiny_bundle), tmp_path / "models"
    with pytest.raises(Failure, match=r"--python-environment: .*/an environment', as it does not"):
        write_repository(
            bundle, target, "x", ensemble=True, environment=tmp_path / "an environment"
        )
    assert not target.exists()


def test_an_ensemble_needs_a_head_that_takes_tokens_alone(
    tiny_bundle: Path, tmp_path: Path
) -> None:
    from dataclasses import replace

    from transformer_serving.contract.endpoint import InputTensor

    bundle = open_bundle(tiny_bundle)
    inputs = (*bundle.endpoint.inputs, InputTensor("candidates", "candidates", "INT32"))
    masks = replace(bundle, endpoint=replace(bundle.endpoint, inputs=inputs))
    with pytest.raises(Failure, match="--ensemble: the model also needs candidates"):
        write_repository(masks, tmp_path, "masks", ensemble=True)
    assert not list(tmp_path.iterdir())


def test_the_image_line_names_the_pinned_image(tiny_bundle: Path, tmp_path: Path) -> None:
    arguments = ["repository", str(tiny_bundle), "--output", str(tmp_path / "a b"), "--json"]
    printed = CliRunner().invoke(main, arguments)
    words = shlex.split(json.loads(printed.stdout)["commands"]["image"])
    assert words[words.index("-v") + 1] == f"{tmp_path / 'a b' / 'models'}:/models:ro"
    assert words[0:2] == ["docker", "run"]
