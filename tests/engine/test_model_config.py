"""config.pbtxt from the protobuf message."""

from __future__ import annotations

import pytest

from transformer_serving.engine.errors import ConfigError
from transformer_serving.engine.model_config import (
    TensorConfig,
    build_config,
    from_text,
    to_text,
    with_versions,
)

INPUTS = (TensorConfig("input_ids", "INT32", (-1,)), TensorConfig("attention_mask", "INT32", (-1,)))
OUTPUT = TensorConfig("output", "FP32", (2,))


def test_a_bundle_configuration_survives_its_text() -> None:
    config = build_config(
        name="m",
        backend="openvino_text",
        inputs=INPUTS,
        outputs=[OUTPUT],
        max_batch_size=64,
        instance_count=2,
        max_queue_delay_us=500,
        max_queue_size=256,
        parameters={"precision": 'b"f\\16\n'},
        warmup_lengths=[16, 64],
    )
    assert from_text(to_text(config)) == config
    assert config.parameters["precision"].string_value == 'b"f\\16\n'
    assert config.dynamic_batching.max_queue_delay_microseconds == 500
    assert config.dynamic_batching.default_queue_policy.max_queue_size == 256
    assert config.instance_group[0].count == 2


def test_warm_up_is_zeros_of_one_text_for_each_length() -> None:
    config = build_config(
        name="m",
        backend="onnxruntime",
        inputs=INPUTS,
        outputs=[OUTPUT],
        max_batch_size=8,
        warmup_lengths=[16, 64],
    )
    for sample, length in zip(config.model_warmup, (16, 64), strict=True):
        assert sample.batch_size == 1
        for tensor in sample.inputs.values():
            assert list(tensor.dims) == [length]
            assert tensor.WhichOneof("input_data_type") == "zero_data"


def test_tensorrt_lists_its_profiles_on_the_gpu() -> None:
    config = build_config(
        name="m",
        backend="tensorrt",
        inputs=INPUTS,
        outputs=[OUTPUT],
        max_batch_size=8,
        profiles=["0", "1"],
    )
    assert config.platform == "tensorrt_plan"
    assert list(config.instance_group[0].profile) == ["0", "1"]
    assert config.instance_group[0].kind == config.instance_group[0].KIND_GPU


def test_versions_are_exactly_those() -> None:
    config = build_config(
        name="", backend="onnxruntime", inputs=INPUTS, outputs=[OUTPUT], max_batch_size=8
    )
    config.version_policy.latest.num_versions = 3
    copy = with_versions(config, "x_y", [20, 10])
    assert copy.name == "x_y"
    assert list(copy.version_policy.specific.versions) == [10, 20]
    assert config.name == ""


def test_errors_name_the_field() -> None:
    with pytest.raises(ConfigError, match="no type 'FLOAT'"):
        build_config(
            name="m",
            backend="b",
            inputs=(TensorConfig("x", "FLOAT", (-1,)),),
            outputs=[OUTPUT],
            max_batch_size=1,
        )
    with pytest.raises(ConfigError, match=r"config\.pbtxt: 1:1 .*no field named \"foo\""):
        from_text("foo: 3")
