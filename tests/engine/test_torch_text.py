"""Programs of PyTorch behind a real Triton, against transformers; a fault in one; usual shapes.

What all backends of text models have in common is in test_backends.py.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from preprocess.answers import TASKS
from tests.engine.serving import FIELDS, Serving, preprocess_of, serving, write_bundle
from tests.engine.test_converted import converted, endpoint, load
from tests.engine.test_service import answers
from tests.engine.text_models import write_torch
from tests.engine.torch_models import export_small
from tests.engine.triton_server import TritonServer
from transformer_serving.desk.parity.bodies import parity_bodies
from transformer_serving.desk.parity.check import texts_of
from transformer_serving.desk.parity.distance import distance
from transformer_serving.desk.parity.reference import reference_answers
from transformer_serving.desk.source.model import open_source
from transformer_serving.engine.backends import usual_shapes
from transformer_serving.engine.backends.executor import RequestFailure
from transformer_serving.engine.backends.model_settings import ModelError, read_settings
from transformer_serving.engine.backends.torch_runtime import TorchRuntime
from transformer_serving.engine.backends.usual_shapes import Shape, UsualShapes

# The head of BERT that each task asks.
HEADS = {
    "text-classification": "ForSequenceClassification",
    "zero-shot-classification": "ForSequenceClassification",
    "token-classification": "ForTokenClassification",
    "question-answering": "ForQuestionAnswering",
    "fill-mask": "ForMaskedLM",
    "feature-extraction": "Model",
    "sentence-embedding": "Model",
    "sentence-similarity": "Model",
    "rerank": "Model",
}
ENTAILS = {
    "id2label": {0: "contradiction", 1: "neutral", 2: "entailment"},
    "label2id": {"contradiction": 0, "neutral": 1, "entailment": 2},
}
# Two requests of each task through Triton; convert has asked the others of the same program.
ASKED = 2
BY_HAND = (pytest.mark.long, pytest.mark.by_hand)
TORCH_FIELDS = dataclasses.replace(
    FIELDS, auxiliary={"backend": '"torch_text"', "max_batch_size": 8}
)


def test_every_task_has_its_head() -> None:
    assert set(HEADS) == set(TASKS)


@pytest.mark.parametrize(
    "task",
    [
        # Half a minute each: the others by hand.
        task if task == "fill-mask" else pytest.param(task, marks=BY_HAND)
        for task in HEADS
    ],
)
async def test_a_task_is_served_as_transformers_answers_it(
    triton_server: TritonServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    changes = ENTAILS if HEADS[task] == "ForSequenceClassification" else {}
    bundle = converted(tmp_path, "bert", HEADS[task], task, "torch", **changes)
    assert bundle.manifest.engine == "torch"
    source = open_source(str(tmp_path / "model"), task=task)
    tokenizer = (bundle.folder / "tokenizer.json").read_bytes()
    texts = texts_of(tokenizer, bundle.endpoint.tokens)
    bodies = parity_bodies(bundle.endpoint, texts)[:ASKED]
    wanted = reference_answers(source, bundle.endpoint, bodies)
    name = f"torch_{task.replace('-', '_')}"
    load(triton_server, bundle, name)
    async with endpoint(triton_server, bundle, name, monkeypatch) as (ask, _):
        for body, reference in zip(bodies, wanted, strict=True):
            far = distance(task, reference, await ask(dict(body)), 1e-4)
            assert far.difference < 1e-4
            assert far.agreement in (None, 1.0)
            assert far.cosine is None or far.cosine > 0.999999


@pytest.fixture
def one(triton_server: TritonServer, tmp_path: Path) -> Iterator[Serving]:
    with serving(triton_server, tmp_path) as running:
        yield running


def test_a_program_that_is_wrong_at_one_length_is_never_served(
    one: Serving, tmp_path: Path
) -> None:
    wrong = write_bundle(
        tmp_path / "wrong", 202, scale=2.0, parity=True, wrong_at=16, engine="torch"
    )
    one.control_plane.add("program", wrong, preprocess_of(202), fields=TORCH_FIELDS)
    row = one.wait_reason("program", "at 16 tokens, any batch")
    assert (row["ready"], row["proof"], row["proof_of"]) == (False, "failed", 202)
    right = write_bundle(tmp_path / "right", 101, parity=True, engine="torch")
    one.control_plane.add("program", right, preprocess_of(101), fields=TORCH_FIELDS)
    one.wait("program", ready=True, reason=None, proof="proven", proof_of=101)
    assert answers(one.server, "program", 101, 1.0)


def runtime(folder: Path) -> TorchRuntime:
    return TorchRuntime(write_torch(folder), read_settings({"max_batch_size": 8}))


def test_an_id_that_no_check_has_seen_fails_its_own_batch_alone(tmp_path: Path) -> None:
    one = runtime(tmp_path)
    ones = np.ones((1, 4), np.int32)
    good = {"input_ids": ones, "attention_mask": ones}
    bad = {"input_ids": ones * 10_000, "attention_mask": ones}
    first, second, third = one.run([good, bad, good])
    assert isinstance(second, RequestFailure)
    assert second.invalid
    assert not isinstance(first, RequestFailure)
    assert not isinstance(third, RequestFailure)
    np.testing.assert_array_equal(first["output"], third["output"])
    assert one.graph.id_limits == {"input_ids": 50}


def test_a_graph_that_torch_must_not_read_is_no_model(tmp_path: Path) -> None:
    path = export_small(tmp_path)
    path.write_text(path.read_text().replace("torch.ops.aten.embedding.default", "torch.load"))
    with pytest.raises(ModelError, match=r"the operator 'torch\.load'.*convert again"):
        TorchRuntime(path, read_settings({}))


def test_fp32_is_not_tf32_where_the_environment_turns_that_on() -> None:
    """As NVIDIA's containers of PyTorch do."""
    code = (
        "import torch; print(torch.backends.cuda.matmul.allow_tf32)\n"
        "from transformer_serving.engine.backends.torch_cuda import fp32_as_it_says\n"
        "fp32_as_it_says()\n"
        "print(torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)"
    )
    environment = {**os.environ, "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"}
    asked = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert asked.stdout.split() == ["True", "False", "False"]


def shape(texts: int, tokens: int) -> Shape:
    return ((texts, tokens), (texts, tokens))


def test_a_shape_is_recorded_once_when_it_has_come_often() -> None:
    shapes = UsualShapes()
    asked = [shapes.record(shape(1, 16)) for _ in range(usual_shapes.TIMES + 3)]
    assert asked.count(True) == 1
    assert asked[usual_shapes.TIMES - 1]
    long = shape(usual_shapes.MOST_TOKENS // 64 + 1, 64)
    assert not any(shapes.record(long) for _ in range(9))


def test_shapes_are_recorded_up_to_a_number_and_not_after_one_that_cannot_be() -> None:
    shapes = UsualShapes()
    many = [shape(texts, tokens) for texts in range(1, 33) for tokens in (4, 8, 16, 32)]
    recorded = [one for _ in range(usual_shapes.TIMES) for one in many if shapes.record(one)]
    assert len(recorded) == len(set(recorded)) == usual_shapes.MOST
    given_up = UsualShapes()
    given_up.give_up()
    assert not any(given_up.record(shape(1, 16)) for _ in range(9))
