"""Whether to sample, as the servers whose dialects are spoken would have it."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from preprocess.dialects.operation import Asked
from preprocess.generation.dialects import WAYS
from preprocess.generation.request import TextTask, read_wanted
from tests.text_engine import PROMPT, fields
from transformer_serving.contract.endpoint import Endpoint, read_endpoint
from transformer_serving.contract.errors import ServingError
from transformer_serving.contract.generation import LEAST_SAMPLING, Sampling

TGI = ("tgi.root", "tgi.generate", "tgi.generate_stream", "hf.inference")
GENERATE = ("v2.generate", "v2.generate_stream")
OPENAI = ("openai.completions", "openai.chat")


def endpoint_of(*, samples: bool, engine: str = "openvino") -> Endpoint:
    """One whose model samples by itself, or takes the likeliest token."""
    usual = {**fields()["generation"]["sampling"], "do_sample": samples}
    return read_endpoint(json.dumps(fields(sampling=usual, engine=engine)))


def sampling(
    operation: str, body: dict[str, Any], *, samples: bool = False, engine: str = "openvino"
) -> Sampling:
    """Of a body in that dialect."""
    return sampling_of(endpoint_of(samples=samples, engine=engine), operation, body)


def sampling_of(endpoint: Endpoint, operation: str, body: dict[str, Any]) -> Sampling:
    assert endpoint.generation is not None
    task = TextTask(endpoint.generation)
    own = WAYS[operation].read(Asked(body, b"", task, endpoint))
    return read_wanted(own, task, endpoint.limits).parameters.sampling


def body_of(operation: str) -> dict[str, Any]:
    """A prompt, of OpenAI's or of Triton's extension."""
    if operation == "openai.chat":
        return {"messages": [{"role": "user", "content": PROMPT}]}
    return {"prompt" if operation in OPENAI else "text_input": PROMPT}


def of_tgi(operation: str, parameters: dict[str, Any], *, samples: bool = False) -> Sampling:
    return sampling(operation, {"inputs": PROMPT, "parameters": parameters}, samples=samples)


@pytest.mark.parametrize("operation", TGI)
@pytest.mark.parametrize("samples", [False, True])
@pytest.mark.parametrize(
    ("parameters", "wanted"),
    [
        ({"temperature": 0.8}, True),
        ({"temperature": 0.8, "do_sample": False}, True),
        ({"temperature": 0.8, "do_sample": None}, True),
        ({"temperature": 1.0}, False),
        ({"temperature": 1, "do_sample": True}, True),
        ({"top_k": 5}, True),
        ({"top_k": 0}, False),
        ({"top_p": 0.95, "do_sample": False}, True),
        ({"top_p": 1, "temperature": 1}, False),
        ({"do_sample": True}, True),
        ({"do_sample": False}, False),
        ({"typical_p": None, "temperature": None}, None),
        ({"seed": 3}, None),
    ],
)
def test_tgi_samples_where_a_value_changes_anything(
    operation: str, samples: bool, parameters: dict[str, Any], wanted: bool | None
) -> None:
    """None: as the model does."""
    found = of_tgi(operation, parameters, samples=samples)
    assert found.do_sample is (samples if wanted is None else wanted)


OWN = Sampling(True, 0.6, 0.8, 20, 1.1, min_p=0.05)


@pytest.mark.parametrize("operation", TGI)
@pytest.mark.parametrize(
    ("parameters", "wanted"),
    [
        ({"do_sample": False}, Sampling(False, 1.0, 1.0, 0, 1.0)),
        ({"do_sample": True}, Sampling(True, 1.0, 1.0, 0, 1.0)),
        ({"temperature": 0.9}, Sampling(True, 0.9, 1.0, 0, 1.0)),
        ({"temperature": 1.0}, Sampling(False, 1.0, 1.0, 0, 1.0)),
        ({"top_k": 5, "repetition_penalty": 1.3}, Sampling(True, 1.0, 1.0, 5, 1.3)),
        ({"top_p": 0.5, "do_sample": False}, Sampling(True, 1.0, 0.5, 0, 1.0)),
        ({"typical_p": 1, "seed": 3}, Sampling(False, 1.0, 1.0, 0, 1.0)),
        ({"repetition_penalty": 1.3}, dataclasses.replace(OWN, repetition_penalty=1.3)),
        ({"typical_p": None, "temperature": None, "seed": 3}, OWN),
        ({}, OWN),
        (None, OWN),
    ],
)
def test_tgi_has_none_of_the_models_values_where_sampling_is_spoken_of(
    operation: str, parameters: dict[str, Any] | None, wanted: Sampling
) -> None:
    usual = dataclasses.asdict(OWN)
    endpoint = read_endpoint(json.dumps(fields(sampling=usual)))
    body = {"inputs": PROMPT, "parameters": parameters}
    assert sampling_of(endpoint, operation, body) == wanted


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        ({"temperature": 0.8, "do_sample": 0}, "do_sample"),
        ({"temperature": "0.8"}, "temperature"),
        ({"top_p": "0.8"}, "top_p"),
        ({"top_p": [[]]}, "top_p"),
        ({"top_k": -1}, "top_k"),
    ],
)
def test_what_is_no_number_stays_to_be_refused(parameters: dict[str, Any], field: str) -> None:
    with pytest.raises(ServingError) as refusal:
        of_tgi("tgi.generate", parameters)
    assert (refusal.value.kind.code, refusal.value.field) == ("invalid_field", field)


@pytest.mark.parametrize("operation", GENERATE)
@pytest.mark.parametrize("samples", [False, True])
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize(
    ("parameters", "wanted"),
    [
        ({"temperature": 0.8}, True),
        ({"temperature": 1.0}, True),
        ({"top_p": 0.9}, True),
        ({"top_k": 5}, True),
        ({"min_p": 0.1}, True),
        ({"temperature": 0}, False),
        ({"temperature": 0, "min_p": 0.1}, False),
        ({"temperature": 0.0, "top_p": 0.9}, False),
        ({"temperature": 0, "top_p": 0}, False),
        ({"temperature": 0.8, "do_sample": False}, False),
        ({"random_seed": 3}, None),
        ({"temperature": None}, None),
    ],
)
def test_generate_samples_without_do_sample(
    operation: str, samples: bool, inside: bool, parameters: dict[str, Any], wanted: bool | None
) -> None:
    """As its clients mean it, which have no such parameter to send."""
    body = {"text_input": PROMPT, **({"parameters": parameters} if inside else parameters)}
    found = sampling(operation, body, samples=samples)
    assert found.do_sample is (samples if wanted is None else wanted)


@pytest.mark.parametrize("operation", [*OPENAI, *GENERATE])
def test_a_temperature_that_engines_round_to_0_is_one(operation: str) -> None:
    """Where 0 is allowed nothing just above it is refused."""
    for temperature in (0, 0.0, 5e-324, LEAST_SAMPLING):
        found = sampling(operation, {**body_of(operation), "temperature": temperature})
        assert not found.do_sample
    above = sampling(operation, {**body_of(operation), "temperature": 2 * LEAST_SAMPLING})
    assert above.do_sample
    with pytest.raises(ServingError, match="must be a number above"):
        sampling(operation, {**body_of(operation), "temperature": -LEAST_SAMPLING})


@pytest.mark.parametrize(
    ("parameters", "wanted"),
    [
        ({"temperature": 0.9}, True),
        ({"top_k": 5}, True),
        ({"top_p": 0.9, "do_sample": None}, True),
        ({"min_p": 0.1}, True),
        ({"temperature": 0.9, "do_sample": False}, False),
        ({"temperature": None, "repetition_penalty": 1.2}, False),
        ({}, False),
    ],
)
def test_our_own_form_samples_where_a_value_of_it_is_sent(
    parameters: dict[str, Any], wanted: bool
) -> None:
    for field in ("text", "inputs"):
        found = sampling("ours", {field: PROMPT, "parameters": parameters})
        assert found.do_sample is wanted
    assert sampling("ours", {"text": PROMPT}, samples=True).do_sample
    tensors = [{"name": "text", "shape": [1], "datatype": "BYTES", "data": [PROMPT]}]
    found = sampling("v2.infer", {"inputs": tensors, "parameters": parameters})
    assert found.do_sample is wanted


@pytest.mark.parametrize("operation", ["ours", "tgi.generate", *OPENAI, *GENERATE])
def test_penalties_and_a_least_number_are_taken_by_their_names(operation: str) -> None:
    named = {"frequency_penalty": -2, "presence_penalty": 0.5, "min_tokens": 4}
    wanted = {"frequency_penalty": -2.0, "presence_penalty": 0.5, "min_new_tokens": 4}
    if operation == "ours":
        named["min_new_tokens"] = named.pop("min_tokens")
    if operation.startswith("tgi"):
        # Its router knows of the first alone.
        named = {"frequency_penalty": 1.5}
        wanted = {"frequency_penalty": 1.5, "presence_penalty": 0.0, "min_new_tokens": 0}
    found = sampling(operation, told(operation, named), engine="vllm")
    assert {name: getattr(found, name) for name in wanted} == wanted


def told(operation: str, parameters: dict[str, Any]) -> dict[str, Any]:
    """A body with them, where each dialect has its parameters."""
    if operation in ("ours", *TGI):
        prompt = "text" if operation == "ours" else "inputs"
        return {prompt: PROMPT, "parameters": parameters}
    return {**body_of(operation), **parameters}


@pytest.mark.parametrize(
    ("operation", "name"),
    [
        *((one, "frequency_penalty") for one in ("ours", *TGI, *OPENAI, *GENERATE)),
        # TGI's router knows of the first alone.
        *((one, "presence_penalty") for one in ("ours", *OPENAI, *GENERATE)),
    ],
)
def test_openvinos_penalties_are_refused_with_what_to_send(operation: str, name: str) -> None:
    for nothing in (0, 0.0, None):
        assert getattr(sampling(operation, told(operation, {name: nothing})), name) == 0
    for value in (0.5, -2):
        with pytest.raises(ServingError, match="send repetition_penalty .* --engine vllm") as got:
            sampling(operation, told(operation, {name: value}))
        assert (got.value.kind.status, got.value.field) == (422, name)
    # What no engine has is the caller's as ever.
    with pytest.raises(ServingError) as got:
        sampling(operation, told(operation, {name: 2.5}))
    assert (got.value.kind.status, got.value.field) == (400, name)


@pytest.mark.parametrize("engine", ["openvino", "vllm"])
@pytest.mark.parametrize("operation", ["ours", *OPENAI, *GENERATE])
def test_min_p_is_taken_by_its_name(operation: str, engine: str) -> None:
    for value in (0, 0.05, 1):
        found = sampling(operation, told(operation, {"min_p": value}), engine=engine)
        assert (found.do_sample, found.min_p) == (True, value)
    for wrong in (-0.1, 1.1, "0.1", True):
        with pytest.raises(ServingError) as refusal:
            sampling(operation, told(operation, {"min_p": wrong}), engine=engine)
        assert (refusal.value.kind.code, refusal.value.field) == ("invalid_field", "min_p")


@pytest.mark.parametrize("operation", TGI)
def test_tgi_has_no_min_p(operation: str) -> None:
    with pytest.raises(ServingError, match="an unknown parameter"):
        of_tgi(operation, {"min_p": 0.1})


@pytest.mark.parametrize("operation", TGI)
@pytest.mark.parametrize(("parameters", "least"), [({"do_sample": True}, 0), ({}, 6)])
def test_tgi_has_the_models_least_number_where_nothing_is_said(
    operation: str, parameters: dict[str, Any], least: int
) -> None:
    usual = dataclasses.asdict(dataclasses.replace(OWN, min_new_tokens=6))
    endpoint = read_endpoint(json.dumps(fields(sampling=usual)))
    body = {"inputs": PROMPT, "parameters": parameters}
    assert sampling_of(endpoint, operation, body).min_new_tokens == least


@pytest.mark.parametrize("operation", GENERATE)
def test_generate_has_the_least_number_by_our_name_too(operation: str) -> None:
    beside = {**body_of(operation), "min_new_tokens": 3}
    inside = {**body_of(operation), "parameters": {"min_new_tokens": 3}}
    assert [sampling(operation, body).min_new_tokens for body in (beside, inside)] == [3, 3]


def test_false_is_no_temperature() -> None:
    with pytest.raises(ServingError) as refusal:
        sampling("v2.generate", {"text_input": PROMPT, "temperature": False})
    assert refusal.value.field == "temperature"


@pytest.mark.parametrize("unsaid", [False, True])
@pytest.mark.parametrize("operation", [*OPENAI, *GENERATE])
def test_all_tokens_are_sampled_from_where_only_transformers_says_fifty(
    operation: str, unsaid: bool
) -> None:
    """As OpenAI and vLLM do, which have the model's `top_k` where its file has one."""
    usual = {**fields()["generation"]["sampling"], "top_k": 50}
    endpoint = read_endpoint(json.dumps(fields(sampling=usual, top_k_is_unsaid=unsaid)))
    body = {**body_of(operation), "temperature": 0.9}
    assert sampling_of(endpoint, operation, body) == Sampling(
        True, 0.9, 1.0, 0 if unsaid else 50, 1.0
    )
    assert sampling_of(endpoint, operation, {**body, "top_k": 7}).top_k == 7


@pytest.mark.parametrize("operation", [*OPENAI, *GENERATE])
def test_vllms_minus_one_leaves_every_token_in(operation: str) -> None:
    body = body_of(operation)
    found = sampling(operation, {**body, "top_k": -1})
    assert (found.top_k, found.do_sample) == (0, True)
    for wrong in (-2, -1.5, "all"):
        with pytest.raises(ServingError) as refusal:
            sampling(operation, {**body, "top_k": wrong})
        assert refusal.value.field == "top_k"
