"""A bundle for vLLM in the controller: laid out with its path, asked in the backend's tensors,
proven or refused, served. An engine with those tensors answers, transformers on the CPU: behind a
gRPC server of Python, and with `make check-vllm` as the backend `vllm` of a real Triton.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from preprocess.triton.clients import close_clients
from tests.engine.serving import Serving, serving
from tests.engine.test_language_model_proof import add, copied
from tests.engine.triton_server import TritonServer
from tests.language_models import save_language_model
from tests.text_engine import Asker
from tests.vllm_engine import CHECK, serving_here, stand_in_triton, with_numpy_1
from tests.vllm_engine.transformers_engine import TransformersEngine
from transformer_serving.contract.heads import GENERATION
from transformer_serving.desk.bundle.folder import Bundle
from transformer_serving.desk.conversion.encoder import ConvertRequest, convert
from transformer_serving.engine.controller.files.repository import Repository
from transformer_serving.engine.controller.triton.streams import Streams
from transformer_serving.engine.model_config import ModelConfig, from_text
from transformer_serving.engine.proof.greedy import Asked, Continued, prove_greedy
from transformer_serving.engine.proof.greedy_set import GreedySet, read_greedy_set

pytestmark = pytest.mark.slow
needs_numpy_1 = pytest.mark.skipif(
    CHECK not in os.environ, reason="needs a Triton with numpy 1: make check-vllm"
)
Generate = Callable[[Sequence[Asked]], Sequence[Continued]]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("llama")
    model = save_language_model("llama", folder / "model")
    request = ConvertRequest(str(model), task=GENERATION, engine="vllm", max_length=256)
    return convert(request, folder / "bundle", lambda step, detail: None).bundle


def parity_set(bundle: Bundle) -> GreedySet:
    return read_greedy_set((bundle.model_folder / "parity.json").read_bytes())


def engine_of(bundle: Bundle, folder: Path) -> TransformersEngine:
    """Started by the file that Triton would read."""
    repository = Repository(folder)
    token = repository.stage("writer", bundle.model_folder, "Other")
    repository.install("writer", {7: token}, "")
    return TransformersEngine(json.loads((folder / "writer" / "7" / "model.json").read_text()))


def config_of(bundle: Bundle) -> ModelConfig:
    config = from_text((bundle.model_folder / "config.pbtxt").read_text("utf-8"))
    config.name = "writer"
    return config


@pytest.fixture(scope="module")
def generate(bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Generate]:
    engine = engine_of(bundle, tmp_path_factory.mktemp("models"))
    config = config_of(bundle)
    with serving_here(engine.messages) as server:
        streams = Streams(server.address)
        yield lambda asked: streams.generate(config, "7", asked, 60)


def test_a_version_is_laid_out_with_the_path_of_its_files(bundle: Bundle, tmp_path: Path) -> None:
    repository = Repository(tmp_path / "models")
    token = repository.stage("writer", bundle.model_folder, "Other")
    for model in ("writer", ".proof"):
        repository.install(model, {7: token}, "", files_of="writer")
        [laid] = (repository.root / model / "7").iterdir()
        arguments = json.loads(laid.read_text())
        assert Path(arguments["model"]) == repository.files("writer", token).absolute()
        assert (Path(arguments["model"]) / "model.safetensors").is_file()
    # What was verified stays as it was, so that it is verified again and compared.
    again = repository.stage("writer", bundle.model_folder, "Other")
    assert repository.alike("writer", token, again)
    for staged in (token, again):
        repository.release(staged)
    repository.keep_only("writer", [token])
    assert (repository.root / "writer" / "7" / "model.json").is_file()
    repository.keep_only("writer", [])
    assert list((repository.root / ".versions" / "writer").iterdir()) == []


def test_a_hand_made_model_json_is_left_as_it_is(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "model.json").write_text('{"model": "facebook/opt-125m"}')
    repository = Repository(tmp_path / "models")
    token = repository.stage("writer", source, "Other")
    repository.install("writer", {1: token}, "")
    laid = repository.root / "writer" / "1" / "model.json"
    assert json.loads(laid.read_text()) == {"model": "facebook/opt-125m"}


def test_an_engine_that_writes_as_the_reference_does_is_proven(
    bundle: Bundle, generate: Generate
) -> None:
    """In bf16, so that some tokens may be others, and the proof goes on from the reference's."""
    found = prove_greedy(parity_set(bundle), generate)
    assert found.proof.fault is None
    assert found.equal / found.tokens >= 0.95
    assert 0 < found.proof.largest_difference < 0.1


def test_one_that_writes_otherwise_is_not(bundle: Bundle, generate: Generate) -> None:
    known = parity_set(bundle)
    row = known.rows[3]
    wrong = (row.continuation[0] + 1) % 300
    changed = replace(
        row, continuation=(wrong, *row.continuation[1:]), margins=(9.0,) * len(row.margins)
    )
    other = replace(known, rows=(*known.rows[:3], changed, *known.rows[4:]))
    assert "another token where the best was" in str(prove_greedy(other, generate).proof.fault)


def test_an_engine_with_another_tokenizer_is_found_out(bundle: Bundle, generate: Generate) -> None:
    known = parity_set(bundle)
    rows = tuple(
        replace(row, texts=tuple(text and f"{text} more" for text in row.texts))
        for row in known.rows
    )
    fault = prove_greedy(replace(known, rows=rows), generate).proof.fault
    assert "its tokenizer is another one than the bundle's" in str(fault)


def test_an_engine_that_fails_is_a_fault(bundle: Bundle, generate: Generate) -> None:
    row = parity_set(bundle).rows[0]
    far = replace(row, texts=(" word" * 400, *row.texts[1:]))
    fault = prove_greedy(replace(parity_set(bundle), rows=(far,)), generate).proof.fault
    assert "the engine failed" in str(fault)
    assert "Error generating stream" in str(fault)


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Serving]:
    with (
        stand_in_triton(tmp_path / "t", with_numpy_1()) as server,
        serving(server, tmp_path) as running,
    ):
        yield running


def asker(bundle: Bundle, server: TritonServer, monkeypatch: pytest.MonkeyPatch) -> Asker:
    monkeypatch.setenv("TRANSFORMER_SERVING_TRITON_GRPC", server.grpc)
    fields = json.loads((bundle.folder / "endpoint.json").read_text())
    tokens = (bundle.folder / "tokenizer.json").read_bytes()
    return Asker("writer", fields, lambda: tokens)


@needs_numpy_1
async def test_it_is_proven_by_triton_then_served_whole_and_streamed(
    one: Serving, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(one, bundle, bundle.model_folder, "writer")
    row = one.wait(
        "writer", 120, ready=True, proof="proven", proof_of=bundle.manifest.bundle_version
    )
    assert 0 < row["largest_difference"] < 0.1
    endpoint = asker(bundle, one.server, monkeypatch)
    golden = bundle.manifest.golden
    answer = await endpoint.answer(golden.request)
    assert answer["text"] == golden.answer["text"]
    events: list[Any] = await endpoint.events({**golden.request, "stream": True})
    pieces = "".join(event["text"] for event in events[:-1])
    assert golden.request["text"] + pieces == golden.answer["text"]
    without_end = {"do_sample": False, "max_new_tokens": 4, "ignore_eos": True}
    body = {"text": golden.request["text"], "parameters": without_end}
    end = (await endpoint.events({**body, "stream": True}))[-2]
    assert (end["finish_reason"], end["generated_tokens"]) == ("length", 4)
    close_clients()


@needs_numpy_1
def test_triton_is_not_given_one_that_writes_otherwise(
    one: Serving, bundle: Bundle, tmp_path: Path
) -> None:
    add(one, bundle, copied(bundle, tmp_path), "writer")
    row = one.wait_reason("writer", "nothing is served", 120)
    assert row["proof"] == "failed"
    assert "another token" in row["reason"]
    assert not one.server.client().is_model_ready("writer")


@needs_numpy_1
def test_an_older_triton_that_says_so_is_not_asked(
    one: Serving, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformer_serving.engine.controller.control_plane import verification

    monkeypatch.setenv("TRITON_SERVER_VERSION", "2.51.0")
    verification._server.cache_clear()
    try:
        add(one, bundle, bundle.model_folder, "writer")
        row = one.wait_reason("writer", "needs Triton 2.53.0 or newer (release 24.12)")
        assert "-f compose/vllm.yaml" in row["reason"]
    finally:
        verification._server.cache_clear()
