from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from preprocess.triton.errors import error_of
from transformer_serving.contract.endpoint import read_endpoint
from transformer_serving.contract.errors import ContractError
from transformer_serving.contract.generation import (
    LEAST_SAMPLING,
    MAX_SEED,
    MOST_PENALTY,
    Finish,
    Options,
    Sampling,
    read_options,
)

PLAIN = Sampling(True, 1.0, 1.0, 0, 1.0)
OF_BEFORE = {"max_new_tokens", "eos_ids", "sampling", "seed", "logprobs", "first"}
MORE = ("frequency_penalty", "presence_penalty", "min_new_tokens", "min_p")


def test_what_is_written_is_read_back(generation_fields: dict[str, Any]) -> None:
    endpoint = read_endpoint(json.dumps(generation_fields))
    assert endpoint.generation is not None
    assert endpoint.generation.eos_ids == (3,)
    assert read_endpoint(endpoint.to_json()) == endpoint


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("engine", "torch", "'engine' must be one of openvino, vllm"),
        ("max_new_tokens", 64, "'max_new_tokens' must be from 1 to 63, got 64"),
        ("default_new_tokens", 33, "'default_new_tokens' must be from 1 to 32, got 33"),
        ("eos_ids", [80], "'eos_ids' must be a list of at most 256 token ids from 0 to 79"),
        ("eos_ids", [True], "'eos_ids' must be"),
        ("special_tokens", {"bos_token": 1}, "'special_tokens' must hold texts by name"),
        ("chat_template", 7, "'chat_template' must be str, got a number"),
    ],
)
def test_a_field_out_of_its_range_is_named(
    generation_fields: dict[str, Any], field: str, value: Any, told: str
) -> None:
    generation_fields["generation"][field] = value
    with pytest.raises(ContractError) as error:
        read_endpoint(json.dumps(generation_fields))
    assert told in str(error.value)


def test_generation_is_asked_for_by_its_task_only(
    endpoint_fields: dict[str, Any], generation_fields: dict[str, Any]
) -> None:
    del generation_fields["generation"]
    with pytest.raises(ContractError, match="field 'generation' is missing"):
        read_endpoint(json.dumps(generation_fields))
    assert read_endpoint(json.dumps(endpoint_fields)).generation is None


SAMPLINGS = st.builds(
    Sampling,
    do_sample=st.booleans(),
    temperature=st.floats(LEAST_SAMPLING, 100, exclude_min=True),
    top_p=st.floats(LEAST_SAMPLING, 1, exclude_min=True),
    top_k=st.integers(0, 2**31 - 1),
    repetition_penalty=st.floats(LEAST_SAMPLING, 100, exclude_min=True),
    frequency_penalty=st.floats(-MOST_PENALTY, MOST_PENALTY),
    presence_penalty=st.floats(-MOST_PENALTY, MOST_PENALTY),
    min_new_tokens=st.integers(0, 10_000_000),
    min_p=st.floats(0, 1),
)


@given(
    st.builds(
        Options,
        max_new_tokens=st.integers(1, 10_000_000),
        eos_ids=st.lists(st.integers(0, 2**31 - 1), max_size=256).map(tuple),
        sampling=SAMPLINGS,
        seed=st.integers(0, MAX_SEED),
        logprobs=st.booleans(),
        first=st.booleans(),
    )
)
def test_options_cross_the_wire_whole(options: Options) -> None:
    assert read_options(options.to_json()) == options


@pytest.mark.parametrize("name", MORE)
def test_what_an_engine_of_before_would_pass_over_it_refuses(name: str) -> None:
    """It looks for the sampling where it is of all other requests. Those that had it elsewhere did
    so before there was a min_p."""
    usual = Sampling(True, 1.0, 1.0, 0, 1.0)
    changed: dict[str, Any] = {name: 1}
    plain, more = (Options(4, (), one, 0) for one in (usual, replace(usual, **changed)))
    assert "sampling" in json.loads(plain.to_json())
    assert read_options(more.to_json()) == more
    before = OF_BEFORE | ({"full_sampling"} if name == "min_p" else set())
    known = {key: told for key, told in json.loads(more.to_json()).items() if key in before}
    with pytest.raises(ContractError) as refusal:
        read_options(json.dumps(known).encode())
    told = error_of("INTERNAL", f"INVALID_ARG: {refusal.value}")
    assert told.kind.code == "impossible"
    assert "older than the endpoint's bundle" in told.message


def test_a_min_p_that_chooses_nothing_is_told_as_ever() -> None:
    likeliest = Options(4, (), Sampling(False, 1.0, 1.0, 0, 1.0, min_p=0.5), 0)
    assert "sampling" in json.loads(likeliest.to_json())


def test_options_of_another_version_are_taken() -> None:
    """Preprocess comes with the bundle and the engine with the image: either may be the older."""
    options = Options(1, (), Sampling(True, 1.0, 1.0, 0, 1.0), 0)
    fields = json.loads(options.to_json())
    newer = json.dumps({**fields, "of a version to come": 1}).encode()
    del fields["first"]
    for name in MORE:
        del fields["sampling"][name]
    assert read_options(newer) == read_options(json.dumps(fields).encode()) == options


@pytest.mark.parametrize("value", [-2.1, 2.1, float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["frequency_penalty", "presence_penalty"])
def test_a_penalty_that_is_none_is_refused(name: str, value: float) -> None:
    changed: dict[str, Any] = {name: value}
    sampling = replace(Sampling(True, 1.0, 1.0, 0, 1.0), **changed)
    with pytest.raises(ContractError, match=f"'{name}' must be from -2 to 2"):
        read_options(Options(1, (), sampling, 0).to_json())


def test_no_more_tokens_are_wanted_at_least_than_there_may_be() -> None:
    sampling = replace(Sampling(True, 1.0, 1.0, 0, 1.0), min_new_tokens=9)
    assert Options(4, (), sampling, 0).min_new_tokens == 4
    assert Options(12, (), sampling, 0).min_new_tokens == 9


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan"), float("inf")])
def test_a_min_p_that_is_none_is_refused(value: float) -> None:
    sampling = Sampling(True, 1.0, 1.0, 0, 1.0, min_p=value)
    with pytest.raises(ContractError, match="'min_p' must be from 0 to 1"):
        read_options(Options(1, (), sampling, 0).to_json())


@pytest.mark.parametrize("value", [0, -1, 1e-300, 101, float("nan"), float("inf")])
def test_a_temperature_that_is_none_is_refused(value: float) -> None:
    sampling = Sampling(True, value, 1.0, 0, 1.0)
    with pytest.raises(ContractError, match="'temperature' must be above 1e-06 and at most 100"):
        read_options(Options(1, (), sampling, 0).to_json())


@pytest.mark.parametrize("value", [0, -1, 1.01, float("nan")])
def test_a_top_p_that_is_none_is_refused(value: float) -> None:
    sampling = Sampling(True, 1.0, value, 0, 1.0)
    with pytest.raises(ContractError, match="'top_p' must be above 1e-06 and at most 1,"):
        read_options(Options(1, (), sampling, 0).to_json())


@pytest.mark.parametrize("value", [0, -1, 101, float("nan")])
def test_a_repetition_penalty_that_is_none_is_refused(value: float) -> None:
    sampling = Sampling(True, 1.0, 1.0, 0, value)
    with pytest.raises(ContractError, match="'repetition_penalty' must be above 1e-06 and at most"):
        read_options(Options(1, (), sampling, 0).to_json())


def test_more_tokens_that_end_it_than_may_be_are_refused() -> None:
    ids = tuple(range(257))
    assert len(read_options(Options(1, ids[:-1], PLAIN, 0).to_json()).eos_ids) == 256  # type: ignore[union-attr]
    with pytest.raises(ContractError, match="'eos_ids' must be a list of at most 256 token ids"):
        read_options(Options(1, ids, PLAIN, 0).to_json())


def test_why_a_sequence_ends_has_the_numbers_that_bundles_of_before_know() -> None:
    """Each brings its own copy of them."""
    numbers = {"RUNNING": 0, "STOP": 1, "LENGTH": 2, "CANCELLED": 3, "CACHE_FULL": 4}
    assert {reason.name: int(reason) for reason in Finish} == numbers


def test_what_generation_does_not_say_is_as_before_it_was_said(
    generation_fields: dict[str, Any],
) -> None:
    for name in ("top_k_is_unsaid", "chat_template"):
        generation_fields["generation"].pop(name, None)
    found = read_endpoint(json.dumps(generation_fields)).generation
    assert found is not None
    assert (found.top_k_is_unsaid, found.chat_template) == (False, None)


def test_a_whole_number_that_is_beyond_every_float_is_refused() -> None:
    """JSON knows no end of them: as an OverflowError it would go past whoever refuses options."""
    options = json.loads(Options(1, (), Sampling(True, 1.0, 1.0, 0, 1.0), 0).to_json())
    for value in (10**400, -(10**400)):
        options["sampling"]["top_p"] = value
        with pytest.raises(ContractError, match="'top_p' must be float, got a number beyond it"):
            read_options(json.dumps(options).encode())
