"""model.json: what convert writes is taken, and nothing that could lead out of the bundle."""

from __future__ import annotations

import json
from typing import Any

import pytest

from transformer_serving.contract.engine_parameters import VLLM, check_parameters
from transformer_serving.contract.errors import ContractError
from transformer_serving.contract.vllm.arguments import arguments_of, check_arguments, filled_in

GIVEN = {
    "gpu_memory_utilization": "0.9",
    "max_num_seqs": "32",
    "enable_prefix_caching": "on",
    "tensor_parallel_size": "2",
}


def test_what_is_written_is_taken() -> None:
    check_parameters(GIVEN, VLLM)
    assert check_arguments(arguments_of("bf16", 512, GIVEN)) == {
        "model": ".",
        "load_format": "safetensors",
        "dtype": "bfloat16",
        "max_model_len": 512,
        "gpu_memory_utilization": 0.9,
        "max_num_seqs": 32,
        "enable_prefix_caching": True,
        "tensor_parallel_size": 2,
    }
    # What nobody asked for is vLLM's own, but for the memory, of which two copies must fit.
    least = check_arguments(arguments_of("fp16", 64, {}))
    assert set(least) == {
        "model", "load_format", "dtype", "max_model_len", "gpu_memory_utilization",
    }  # fmt: skip
    assert least["gpu_memory_utilization"] == 0.45


@pytest.mark.parametrize(
    "more",
    [
        {"trust_remote_code": True},
        {"tokenizer": "/etc"},
        {"download_dir": "/"},
        {"hf_overrides": {"architectures": ["X"]}},
        {"enable_lora": True},
        {"worker_cls": "os.system"},
        {"code_revision": "main"},
    ],
    ids=lambda more: next(iter(more)),
)
def test_any_other_argument_is_refused(more: dict[str, Any]) -> None:
    text = json.dumps({**json.loads(arguments_of("bf16", 512, {})), **more})
    with pytest.raises(ContractError, match=f"argument '{next(iter(more))}' is none that a bundle"):
        check_arguments(text)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"model": "facebook/opt-125m"}, "field 'model' must be one of ."),
        ({"model": "/models/other"}, "field 'model' must be one of ."),
        ({"load_format": "pt"}, "field 'load_format' must be one of safetensors"),
        ({"dtype": "auto"}, "field 'dtype' must be one of float32, bfloat16, float16"),
        ({"max_model_len": 0}, "field 'max_model_len' must be from 2"),
        ({"gpu_memory_utilization": 1.5}, "'gpu_memory_utilization' must be a number above 0"),
        ({"gpu_memory_utilization": 0}, "'gpu_memory_utilization' must be a number above 0"),
        ({"max_num_seqs": "many"}, "field 'max_num_seqs' must be int, got a string"),
        ({"enable_prefix_caching": "on"}, "field 'enable_prefix_caching' must be bool"),
        ({"tensor_parallel_size": 65}, "must be a whole number from 1 to 64, got '65'"),
    ],
)
def test_what_cannot_be_is_refused(changed: dict[str, Any], said: str) -> None:
    text = json.dumps({**json.loads(arguments_of("bf16", 512, {})), **changed})
    with pytest.raises(ContractError) as caught:
        check_arguments(text)
    assert said in str(caught.value)


@pytest.mark.parametrize("value", ["0", "0.0", "1.1", "-0.5", "1e-1", "nan", "0.00001", ""])
def test_a_part_of_the_memory_is_above_nothing_and_at_most_all(value: str) -> None:
    with pytest.raises(ContractError, match="must be a number above 0 and at most 1"):
        check_parameters({"gpu_memory_utilization": value}, VLLM)


def test_each_engine_has_its_own_parameters() -> None:
    with pytest.raises(ContractError, match="'max_running' is unknown to engine vllm; there are "):
        check_parameters({"max_running": "1"}, VLLM)
    with pytest.raises(ContractError, match="'max_num_seqs' is unknown to engine openvino"):
        check_parameters({"max_num_seqs": "1"})


def test_the_folder_is_filled_in_where_none_is_named() -> None:
    text = arguments_of("bf16", 512, {})
    filled = filled_in(text.encode(), "/models/.versions/a/1")
    assert filled is not None
    assert json.loads(filled) == {**json.loads(text), "model": "/models/.versions/a/1"}
    # As of an endpoint that somebody added by hand.
    assert filled_in(b'{"model": "facebook/opt-125m"}', "/x") is None
    assert filled_in(b"[]", "/x") is None
