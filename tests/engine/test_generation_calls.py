"""What a language model's backend refuses before its engine sees it, and what configures it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from preprocess.triton.errors import error_of
from transformer_serving.contract.generation import Farewell, Options, Sampling
from transformer_serving.engine.backends.generation.calls import (
    Call,
    CallRefused,
    Fault,
    read_call,
)
from transformer_serving.engine.backends.generation.seeds import folded
from transformer_serving.engine.backends.generation.settings import (
    GenerationSettings,
    blocks_of,
    read_generation_settings,
)
from transformer_serving.engine.backends.model_settings import ModelError, ModelSettings

SETTINGS = GenerationSettings(vocabulary=80, max_positions=64, kv_blocks=2)
OPTIONS = Options(8, (3,), Sampling(False, 1.0, 1.0, 0, 1.0), 7)


def tensors(ids: Any, options: Options | bytes = OPTIONS) -> dict[str, Any]:
    raw = options if isinstance(options, bytes) else options.to_json()
    return {"input_ids": np.array(ids, np.int32), "options": np.frombuffer(raw, np.uint8)}


def refusal(ids: Any, options: Options | bytes = OPTIONS, **changes: Any) -> str:
    with pytest.raises(CallRefused) as caught:
        read_call(replace(SETTINGS, **changes), tensors(ids, options))
    assert caught.value.fault is Fault.INVALID_ARG
    assert str(caught.value).startswith("INVALID_ARG: ")
    return str(caught.value)


def test_a_call_that_fits_is_read() -> None:
    call = read_call(SETTINGS, tensors([0, 79, 5]))
    assert isinstance(call, Call)
    assert call.ids.tolist() == [0, 79, 5]
    assert call.options == OPTIONS
    assert (call.tokens, call.blocks) == (11, 1)
    whole = read_call(SETTINGS, tensors([1] * 56))
    assert isinstance(whole, Call)
    assert (whole.tokens, whole.blocks) == (64, 2)


def test_a_farewell_is_read() -> None:
    farewell = Farewell("the call of before")
    assert read_call(SETTINGS, tensors(farewell.input_ids, farewell.to_json())) == farewell
    assert "'ends' must be str, got a number" in refusal([0], b'{"ends": 5}')


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        ([], "is empty"),
        ([0, -1], "an id below 0"),
        ([0, 80], "an id above 79, the model's last"),
    ],
)
def test_ids_outside_the_vocabulary_are_refused(ids: list[int], said: str) -> None:
    assert said in refusal(ids)


@pytest.mark.parametrize("name", ["frequency_penalty", "presence_penalty"])
def test_a_penalty_that_a_bundle_of_before_sends_is_its_callers_fault(name: str) -> None:
    """As openvino_genai has it, the text would repeat itself."""
    changed: dict[str, Any] = {name: 0.5}
    said = refusal([1], replace(OPTIONS, sampling=replace(OPTIONS.sampling, **changed)))
    # Such a bundle has looked for these words since it could send one.
    assert "options: field 'sampling' is missing" in said
    assert error_of("INTERNAL", said).kind.code == "impossible"


def test_what_does_not_fit_is_refused_with_both_numbers() -> None:
    assert "57 tokens and max_new_tokens 8 are 65, and the model has 64" in refusal([1] * 57)
    said = refusal([1] * 40, kv_blocks=1)
    assert "need 2 blocks of the cache of 32 tokens, and it has 1" in said


def test_options_are_those_of_the_contract() -> None:
    assert "not valid JSON" in refusal([1], b"{")
    assert "'max_new_tokens' must be from 1" in refusal([1], replace(OPTIONS, max_new_tokens=0))
    assert "'eos_ids' has an id above 79" in refusal([1], replace(OPTIONS, eos_ids=(80,)))
    with pytest.raises(CallRefused, match="'options' is missing"):
        read_call(SETTINGS, {"input_ids": np.array([1], np.int32)})


def model(**parameters: str) -> ModelSettings:
    least = {"vocabulary": "80", "max_positions": "64", "num_kv_blocks": "4"}
    return ModelSettings(0, (), (), 1, "", {**least, **parameters}, 0)


def test_settings_are_parameters_of_the_configuration() -> None:
    plain = read_generation_settings(model(intra_op_thread_count="3"))
    assert plain == GenerationSettings(80, 64, 4, threads=3)
    given = read_generation_settings(
        model(
            precision="bf16",
            max_running="5",
            max_waiting="6",
            max_num_batched_tokens="100",
            prefix_cache="on",
            send_gap_ms="50",
            intra_op_thread_count="1",
        )
    )
    assert given == GenerationSettings(80, 64, 4, "bf16", "u8", 5, 6, 100, True, 0.05, 1)
    assert [blocks_of(tokens) for tokens in (1, 32, 33)] == [1, 1, 2]


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"num_kv_blocks": ""}, "'num_kv_blocks' is missing"),
        ({"num_kv_blocks": "2147483648"}, "must be a whole number from 1 to 2147483647, got"),
        (
            {"max_running": "5000"},
            "'max_running' must be a whole number from 1 to 4096",
        ),
        ({"vocabulary": "many"}, "'vocabulary' must be a whole number"),
        ({"max_positions": "1"}, "'max_positions' must be from 2"),
        ({"kv_precision": "u2"}, "'kv_precision' must be one of f32"),
        ({"prefix_cache": "yes"}, "'prefix_cache' must be one of on, off"),
    ],
)
def test_a_parameter_that_is_wrong_is_named(parameters: dict[str, str], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        read_generation_settings(model(**parameters))


def test_all_bits_of_a_seed_decide_and_those_of_one_request_stay_apart() -> None:
    assert [folded(one) for one in (0, 7, 2**32 - 1)] == [0, 7, 2**32 - 1]
    assert len({folded(7 + high * 2**32) for high in range(1000)}) == 1000
    # Several sequences have the numbers that follow, and begin at 0 behind the highest seed.
    for first in (0, 2**32 - 32, 5 * 2**32 - 1, 2**53 - 7, 2**63 - 32):
        assert len({folded((first + at) % 2**63) for at in range(64)}) == 64
