"""The ensemble's tokenizer gives the engine what preprocess gives it, or refuses what it refuses.

Without a Triton: tests/deploy/test_plain_triton.py asks it in one, under numpy 1.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from preprocess.tensors import Tensor
from tests.loaded_file import loaded_file
from tests.stack.small_bundles import Parts, write_small
from transformer_serving.contract.endpoint import Endpoint
from transformer_serving.contract.errors import ServingError
from transformer_serving.contract.meanings import Embedding
from transformer_serving.desk.bundle.folder import Bundle
from transformer_serving.desk.deploy.plain_triton import write_repository
from transformer_serving.desk.parity.local_endpoint import LocalEndpoint
from transformer_serving.engine import tokenizer_model
from transformer_serving.engine.model_config import data_type, from_text

PROMPTS = {"query": "rain ", "passage": "fog kettle "}
_TYPES = {data_type(name): f"TYPE_{name}" for name in ("INT32", "INT64")}


@dataclass
class Named:
    """A tensor as Triton hands it to a model and takes it."""

    name: str
    array: Any

    def as_numpy(self) -> Any:
        return self.array


@dataclass
class Response:
    output_tensors: Sequence[Named]
    error: str | None = None


class Refused(str):
    INVALID_ARG = 3

    def __new__(cls, message: str, _code: int) -> Refused:
        return super().__new__(cls, message)


@pytest.fixture
def model_module(monkeypatch: pytest.MonkeyPatch) -> Any:
    """model.py beside what Triton's stub gives it."""
    stub: Any = ModuleType("triton_python_backend_utils")
    stub.Tensor, stub.InferenceResponse, stub.TritonError = Named, Response, Refused
    stub.TritonModelException = RuntimeError
    stub.get_input_tensor_by_name = lambda request, name: request[name]
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", stub)
    monkeypatch.setattr(np, "__version__", "1.26.4")
    path = Path(tokenizer_model.__file__).with_name("model.py")
    return loaded_file(path, "ensemble_tokenizer")


def embedder(folder: Path, *, task: str = "sentence-embedding", default: str | None) -> Bundle:
    bundle = write_small(folder, Parts(strange="unknown"))
    embedding = Embedding("engine", False, 3, "cosine", PROMPTS, default)
    tokens = replace(bundle.endpoint.tokens, known_ids=16)
    endpoint = replace(
        bundle.endpoint, task=task, head="vector", tokens=tokens, embedding=embedding,
        classification=None,
    )  # fmt: skip
    return replace(bundle, endpoint=endpoint)


def asked(module: Any, bundle: Bundle, models: Path, texts: list[str]) -> Response:
    """What the model that is laid out answers to one request of the texts."""
    write_repository(bundle, models, "m", ensemble=True)
    config = from_text((models / "m_tokenizer" / "config.pbtxt").read_text())
    told = {
        "output": [{"name": one.name, "data_type": _TYPES[one.data_type]} for one in config.output],
        "parameters": {
            name: {"string_value": one.string_value} for name, one in config.parameters.items()
        },
    }
    model = module.TritonPythonModel()
    model.initialize(
        {
            "model_config": json.dumps(told),
            "model_repository": str(models / "m_tokenizer"),
            "model_version": str(bundle.manifest.bundle_version),
        }
    )
    rows = np.array([[text.encode()] for text in texts], dtype=object)
    (response,) = model.execute([{"text": Named("text", rows)}])
    assert isinstance(response, Response)
    return response


def by_preprocess(endpoint: Endpoint, folder: Path, texts: list[str]) -> dict[str, Any]:
    """The tensors of one call of the endpoint's own code with the same texts."""
    called: dict[str, Any] = {}

    def call(tensors: Sequence[Tensor]) -> list[Any]:
        called.update({one.name: one.array for one in tensors})
        return [np.ones((len(texts), 3), np.float32)]

    local = LocalEndpoint(endpoint, (folder / "tokenizer.json").read_bytes(), call)
    local.run(local.work({"text": texts}).encoded)
    return called


@pytest.mark.parametrize("default", [None, "query", "passage"])
def test_the_default_prompt_stands_before_each_text(
    model_module: Any, tmp_path: Path, default: str | None
) -> None:
    bundle = embedder(tmp_path / "bundle", default=default)
    texts = ["tea lamp", "river stone wind garden tea", ""]
    response = asked(model_module, bundle, tmp_path / "models", texts)
    assert response.error is None
    wanted = by_preprocess(bundle.endpoint, bundle.folder, texts)
    got = {one.name: one.array for one in response.output_tensors}
    assert got.keys() == wanted.keys()
    for name, array in wanted.items():
        np.testing.assert_array_equal(got[name], array)


def test_a_reranker_of_vectors_without_prompts_of_its_own_puts_none(
    model_module: Any, tmp_path: Path
) -> None:
    bundle = embedder(tmp_path / "bundle", task="rerank", default="passage")
    assert bundle.endpoint.embedding is not None
    prompts = {"passage": PROMPTS["passage"]}
    embedding = replace(bundle.endpoint.embedding, prompts=prompts)
    bundle = replace(bundle, endpoint=replace(bundle.endpoint, embedding=embedding))
    response = asked(model_module, bundle, tmp_path / "models", ["tea lamp"])
    ids = next(one.array for one in response.output_tensors if one.name == "input_ids")
    # The special tokens and two words.
    assert np.count_nonzero(ids) == 4


def test_a_token_that_the_model_has_no_row_for_is_refused_as_by_preprocess(
    model_module: Any, tmp_path: Path
) -> None:
    bundle = embedder(tmp_path / "bundle", default=None)
    response = asked(model_module, bundle, tmp_path / "models", ["tea", "tea unknown"])
    assert response.error == "a text has a token beyond the 16 that the model knows; leave it out"
    assert not response.output_tensors
    with pytest.raises(ServingError):
        by_preprocess(bundle.endpoint, bundle.folder, ["tea unknown"])
