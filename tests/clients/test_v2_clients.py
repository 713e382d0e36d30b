"""Clients of the Open Inference Protocol, unmodified: tritonclient, mlserver's codecs, kserve.

kserve's REST client speaks V1 too.
"""

from __future__ import annotations

import json
import urllib.request
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.clients.conftest import Endpoints
from tests.clients.environments import Environments
from transformer_serving.contract.heads import TASKS

ENVIRONMENTS = ("tritonclient", "mlserver", "kserve")
TEXTS = ["Tea.", "The train left early because of snow."]
MASKED = ["Tea is <mask>."]


class Case(NamedTuple):
    """Tensors by name, datatype and elements, and the body at /serve/NAME with the same answer."""

    task: str
    tensors: list[tuple[str, str, list[Any]]]
    body: dict[str, Any]


def texts(name: str, values: list[str]) -> tuple[str, str, list[Any]]:
    return name, "BYTES", values


LABELS = ["weather", "food, drink"]
CASES = {
    "classified": Case("text-classification", [texts("array_inputs", TEXTS)], {"inputs": TEXTS}),
    "one text": Case("text-classification", [texts("args", TEXTS[:1])], {"inputs": TEXTS[0]}),
    "all labels": Case(
        "text-classification",
        [texts("inputs", TEXTS), ("top_k", "INT64", [2])],
        {"inputs": TEXTS, "parameters": {"top_k": 2}},
    ),
    "entities": Case("token-classification", [texts("text", TEXTS)], {"inputs": TEXTS}),
    "question": Case(
        "question-answering",
        [texts("question", ["What left?"]), texts("context", TEXTS[1:])],
        {"inputs": {"question": "What left?", "context": TEXTS[1]}},
    ),
    "masks": Case("fill-mask", [texts("inputs", MASKED)], {"inputs": MASKED}),
    "zero-shot": Case(
        "zero-shot-classification",
        [
            texts("sequences", TEXTS),
            texts("candidate_labels", LABELS),
            ("multi_label", "BOOL", [True]),
        ],
        {"inputs": TEXTS, "parameters": {"candidate_labels": LABELS, "multi_label": True}},
    ),
    "tokens": Case("feature-extraction", [texts("args", TEXTS[1:])], {"inputs": TEXTS[1]}),
    "ragged": Case("feature-extraction", [texts("inputs", TEXTS)], {"inputs": TEXTS}),
    "vectors": Case("sentence-embedding", [texts("input-0", TEXTS)], {"inputs": TEXTS}),
    "alike": Case(
        "sentence-similarity",
        [texts("source_sentence", TEXTS[:1]), texts("sentences", TEXTS)],
        {"inputs": {"source_sentence": TEXTS[0], "sentences": TEXTS}},
    ),
    "ranked": Case(
        "rerank",
        [texts("query", TEXTS[:1]), texts("texts", TEXTS)],
        {"inputs": {"query": TEXTS[0], "texts": TEXTS}},
    ),
}
REFUSED = {
    "nobody": ("nobody", [texts("args", TEXTS)]),
    "no labels": ("zero-shot-classification", [texts("args", TEXTS)]),
}
STATUSES = {"nobody": "404", "no labels": "400"}


def calls(binary: bool | None) -> dict[str, Any]:
    """Each case, by itself and with the output named, and what is refused."""
    plain = {name: (case.task, case.tensors) for name, case in CASES.items()}
    named = {f"{name}, named": (*call, binary) for name, call in plain.items()}
    return {**plain, **named, **REFUSED}


def served(endpoints: Endpoints, name: str) -> list[Any]:
    """The rows of the same answer at /serve/NAME."""
    case = CASES[name]
    answer = endpoints.serve(case.task, case.body)
    return answer if isinstance(answer, list) else [answer]


def same(found: list[Any], wanted: list[Any]) -> None:
    flat = np.ravel(found[0]).tolist()
    if flat and isinstance(flat[0], float):
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_allclose(np.squeeze(one), np.squeeze(other), atol=1e-5)
    else:
        assert rounded(found) == rounded(wanted)


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: rounded(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [rounded(inner) for inner in value]
    return pytest.approx(value, abs=1e-5) if isinstance(value, float) else value


def test_every_task_is_asked() -> None:
    assert {case.task for case in CASES.values()} == set(TASKS)


@pytest.fixture(scope="module")
def triton(endpoints: Endpoints, environments: Environments) -> dict[bool, Any]:
    return {
        binary: environments.ask(
            "tritonclient", "triton_client", **endpoints.given, calls=calls(binary)
        )
        for binary in (True, False)
    }


@pytest.fixture(scope="module")
def kserve(endpoints: Endpoints, environments: Environments) -> dict[bool, Any]:
    v1 = {name: (case.task, instances(case)) for name, case in CASES.items()}
    v1["nobody"] = ("nobody", {"instances": TEXTS})
    v1["no labels"] = ("zero-shot-classification", {"instances": TEXTS})
    return {
        binary: environments.ask(
            "kserve", "kserve_client", **endpoints.given, calls=calls(binary), v1=v1
        )
        for binary in (True, False)
    }


def instances(case: Case) -> dict[str, Any]:
    """The case as a body of V1."""
    inputs = case.body["inputs"]
    rows = inputs if isinstance(inputs, list) else [inputs]
    return {**{name: case.body[name] for name in case.body if name != "inputs"}, "instances": rows}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("more", ["", ", named"])
@pytest.mark.parametrize("door", ["http", "grpc"])
@pytest.mark.parametrize("binary", [True, False])
def test_tritonclient(
    endpoints: Endpoints, triton: Any, name: str, more: str, door: str, binary: bool
) -> None:
    same(triton[binary][door][name + more], served(endpoints, name))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("more", ["", ", named"])
@pytest.mark.parametrize("door", ["rest", "grpc"])
@pytest.mark.parametrize("binary", [True, False])
def test_kserve(
    endpoints: Endpoints, kserve: Any, name: str, more: str, door: str, binary: bool
) -> None:
    same(kserve[binary][door][name + more], served(endpoints, name))


@pytest.mark.parametrize("name", CASES)
def test_kserve_v1(endpoints: Endpoints, kserve: Any, name: str) -> None:
    """What /serve/NAME answers to the task's own fields, one prediction an instance."""
    case = CASES[name]
    body = instances(case)
    rows = body.pop("instances")
    is_object = isinstance(rows[0], dict)
    answer = endpoints.serve(case.task, body | (rows[0] if is_object else {"text": rows}))
    assert kserve[True]["v1"][name] == {"predictions": [answer] if is_object else answer}


def test_numbers_have_a_shape(triton: Any) -> None:
    for door in ("http", "grpc"):
        for name in ("vectors", "tokens", "alike"):
            found = np.array(triton[True][door][f"{name}, named"])
            assert found.dtype == float
            assert len(found) == (1 if name == "tokens" else len(TEXTS))


@pytest.mark.parametrize("name", REFUSED)
def test_errors_are_the_clients_own(triton: Any, kserve: Any, name: str) -> None:
    code = {"404": "NOT_FOUND", "400": "INVALID_ARGUMENT"}[STATUSES[name]]
    over_http, over_grpc = (triton[True][door][name] for door in ("http", "grpc"))
    assert over_http["raised"] == over_grpc["raised"] == "InferenceServerException"
    assert STATUSES[name] in str(over_http["status"])
    assert code in over_grpc["status"]
    assert kserve[True]["rest"][name]["status"] == int(STATUSES[name])
    assert kserve[True]["v1"][name]["status"] == int(STATUSES[name])
    assert code in kserve[True]["grpc"][name]["message"]


@pytest.mark.parametrize("door", ["http", "grpc"])
def test_tritonclient_is_told_of_server_and_model(triton: Any, door: str) -> None:
    told = triton[True]["about"][door]
    assert (told["live"], told["ready"], told["model_ready"]) == (True, True, True)
    assert told["unknown_ready"] is False
    assert told["server"]["name"] == "transformer-serving"
    assert [row["name"] for row in told["model"]["inputs"]][:2] == ["question", "context"]
    config = told["config"] if door == "http" else told["config"]["config"]
    assert [row["name"] for row in config["input"]][:2] == ["question", "context"]


def test_kserve_is_told_of_server_and_model(kserve: Any) -> None:
    told = kserve[True]["about"]
    assert told["rest"] == told["grpc"] == [True, True, True, False]
    assert told["v1"] is True


@pytest.fixture(scope="module")
def mlserver(endpoints: Endpoints, environments: Environments) -> Any:
    codecs = {"BYTES": "str", "INT64": "np", "BOOL": "np"}
    plain = {
        name: (case.task, [(key, codecs[kind], values) for key, kind, values in case.tensors])
        for name, case in CASES.items()
    }
    more = {
        "base64": ("text-classification", [("array_inputs", "base64", TEXTS)]),
        "numbers": ("sentence-embedding", [("array_inputs", "str", TEXTS)], True),
    }
    return environments.ask("mlserver", "mlserver_client", **endpoints.given, calls=plain | more)


@pytest.mark.parametrize("name", CASES)
def test_mlservers_codecs(endpoints: Endpoints, mlserver: Any, name: str) -> None:
    same(mlserver[name], served(endpoints, name))


def test_mlservers_other_codecs(endpoints: Endpoints, mlserver: Any) -> None:
    same(mlserver["base64"], served(endpoints, "classified"))
    same(mlserver["numbers"], served(endpoints, "vectors"))


def asked(endpoints: Endpoints, task: str, inputs: dict[str, list[str]]) -> list[Any]:
    """As MLServer's documentation shows it, by plain HTTP; the rows of the answer."""
    rows = [
        {"name": name, "shape": [1], "datatype": "BYTES", "data": data}
        for name, data in inputs.items()
    ]
    request = urllib.request.Request(
        f"{endpoints.address}/v2/models/{task}/infer",
        json.dumps({"inputs": rows}).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        (output,) = json.load(answer)["outputs"]
    assert output["datatype"] == "BYTES"
    assert output["shape"] == [len(output["data"]), 1]
    return [json.loads(row) for row in output["data"]]


def test_the_bodies_of_mlservers_documentation(endpoints: Endpoints) -> None:
    body = {"question": "What left early?", "context": TEXTS[1]}
    rows = asked(endpoints, "question-answering", {name: [text] for name, text in body.items()})
    assert rows == [endpoints.serve("question-answering", {"inputs": body})]
    many = [f"Tea number {number}." for number in range(512)]
    rows = asked(endpoints, "text-classification", {"text_inputs": many})
    assert rounded(rows) == rounded(endpoints.serve("text-classification", {"inputs": many}))
