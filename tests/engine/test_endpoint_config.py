"""The configuration of endpoints added by hand, in the forms that clearml-serving stores."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from transformer_serving.engine.auxiliary_config import parse_auxiliary
from transformer_serving.engine.controller.files.repository import Repository
from transformer_serving.engine.endpoint_config import (
    EndpointFields,
    TensorFields,
    check_unquoted,
    config_from_endpoint,
    contradiction,
    tuned,
)
from transformer_serving.engine.errors import ConfigError
from transformer_serving.engine.model_config import TensorConfig, build_config

NAMES = ["input_ids", "token_type_ids", "attention_mask"]
# As the seed's two commands come out of clearml-serving's configuration.
PLAIN = EndpointFields(
    TensorFields(NAMES, ["int32"] * 3, [[-1, -1]] * 3),
    TensorFields(["output"], ["float32"], [[-1, 2]]),
    {"platform": '"tensorrt_plan"'},
)
DYNAMIC = EndpointFields(
    TensorFields(NAMES, ["int32"] * 3, [[-1]] * 3),
    TensorFields(["output"], ["float32"], [[2]]),
    {
        "platform": '"onnxruntime_onnx"',
        "max_batch_size": 64,
        "dynamic_batching": {
            "preferred_batch_size": [1, 2, 4, 8, 16, 32, 64],
            "max_queue_delay_microseconds": 5000000,
        },
        "instance_group": {"0": {"kind": "KIND_CPU", "count": "2"}},
    },
)
BUNDLE = build_config(
    name="",
    backend="onnxruntime",
    inputs=[TensorConfig(name, "INT32", (-1,)) for name in NAMES],
    outputs=[TensorConfig("output", "FP32", (2,))],
    max_batch_size=64,
    parameters={"intra_op_thread_count": "2"},
)


def test_the_plain_form() -> None:
    config = config_from_endpoint(PLAIN, name="m", files=["model.plan"])
    assert config.platform == "tensorrt_plan"
    assert config.max_batch_size == 0
    assert [list(tensor.dims) for tensor in config.input] == [[-1, -1]] * 3
    assert config.instance_group[0].count == 1


def test_the_dynamic_batching_form() -> None:
    config = config_from_endpoint(DYNAMIC, name="m", files=["model.onnx"])
    assert config.max_batch_size == 64
    assert list(config.dynamic_batching.preferred_batch_size) == [1, 2, 4, 8, 16, 32, 64]
    assert config.dynamic_batching.max_queue_delay_microseconds == 5000000
    assert config.instance_group[0].count == 2
    assert config.default_model_filename == ""


@pytest.mark.parametrize("value", ['"tensorrt_plan"', "tensorrt_plan", "\\tensorrt_plan\\"])
def test_what_a_shell_leaves_of_quotes_does_not_matter(value: str) -> None:
    assert parse_auxiliary({"platform": value}).platform == "tensorrt_plan"


def test_a_whole_file_counts_too() -> None:
    text = 'platform: "onnxruntime_onnx" max_batch_size: 4 parameters { key: "a" value { } }'
    fields = dataclasses.replace(DYNAMIC, auxiliary=text)
    config = config_from_endpoint(fields, name="m", files=["any.onnx"])
    assert config.max_batch_size == 4
    assert config.default_model_filename == "any.onnx"


@pytest.mark.parametrize("framework", ["", "ONNX", "custom"])
def test_a_single_file_of_any_name_needs_no_option(tmp_path: Path, framework: str) -> None:
    """`default_model_filename`, which clearml-serving 1.3.5 refuses, is left out."""
    source = tmp_path / "model_onnx.bin"
    source.write_bytes(b"x")
    repository = Repository(tmp_path / "models")
    token = repository.stage("m", source, framework)
    [file] = [path.name for path in repository.files("m", token).iterdir()]
    fields = dataclasses.replace(DYNAMIC, auxiliary={"platform": "onnxruntime_onnx"})
    config = config_from_endpoint(fields, name="m", framework=framework, files=[file])
    assert file in (config.default_model_filename, "model.onnx")


@pytest.mark.parametrize(
    ("framework", "files", "backend"),
    [
        ("ONNX", ["model.onnx"], "onnxruntime"),
        ("", ["model.onnx"], "onnxruntime"),
        ("TensorRT", ["model.plan"], "tensorrt"),
        ("", ["model.xml", "model.bin"], "openvino_text"),
    ],
)
def test_the_backend_follows_from_the_model(framework: str, files: list[str], backend: str) -> None:
    fields = dataclasses.replace(DYNAMIC, auxiliary=None)
    assert config_from_endpoint(fields, name="m", framework=framework, files=files).backend == (
        backend
    )


def changed(part: str, **values: Any) -> EndpointFields:
    tensors = dataclasses.replace(getattr(DYNAMIC, part), **values)
    return dataclasses.replace(DYNAMIC, **{part: tensors})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (changed("inputs", names=[]), "'--input-name' is missing"),
        (changed("inputs", types=["int32"]), "'--input-type' must have 3 values.*got 1"),
        (changed("outputs", types=["text"]), "'--output-type' must be one of"),
        (changed("outputs", sizes=[[0]]), "'--output-size' must be a list of sizes or -1"),
        (dataclasses.replace(DYNAMIC, auxiliary={"max_bach": 1}), "'max_bach' of --aux-config"),
        (
            dataclasses.replace(DYNAMIC, auxiliary={"dynamic_batching": {"delay": 1}}),
            r"'dynamic_batching\.delay' of --aux-config is unknown",
        ),
        (
            dataclasses.replace(DYNAMIC, auxiliary={"max_batch_size": "many"}),
            "'max_batch_size' of --aux-config must be a whole number, got 'many'",
        ),
        (dataclasses.replace(DYNAMIC, auxiliary={"instance_group": {"kind": "x"}}), "numbered"),
        (dataclasses.replace(DYNAMIC, auxiliary={"response_cache": {"enable": 3}}), "true or fal"),
        (dataclasses.replace(DYNAMIC, auxiliary="max_bach: 1"), 'no field named "max_bach"'),
        (dataclasses.replace(DYNAMIC, auxiliary=None), "'platform' is missing"),
    ],
)
def test_errors_name_the_field(fields: EndpointFields, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config_from_endpoint(fields, name="m", files=["weights"])


@pytest.mark.parametrize(
    ("auxiliary", "tuning", "refused"),
    [
        ({"platform": "onnxruntime_onnx", "max_batch_size": 64}, False, None),
        ({"backend": "onnxruntime"}, False, None),
        ({"parameters": {"intra_op_thread_count": {"string_value": "2"}}}, False, None),
        ({"instance_group": {"0": {"count": 1}}}, False, None),
        ({"platform": "tensorrt_plan"}, True, "platform"),
        ({"max_batch_size": 32}, False, "max_batch_size"),
        ({"max_batch_size": 32}, True, None),
        ({"max_batch_size": 65}, True, "max_batch_size"),
        ({"dynamic_batching": {"max_queue_delay_microseconds": 9}}, False, "dynamic_batching"),
        ({"dynamic_batching": {"max_queue_delay_microseconds": 9}}, True, None),
        ({"instance_group": {"0": {"count": 4}}}, True, "instance_group"),
    ],
)
def test_what_contradicts_a_bundle(
    auxiliary: dict[str, Any], tuning: bool, refused: str | None
) -> None:
    fields = dataclasses.replace(DYNAMIC, auxiliary=auxiliary)
    fault = contradiction(BUNDLE, fields, tuning=tuning)
    assert (fault is None) == (refused is None)
    assert refused is None or f"'{refused}' of --aux-config" in (fault or "")


def test_names_and_types_must_be_the_bundles() -> None:
    names = changed("inputs", names=["ids", *NAMES[1:]])
    assert "'--input-name' must be" in (contradiction(BUNDLE, names, tuning=True) or "")
    types = changed("outputs", types=["float16"])
    assert "'--output-type' of 'output' must be fp32" in (
        contradiction(BUNDLE, types, tuning=True) or ""
    )


def test_tuning_takes_batching_over() -> None:
    config = tuned(
        BUNDLE,
        dataclasses.replace(
            DYNAMIC,
            auxiliary={
                "max_batch_size": 16,
                "dynamic_batching": {"max_queue_delay_microseconds": 9},
            },
        ),
    )
    assert config.max_batch_size == 16
    assert config.dynamic_batching.max_queue_delay_microseconds == 9
    assert BUNDLE.max_batch_size == 64


@pytest.mark.parametrize(
    ("field", "auxiliary"),
    [
        ("default_model_filename", {"default_model_filename": '"my model.onnx"'}),
        ("instance_group.0.name", {"instance_group": {"0": {"name": '"a;touch b"', "count": "1"}}}),
        (
            "parameters.EXECUTION_ENV_PATH",
            {"parameters": {"EXECUTION_ENV_PATH": {"string_value": '"/e$(id)"'}}},
        ),
    ],
)
def test_what_a_shell_would_read_otherwise_is_refused(
    field: str, auxiliary: dict[str, Any]
) -> None:
    platform = {"platform": '"onnxruntime_onnx"'}
    fields = dataclasses.replace(DYNAMIC, auxiliary={**platform, **auxiliary})
    with pytest.raises(ConfigError, match=f"field '{field}' must have only the letters"):
        check_unquoted(config_from_endpoint(fields, name="m", files=["model.onnx"]))
    fields = dataclasses.replace(DYNAMIC, auxiliary=platform)
    check_unquoted(config_from_endpoint(fields, name="m", files=["model.onnx"]))
    with pytest.raises(ConfigError, match=r"got 'my model\.onnx'"):
        check_unquoted(config_from_endpoint(fields, name="m", files=["my model.onnx"]))
