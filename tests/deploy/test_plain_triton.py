"""A bundle in a Triton without ClearML, asked with JSON, binary tensors and tritonclient."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import sysconfig
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from click.testing import CliRunner
from tritonclient.utils import InferenceServerException

from tests.engine.triton_server import wait_until
from tests.free_ports import free_ports
from tests.small_disk import small_disk
from tests.stack.intruder import grpc_calls, http_calls, send
from tests.stack.small_bundles import Parts, write_small
from transformer_serving.contract.endpoint import InputTensor, read_endpoint
from transformer_serving.contract.manifest import Golden
from transformer_serving.contract.meanings import Embedding
from transformer_serving.desk.builders.calibration import feeds_of
from transformer_serving.desk.bundle import triton_config, writer
from transformer_serving.desk.bundle.folder import Bundle, open_bundle
from transformer_serving.desk.cli import main
from transformer_serving.desk.cli.repository import image_line
from transformer_serving.desk.deploy.plain_triton import _aside, write_repository
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.local.record import Ports
from transformer_serving.engine.model_config import from_text, to_text


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
    bundle = open_bundle(tiny_bundle)
    inputs = (*bundle.endpoint.inputs, InputTensor("candidates", "candidates", "INT32"))
    masks = replace(bundle, endpoint=replace(bundle.endpoint, inputs=inputs))
    with pytest.raises(Failure, match="--ensemble: the model also needs candidates"):
        write_repository(masks, tmp_path, "masks", ensemble=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("task", "head", "words"),
    [
        ("rerank", "sequence", "reads pairs of texts"),
        ("sentence-similarity", "sequence", "reads pairs of texts"),
        ("zero-shot-classification", "sequence", "reads pairs of texts"),
        ("question-answering", "spans", "reads pairs of texts"),
        ("token-classification", "tokens", "has an output for each token"),
        ("feature-extraction", "token_vectors", "has an output for each token"),
        ("sentence-embedding", "token_vectors", "has an output for each token"),
        ("rerank", "vector", "another prompt before a query than before a document"),
    ],
)
def test_an_ensemble_of_a_task_that_single_texts_do_not_ask_is_refused(
    tmp_path: Path, task: str, head: str, words: str
) -> None:
    bundle = write_small(tmp_path / "a")
    embedding = Embedding("engine", False, 3, "cosine", {"query": "q: "}, None)
    endpoint = replace(bundle.endpoint, task=task, head=head, embedding=embedding)
    other = replace(bundle, endpoint=endpoint)
    with pytest.raises(Failure, match=f"--ensemble: .*{words}") as refused:
        write_repository(other, tmp_path / "models", "m", ensemble=True)
    assert refused.value.exit_code == 2
    assert not (tmp_path / "models").exists()
    write_repository(other, tmp_path / "models", "m", ensemble=False)


def test_a_model_with_generated_text_is_refused(
    tiny_bundle: Path, tmp_path: Path, generation_fields: dict[str, Any]
) -> None:
    bundle = open_bundle(tiny_bundle)
    texts = replace(bundle, endpoint=read_endpoint(json.dumps(generation_fields)))
    for ensemble in (False, True):
        with pytest.raises(Failure, match="text-generation is served in pieces") as refused:
            write_repository(texts, tmp_path / "models", "texts", ensemble=ensemble)
        assert refused.value.exit_code == 2
    assert not (tmp_path / "models").exists()


def test_an_ensemble_of_another_bundle_does_not_stay_beside_a_new_model(tmp_path: Path) -> None:
    first, second = (write_small(tmp_path / name, Parts(revision=name)) for name in "ab")
    models = tmp_path / "models"
    write_repository(first, models, "m", ensemble=True)
    write_repository(first, models, "m", ensemble=False)  # the tokenizer is its own
    with pytest.raises(Failure, match="give --ensemble too, or remove m_text and m_tok") as refused:
        write_repository(second, models, "m", ensemble=False)
    assert refused.value.exit_code == 2
    assert versions_of(models) == dict.fromkeys(("m", "m_text", "m_tokenizer"), [version(first)])
    write_repository(second, models, "m", ensemble=True)
    assert versions_of(models) == dict.fromkeys(("m", "m_text", "m_tokenizer"), [version(second)])
    for name in ("m_text", "m_tokenizer"):
        shutil.rmtree(models / name)
    write_repository(first, models, "m", ensemble=False)
    assert versions_of(models) == {"m": [version(first)]}


def test_a_text_model_that_is_none_of_ours_is_left_alone(tmp_path: Path) -> None:
    models = tmp_path / "models"
    (models / "m_text").mkdir(parents=True)
    for text in ("platform: 'ensemble'", "no configuration"):
        (models / "m_text" / "config.pbtxt").write_text(text)
        write_repository(write_small(tmp_path / "a"), models, "m", ensemble=False)
        assert (models / "m_text" / "config.pbtxt").read_text() == text


def versions_of(models: Path) -> dict[str, list[str]]:
    return {
        model.name: [path.name for path in model.iterdir() if path.is_dir()]
        for model in models.iterdir()
    }


def version(bundle: Bundle) -> str:
    return str(bundle.manifest.bundle_version)


def test_ended_while_a_model_is_replaced_the_old_one_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (write_small(tmp_path / name, Parts(revision=name)) for name in "ab")
    models, rename = tmp_path / "models", Path.rename
    write_repository(first, models, "m", ensemble=False)

    def ended(path: Path, target: Path) -> Path:
        if path.name == "new":
            raise KeyboardInterrupt
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", ended)
    with pytest.raises(KeyboardInterrupt):
        write_repository(second, models, "m", ensemble=False)
    assert versions_of(models) == {"m": [version(first)]}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "models"]


@pytest.fixture
def two(tmp_path: Path) -> tuple[Bundle, Bundle]:
    """Two bundles whose tokenizers are not taken for the same."""
    first, second = (write_small(tmp_path / name, Parts(revision=name)) for name in "ab")
    return first, second


TEXT_MODELS = ("m", "m_text", "m_tokenizer")


@pytest.mark.parametrize(
    ("before", "renames"), [(True, number) for number in range(1, 6)] + [(False, 1), (False, 2)]
)
def test_ended_while_an_ensemble_is_put_in_what_was_there_is_there(
    two: tuple[Bundle, Bundle],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    before: bool,
    renames: int,
) -> None:
    models, rename, done = tmp_path / "models", Path.rename, 0
    models.mkdir()
    if before:
        write_repository(two[0], models, "m", ensemble=True)
    there = versions_of(models)

    def ended(path: Path, target: Path) -> Path:
        nonlocal done
        done += 1
        moved = rename(path, target)
        if done == renames:
            raise KeyboardInterrupt
        return moved

    monkeypatch.setattr(Path, "rename", ended)
    with pytest.raises(KeyboardInterrupt):
        write_repository(two[1], models, "m", ensemble=True)
    assert versions_of(models) == there
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "models"]


def test_killed_at_no_time_an_ensemble_is_beside_what_is_not_its_own(
    two: tuple[Bundle, Bundle], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models, rename = tmp_path / "models", Path.rename
    there: list[dict[str, list[str]]] = []

    def watched(path: Path, target: Path) -> Path:
        there.append(versions_of(models))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", watched)
    for bundle in two:
        write_repository(bundle, models, "m", ensemble=True)
    there.append(versions_of(models))
    whole = [dict.fromkeys(TEXT_MODELS, [version(bundle)]) for bundle in two]
    assert [seen for seen in there if "m_text" in seen] == whole


def test_old_models_that_cannot_be_put_back_are_kept(
    two: tuple[Bundle, Bundle], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models, rename = tmp_path / "models", Path.rename
    write_repository(two[0], models, "m", ensemble=False)

    def failing(path: Path, target: Path) -> Path:
        if path.name != "m":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(OSError, match="Input/output error"):
        write_repository(two[1], models, "m", ensemble=False)
    (old,) = tmp_path.glob(".m.*/**/old")
    assert (old / version(two[0]) / "model.onnx").is_file()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_in_order(
    two: tuple[Bundle, Bundle], tmp_path: Path, number: signal.Signals
) -> None:
    """It comes while the engine is copied."""
    output = tmp_path / "out"
    write_repository(two[0], output / "models", "m", ensemble=False)
    script = (
        "import os, shutil, signal\n"
        "from transformer_serving.desk.cli import main\n"
        # As it is where nohup does not have this run.
        "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"
        f"shutil.copyfile = lambda *_: os.kill(os.getpid(), {int(number)})\n"
        "main()"
    )
    arguments = ["repository", str(two[1].folder), "--output", str(output), "--name", "m"]
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert done.stderr.strip().endswith("Aborted!")
    assert [path.name for path in output.iterdir()] == ["models"]
    assert versions_of(output / "models") == {"m": [version(two[0])]}


def test_a_repository_on_a_disk_of_its_own(two: tuple[Bundle, Bundle], tmp_path: Path) -> None:
    models = tmp_path / "models"
    with small_disk(models, 8):
        assert _aside(models) == models
        for bundle in two:
            write_repository(bundle, models, "m", ensemble=True)
            assert versions_of(models) == dict.fromkeys(TEXT_MODELS, [version(bundle)])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "models"]


def test_a_repository_that_is_a_link_to_another_disk(
    two: tuple[Bundle, Bundle], tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", 8) as disk:
        (disk / "there").mkdir()
        (tmp_path / "models").symlink_to(disk / "there")
        # Triton takes what is in the repository for models.
        assert _aside(tmp_path / "models") == disk
        for bundle in two:
            write_repository(bundle, tmp_path / "models", "m", ensemble=False)
            assert versions_of(disk / "there") == {"m": [version(bundle)]}
        assert [path.name for path in disk.iterdir()] == ["there"]


def test_a_mount_of_the_same_disk_is_told_with_the_fix(
    two: tuple[Bundle, Bundle], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mounted(path: Path, target: Path) -> Path:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(Path, "rename", mounted)
    models = tmp_path / "models"
    with pytest.raises(
        Failure, match=f"{models}, which seems to be a mount; .*--output {models}"
    ) as refused:
        write_repository(two[0], models, "m", ensemble=True)
    assert refused.value.exit_code == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "models"]
    assert not list(models.iterdir())


def names_a_command(config: Any) -> None:
    config.instance_group[0].name = "x; touch ran; "


def is_run_elsewhere(config: Any) -> None:
    config.parameters["EXECUTION_ENV_PATH"].string_value = "/tmp/$(id)"


def is_python(config: Any) -> None:
    config.backend, config.platform = "python", ""


@pytest.mark.parametrize("change", [names_a_command, is_run_elsewhere, is_python])
def test_a_foreign_bundle_that_would_run_code_is_not_laid_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], None]
) -> None:
    """Written by somebody whose kit asks nothing."""
    written = triton_config.config_text

    def changed(endpoint: Any, engine: Any) -> str:
        config = from_text(written(endpoint, engine))
        change(config)
        return to_text(config)

    with monkeypatch.context() as patch:
        patch.setattr(writer, "config_text", changed)
        patch.setattr(writer, "pass_gate", lambda *_: None)
        write_small(tmp_path / "bundle")
    arguments = ["repository", str(tmp_path / "bundle"), "--output", str(tmp_path / "plain")]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 2
    assert "is no valid bundle: config.pbtxt: " in done.output
    assert not (tmp_path / "plain").exists()


def commands_of(bundle: Path, output: Path) -> dict[str, str]:
    arguments = ["repository", str(bundle), "--output", str(output), "--json"]
    commands: dict[str, str] = json.loads(CliRunner().invoke(main, arguments).stdout)["commands"]
    return commands


def test_why_the_wheels_triton_cannot_serve_it_is_said(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sysconfig, "get_config_var", lambda name: None)
    monkeypatch.setattr("ctypes.util.find_library", lambda name: None)
    arguments = ["repository", str(tiny_bundle), "--output", str(tmp_path)]
    said = CliRunner().invoke(main, arguments)
    assert said.exit_code == 0
    assert "The tritonserver of the wheel cannot serve it here: no shared libpython" in said.stderr
    assert "Serve it with the pinned image:" in said.stdout
    told = CliRunner().invoke(main, [*arguments, "--json"])
    assert list(json.loads(told.stdout)["commands"]) == ["image"]
    assert "no shared libpython" in told.stderr


def test_the_wheels_line_keeps_off_the_embedded_stacks_ports(
    tiny_bundle: Path, tmp_path: Path
) -> None:
    words = shlex.split(commands_of(tiny_bundle, tmp_path)["here"])
    ports = {
        door: int(word.partition("=")[2])
        for door in ("http", "grpc", "metrics")
        for word in words
        if word.startswith(f"--{door}-port=")
    }
    # Where docs/plain-triton.md asks.
    assert (ports["http"], ports["grpc"]) == (8000, 8001)
    assert not set(ports.values()) & set(Ports().__dict__.values())


def test_the_image_line_names_the_pinned_image(tiny_bundle: Path, tmp_path: Path) -> None:
    words = shlex.split(commands_of(tiny_bundle, tmp_path / "a b")["image"])
    assert words[words.index("-v") + 1] == f"{tmp_path / 'a b' / 'models'}:/models:ro"
    assert words[0:2] == ["docker", "run"]


def test_a_gpu_is_asked_for_where_the_model_runs_on_one(tiny_bundle: Path, tmp_path: Path) -> None:
    assert "--gpus" not in commands_of(tiny_bundle, tmp_path / "cpu")["image"]
    bundle = open_bundle(tiny_bundle)
    config = (tiny_bundle / "model" / "config.pbtxt").read_text()
    for kind, gpu in (("KIND_CPU", False), ("KIND_GPU", True), ("KIND_AUTO", True)):
        folder = tmp_path / kind
        (folder / "model").mkdir(parents=True)
        (folder / "model" / "config.pbtxt").write_text(config.replace("KIND_CPU", kind))
        files: Any = replace(bundle.manifest, files=())
        moved = replace(bundle, folder=folder, manifest=files)
        done = write_repository(moved, tmp_path / "models", "x", ensemble=False)
        assert done.gpu == gpu
    assert "docker run --rm --gpus all --shm-size" in image_line(tmp_path, gpus=True)


def test_an_engine_that_the_image_has_not_gets_no_image_line(tmp_path: Path) -> None:
    bundle = write_small(tmp_path / "openvino", Parts(engine="openvino"))
    assert "image" not in commands_of(bundle.folder, tmp_path / "plain")
