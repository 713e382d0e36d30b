"""The backends of text models inside a real Triton."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import openvino
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from tests.engine.test_orphans import stubs
from tests.engine.text_models import (
    BEST,
    VOCABULARY,
    expected,
    expected_masks,
    write_identity,
    write_onnx,
    write_openvino,
    write_torch,
)
from tests.engine.triton_server import TritonServer, running_triton, shared_memory, wait_until
from transformer_serving.engine.backends.executor import Runtime
from transformer_serving.engine.backends.model_settings import read_settings
from transformer_serving.engine.backends.onnx_runtime import OnnxRuntime, _options
from transformer_serving.engine.backends.openvino_runtime import OpenVinoRuntime
from transformer_serving.engine.backends.precision import openvino_properties
from transformer_serving.engine.backends.probe import probe
from transformer_serving.engine.model_config import TensorConfig, build_config, to_text
from transformer_serving.engine.orphans import model_of

INPUTS = (TensorConfig("input_ids", "INT32", (-1,)), TensorConfig("attention_mask", "INT32", (-1,)))
OUTPUT = TensorConfig("output", "FP32", (3,))
WRITERS: dict[str, Callable[..., Path]] = {
    "onnxruntime": write_onnx,
    "openvino_text": write_openvino,
    "torch_text": write_torch,
}
_numbers = itertools.count()


class Model:
    """A model in the server's repository and a client that asks it."""

    def __init__(self, server: TritonServer, backend: str, **config: Any) -> None:
        self.name = f"text{next(_numbers)}"
        self.folder = server.repository / self.name / "1"
        self.folder.mkdir(parents=True)
        self.client = server.client()
        self.config = build_config(
            **{
                "name": self.name,
                "backend": backend,
                "inputs": INPUTS,
                "outputs": (OUTPUT,),
                "max_batch_size": 16,
                "max_queue_delay_us": 60_000,
                **config,
            }
        )

    def load(self, text: str | None = None) -> None:
        (self.folder.parent / "config.pbtxt").write_text(text or to_text(self.config))
        self.client.load_model(self.name)

    def join_lengths(self) -> None:
        """Ragged inputs make Triton's batcher join requests of different lengths."""
        for tensor in self.config.input:
            tensor.allow_ragged_batch = True

    def unload(self) -> None:
        # One that could not be loaded cannot be unloaded.
        with contextlib.suppress(InferenceServerException):
            self.client.unload_model(self.name)
        self.client.close()

    def start(
        self, ids: np.ndarray, mask: np.ndarray | None = None, **extra: np.ndarray
    ) -> Future[Any]:
        mask = np.ones_like(ids) if mask is None else mask
        inputs = []
        for name, array in {"input_ids": ids, "attention_mask": mask, **extra}.items():
            tensor = triton.InferInput(name, array.shape, "INT32")
            tensor.set_data_from_numpy(array)
            inputs.append(tensor)
        future: Future[Any] = Future()

        def done(result: Any, error: Exception | None) -> None:
            future.set_exception(error) if error else future.set_result(result)

        self.client.async_infer(self.name, inputs, done)
        return future

    def ask(self, ids: np.ndarray, output: str = "output") -> np.ndarray:
        return np.asarray(self.start(ids).result(20).as_numpy(output))


# Each loading of a program of PyTorch takes seconds: what is TextModel's, and so the same for all,
# is asked of the two others.
WITHOUT_TORCH = pytest.mark.parametrize("backend", sorted(WRITERS.keys() - {"torch_text"}))


@pytest.fixture(scope="module", params=sorted(WRITERS))
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


Make = Callable[..., Model]


@pytest.fixture
def make(triton_server: TritonServer) -> Iterator[Make]:
    """Models of one test, by their backend and what is special of them."""
    with contextlib.ExitStack() as made:

        def one(backend: str, **config: Any) -> Model:
            model = Model(triton_server, backend, **config)
            made.callback(model.unload)
            return model

        yield one


@pytest.fixture(scope="module")
def model(triton_server: TritonServer, backend: str) -> Iterator[Model]:
    made = Model(triton_server, backend)
    WRITERS[backend](made.folder)
    made.join_lengths()
    made.load()
    yield made
    made.unload()


@pytest.fixture(scope="module")
def masks_model(triton_server: TritonServer, backend: str) -> Iterator[Model]:
    made = Model(triton_server, backend, warmup_lengths=[8], **MASKS_CONFIG)
    WRITERS[backend](made.folder, head="masks")
    made.join_lengths()
    made.load()
    yield made
    made.unload()


def texts(seed: int, *shapes: tuple[int, int]) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random.integers(0, VOCABULARY, shape).astype(np.int32) for shape in shapes]


def test_mixed_lengths_in_one_batch_equal_one_at_a_time(model: Model) -> None:
    requests = texts(1, (1, 3), (2, 9), (1, 40), (3, 3), (1, 8), (4, 41), (1, 1))
    futures = [model.start(ids) for ids in requests]
    for ids, future in zip(requests, futures, strict=True):
        answer = future.result(20).as_numpy("output")
        np.testing.assert_allclose(answer, model.ask(ids), atol=1e-5)
        np.testing.assert_allclose(answer, expected(ids, np.ones_like(ids)), atol=1e-5)


def test_outputs_with_a_token_axis_are_cut_to_the_request(make: Make, backend: str) -> None:
    model = make(backend)
    WRITERS[backend](model.folder, per_token=True)
    model.config.output.add(name="token_output", data_type=11, dims=[-1, 3])
    model.join_lengths()
    model.load()
    requests = texts(2, (1, 5), (2, 7), (1, 6), (2, 20))
    futures = [model.start(ids) for ids in requests]
    for ids, future in zip(requests, futures, strict=True):
        answer = future.result(20).as_numpy("token_output")
        assert answer.shape == (*ids.shape, 3)
        np.testing.assert_allclose(answer, model.ask(ids, "token_output"), atol=1e-5)


@pytest.mark.parametrize(
    ("runtime", "write"), [(OnnxRuntime, write_onnx), (OpenVinoRuntime, write_openvino)]
)
def test_an_output_that_nobody_can_ask_for_keeps_no_requests_apart(
    runtime: Callable[..., Runtime], write: Callable[..., Path], tmp_path: Path
) -> None:
    """Its first axis is not the texts."""
    path = write(tmp_path, across=True)
    output = {"name": "output", "data_type": "TYPE_FP32", "dims": [3]}
    opened = runtime(path, read_settings({"max_batch_size": 4, "output": [output]}))
    assert {spec.name for spec in opened.graph.outputs} == {"output", "across"}
    layout = probe(opened)
    assert layout.joinable
    assert set(layout.own_axes) == {"output"}
    assert not probe(runtime(path, read_settings({"max_batch_size": 4}))).joinable


MASKS_CONFIG = {
    "inputs": (
        *INPUTS,
        TensorConfig("mask_positions", "INT32", (-1,), per_token=False),
        TensorConfig("candidates", "INT32", (-1,), per_token=False),
    ),
    "outputs": (
        TensorConfig("scores", "FP32", (-1, BEST)),
        TensorConfig("token_ids", "INT32", (-1, BEST)),
        TensorConfig("candidate_scores", "FP32", (-1, -1)),
    ),
}


def test_masks_and_candidates_of_joined_requests_stay_their_own(masks_model: Model) -> None:
    random = np.random.default_rng(8)
    requests = []
    for ids in texts(8, (1, 5), (2, 5), (1, 9), (3, 6), (1, 30), (2, 8)):
        rows, length = ids.shape
        positions = random.integers(0, length, (rows, random.integers(1, 4))).astype(np.int32)
        candidates = random.integers(0, VOCABULARY, (rows, random.integers(1, 5)))
        extra = {"mask_positions": positions, "candidates": candidates.astype(np.int32)}
        requests.append((ids, extra))
    together = [masks_model.start(ids, **extra) for ids, extra in requests]
    for (ids, extra), future in zip(requests, together, strict=True):
        answer, alone = future.result(20), masks_model.start(ids, **extra).result(20)
        for name, wanted in expected_masks(ids, **extra).items():
            np.testing.assert_array_equal(answer.as_numpy(name).shape, wanted.shape)
            np.testing.assert_allclose(answer.as_numpy(name), wanted, atol=1e-5)
            np.testing.assert_allclose(alone.as_numpy(name), wanted, atol=1e-5)
        assert answer.as_numpy("token_ids").dtype == np.int32


@pytest.mark.parametrize("bad", [-1, 6])
def test_a_mask_outside_its_text_fails_alone(masks_model: Model, bad: int) -> None:
    [ids] = texts(9, (1, 6))
    futures = [
        masks_model.start(
            ids,
            mask_positions=np.array([[at]], np.int32),
            candidates=np.array([[3]], np.int32),
        )
        for at in (2, bad, 5)
    ]
    with pytest.raises(InferenceServerException, match="position outside the text"):
        futures[1].result(20)
    for future in (futures[0], futures[2]):
        assert future.result(20).as_numpy("scores").shape == (1, 1, BEST)


def test_openvino_refuses_a_text_beyond_the_models_positions(make: Make) -> None:
    """It would answer with another vector, or with a fault of its own."""
    model = make("openvino_text", parameters={"max_positions": "8"})
    write_openvino(model.folder)
    model.load()
    longest, longer = texts(4, (1, 8), (1, 9))
    np.testing.assert_allclose(
        model.ask(longest), expected(longest, np.ones_like(longest)), atol=1e-5
    )
    with pytest.raises(InferenceServerException, match="model has positions for 8") as caught:
        model.ask(longer)
    assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"


@pytest.mark.parametrize("bad", [-1, VOCABULARY, 2**31 - 1])
def test_a_bad_request_fails_alone(model: Model, bad: int) -> None:
    good = texts(3, (1, 6), (1, 6), (2, 6))
    wrong = np.full((1, 6), bad, np.int32)
    futures = [model.start(ids) for ids in (good[0], wrong, *good[1:])]
    with pytest.raises(InferenceServerException):
        futures[1].result(20)
    for ids, future in zip(good, [futures[0], *futures[2:]], strict=True):
        np.testing.assert_allclose(
            future.result(20).as_numpy("output"), expected(ids, np.ones_like(ids)), atol=1e-5
        )


@WITHOUT_TORCH
def test_instances_share_the_work(make: Make, triton_server: TritonServer, backend: str) -> None:
    model = make(backend, instance_count=2, max_queue_delay_us=0)
    WRITERS[backend](model.folder)
    model.load()
    named = [model_of(stub, triton_server.repository) for stub in stubs(triton_server)]
    assert named.count(model.name) == 2
    requests = texts(4, *[(1, 5)] * 30)
    futures = [model.start(ids) for ids in requests]
    for ids, future in zip(requests, futures, strict=True):
        np.testing.assert_allclose(
            future.result(20).as_numpy("output"), expected(ids, np.ones_like(ids)), atol=1e-5
        )


@WITHOUT_TORCH
def test_warm_up_runs_with_zeros(make: Make, triton_server: TritonServer, backend: str) -> None:
    """At every length that is named; Triton's log says so, and a sample that fails fails the load.

    It is not made to fail here: tritonserver 2.51 then ends with a fault every second time.
    """
    model = make(backend, warmup_lengths=[8, 16, 300])
    for sample in model.config.model_warmup:
        assert all(tensor.zero_data for tensor in sample.inputs.values())
    WRITERS[backend](model.folder)
    model.client.update_log_settings({"log_verbose_level": 1})
    try:
        model.load()
    finally:
        model.client.update_log_settings({"log_verbose_level": 0})
    assert model.client.is_model_ready(model.name)
    ran = rf"model '{model.name}' .* is running warmup sample '(\w+)'"
    assert re.findall(ran, triton_server.log.read_text()) == ["tokens8", "tokens16", "tokens300"]


@pytest.mark.parametrize(
    ("backend", "present", "missing"),
    [
        ("onnxruntime", "readme.txt", "model.onnx"),
        ("openvino_text", "readme.txt", "model.xml"),
        ("openvino_text", "model.xml", "model.bin"),
        ("torch_text", "program.json", "program.safetensors"),
    ],
)
def test_a_missing_file_is_named(make: Make, backend: str, present: str, missing: str) -> None:
    model = make(backend)
    (model.folder / present).write_text("x")
    with pytest.raises(InferenceServerException, match=f"'{missing}' is missing.*upload"):
        model.load()


def test_a_broken_file_is_named(make: Make, backend: str) -> None:
    model = make(backend)
    broken = WRITERS[backend](model.folder)
    if backend == "torch_text":
        broken = broken.with_name("program.safetensors")
    broken.write_bytes(b"not a model")
    with pytest.raises(InferenceServerException, match="cannot be loaded"):
        model.load()


def test_no_other_user_reads_what_a_model_is_asked(
    model: Model, triton_server: TritonServer
) -> None:
    """Before a request, and after one for which the area grows."""
    own = [one for one in stubs(triton_server) if model_of(one, triton_server.repository)]
    for length in (4, 500_000):
        areas = set[Path]().union(*(shared_memory(one.pid) for one in own))
        assert areas
        assert {oct(area.stat().st_mode) for area in areas} == {"0o100600"}
        model.ask(np.zeros((1, length), np.int32))


def test_openvino_reads_no_other_format_by_its_own_ones_name(make: Make) -> None:
    """Its reader of ONNX would take weights from the memory of the process."""
    model = make("openvino_text")
    write_onnx(model.folder, file_name="model.xml")
    (model.folder / "model.bin").touch()
    with pytest.raises(InferenceServerException, match="is not OpenVINO's own format"):
        model.load()


@WITHOUT_TORCH
def test_a_configuration_that_contradicts_the_graph_is_refused(make: Make, backend: str) -> None:
    model = make(backend, inputs=(TensorConfig("input_ids", "INT64", (-1,)), INPUTS[1]))
    WRITERS[backend](model.folder)
    with pytest.raises(InferenceServerException, match="'input_ids' is int32 in the model"):
        model.load()


@pytest.mark.parametrize("dtype", ["UINT16", "UINT32", "UINT64"])
def test_unsigned_numbers_of_each_size_come_and_go(make: Make, dtype: str) -> None:
    x, y = (TensorConfig(name, dtype, (-1,)) for name in "xy")
    model = make("onnxruntime", inputs=(x,), outputs=(y,))
    write_identity(model.folder, getattr(onnx.TensorProto, dtype))
    model.load()
    kind = np.dtype(dtype.lower())
    array = np.array([[0, 1, np.iinfo(kind).max]], kind)
    given = triton.InferInput("x", array.shape, dtype)
    given.set_data_from_numpy(array)
    answer = model.client.infer(model.name, [given]).as_numpy("y")
    assert answer.dtype == kind
    np.testing.assert_array_equal(answer, array)


def test_the_log_says_where_no_two_requests_are_joined(
    make: Make, triton_server: TritonServer
) -> None:
    x, y = (TensorConfig(name, "FP32", (-1,)) for name in "xy")
    model = make("onnxruntime", inputs=(x,), outputs=(y,))
    write_identity(model.folder, onnx.TensorProto.FLOAT)
    said = "each request runs by itself"
    before = triton_server.log.read_text().count(said)
    model.load()
    # What a stub logs is written a little later.
    wait_until(lambda: triton_server.log.read_text().count(said) == before + 1, 20)


@pytest.mark.parametrize("dtype", ["STRING", "BF16"])
def test_a_type_that_the_backend_does_not_take_is_named(make: Make, dtype: str) -> None:
    x, y = (TensorConfig(name, dtype, (-1,)) for name in "xy")
    model = make("onnxruntime", inputs=(x,), outputs=(y,))
    number = {"STRING": onnx.TensorProto.STRING, "BF16": onnx.TensorProto.BFLOAT16}[dtype]
    write_identity(model.folder, number)
    with pytest.raises(InferenceServerException, match=r"'x' is tensor.*backend takes bool, uint8"):
        model.load()


def test_inputs_and_outputs_are_completed_from_the_graph(tmp_path: Path) -> None:
    with running_triton(tmp_path, complete=True) as server:
        for backend, write in WRITERS.items():
            model = Model(server, backend)
            write(model.folder)
            model.load(f'name: "{model.name}" backend: "{backend}" max_batch_size: 4')
            config = model.client.get_model_config(model.name).config
            assert [tensor.name for tensor in config.input] == ["input_ids", "attention_mask"]
            ids = texts(5, (2, 4))[0]
            np.testing.assert_allclose(model.ask(ids), expected(ids, np.ones_like(ids)), atol=1e-5)


def test_the_platform_name_and_a_file_name_find_the_backend(make: Make) -> None:
    model = make("onnxruntime", file_name="weights.bin")
    write_onnx(model.folder, file_name="weights.bin")
    model.config.backend = ""
    model.load()
    assert model.client.get_model_config(model.name).config.backend == "onnxruntime"


@WITHOUT_TORCH
def test_no_batching_takes_full_shapes(make: Make, backend: str) -> None:
    model = make(
        backend,
        max_batch_size=0,
        inputs=tuple(TensorConfig(tensor.name, "INT32", (-1, -1)) for tensor in INPUTS),
        outputs=[TensorConfig("output", "FP32", (-1, 3))],
    )
    WRITERS[backend](model.folder)
    model.load()
    ids = texts(6, (3, 4))[0]
    np.testing.assert_allclose(model.ask(ids), expected(ids, np.ones_like(ids)), atol=1e-5)
    other = np.ones((2, 5), np.int32)
    with pytest.raises(InferenceServerException):
        model.start(ids, other).result(20)


@pytest.mark.parametrize("precision", ["bf16", "fp16", "int8"])
def test_openvino_computes_in_the_precision_that_it_is_given(make: Make, precision: str) -> None:
    """As OpenVINO does by itself with the hint for it, where this processor has it."""
    model = make("openvino_text", parameters={"precision": precision})
    path = write_openvino(model.folder)
    model.load()
    ids = texts(7, (1, 6))[0]
    answer, core = model.ask(ids), openvino.Core()
    properties = openvino_properties(
        precision, capabilities=core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"), threads=1
    )
    compiled = core.compile_model(path, "CPU", properties)
    np.testing.assert_array_equal(answer, compiled([ids, np.ones_like(ids)])[0])
    exact = expected(ids, np.ones_like(ids))
    np.testing.assert_allclose(answer, exact, atol=0.05)
    if properties["INFERENCE_PRECISION_HINT"] != "f32":
        assert not np.allclose(answer, exact, atol=1e-5)


def test_an_instance_for_a_gpu_says_that_it_computes_on_the_cpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = read_settings({})
    path = write_onnx(tmp_path)
    OnnxRuntime(path, given)
    assert not capsys.readouterr().err
    OnnxRuntime(path, replace(given, gpu=0))
    assert "computes on the CPU" in capsys.readouterr().err


def test_threads_of_onnx_runtime_sleep_between_calls() -> None:
    options = _options(read_settings({}))
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"


@pytest.mark.parametrize(
    ("backend", "parameters", "reason"),
    [
        ("openvino_text", {"precision": "fp64"}, "'precision' must be one of fp32"),
        ("onnxruntime", {"intra_op_thread_count": "many"}, "'intra_op_thread_count' must be"),
    ],
)
def test_a_bad_parameter_is_named(
    make: Make, backend: str, parameters: dict[str, str], reason: str
) -> None:
    model = make(backend, parameters=parameters)
    WRITERS[backend](model.folder)
    with pytest.raises(InferenceServerException, match=reason):
        model.load()
