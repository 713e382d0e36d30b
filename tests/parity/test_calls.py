"""Parity's calls are those of an endpoint: none is larger, and those that can be are mixed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from preprocess.tensors import Tensor
from tests.tiny_models import save_classifier
from transformer_serving.contract.endpoint import Endpoint, OutputTensor
from transformer_serving.desk.builders.call_sizes import NARROW
from transformer_serving.desk.export.endpoint_json import LIMITS, endpoint_of, tokens_of
from transformer_serving.desk.export.onnx import GraphTensors
from transformer_serving.desk.parity.bodies import parity_bodies
from transformer_serving.desk.parity.calls import answers
from transformer_serving.desk.parity.check import texts_of
from transformer_serving.desk.parity.local_endpoint import LocalEndpoint
from transformer_serving.desk.source.model import open_source

LONGEST = 8192
GRAPH = GraphTensors(
    ("input_ids", "token_type_ids", "attention_mask"), (OutputTensor("output", "FP32", (3,)),)
)


class Engine:
    """It answers a text by its tokens' number, and keeps how many each row of a call had."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, list[int]]] = []

    def __call__(self, tensors: Sequence[Tensor]) -> list[Any]:
        mask = next(one.array for one in tensors if one.name == "attention_mask")
        counts = mask.sum(axis=1)
        self.calls.append((mask.shape[1], counts.tolist()))
        return [np.stack([counts, counts % 7, counts % 3], axis=1).astype(np.float32)]


@pytest.fixture(scope="module")
def long_model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Endpoint, bytes]:
    folder = tmp_path_factory.mktemp("model")
    source = open_source(str(save_classifier(folder)))
    # As of a model that reads so much: no weights are asked here.
    buckets = tuple(size for size in NARROW if size <= LONGEST)
    tokens = replace(tokens_of(source, None, ()), max_length=LONGEST, buckets=buckets)
    return endpoint_of(source, GRAPH, tokens, LIMITS), source.tokenizer.content


@pytest.mark.parametrize(("most_tokens", "most_texts"), [(1024, 64), (1024, 3), (None, 64)])
def test_no_call_is_larger_than_an_endpoints_and_those_that_may_be_are_mixed(
    long_model: tuple[Endpoint, bytes], most_tokens: int | None, most_texts: int
) -> None:
    endpoint, content = long_model
    limits = replace(LIMITS, max_batch_size=most_texts, max_call_tokens=most_tokens)
    engine = Engine()
    local = LocalEndpoint(replace(endpoint, limits=limits), content, engine)
    bodies = parity_bodies(endpoint, texts_of(content, endpoint.tokens))
    works = [local.work(body) for body in bodies]
    found = list(answers(local, works))
    assert [at for at, _, batch in found if batch == 1] == list(range(len(works)))
    most = most_tokens or LONGEST * most_texts
    for length, rows in engine.calls:
        assert len(rows) <= max(1, min(most_texts, most // length))
    shared = [rows for _, rows in engine.calls if len(rows) > 1]
    assert all(len(set(rows)) > 1 for rows in shared)
    # Each that a call has room for beside another one; the last may find none.
    room = most // 2
    tokens = [len(text.ids) for work in works for text in work.encoded]
    assert len([count for count in tokens if count <= room]) - sum(map(len, shared)) in (0, 1)
    assert max(map(len, shared)) == min(8, most_texts)
    for at, answer, _ in found:
        assert answer == local.render(local.run(works[at].encoded), works[at])
