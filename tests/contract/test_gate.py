"""The one reader of the three gates, on bundles that are right and wrong in one way each."""

from __future__ import annotations

import dataclasses
import json
import re
import struct
import subprocess
from pathlib import Path
from typing import Any

import onnx
import pytest

from tests.contract.bundles import endpoint_of, rewritten, with_file, write_bundle
from tests.contract.onnx_files import PUTS, Put, field, onnx_bytes, outer_model
from tests.contract.plans import PLANS, Plan, build, oldest
from tests.stand_in import names, nvidia_smi
from transformer_serving.contract.engine_parameters import OPENVINO, parameters_of
from transformer_serving.contract.errors import ContractError
from transformer_serving.contract.gate import server_facts as server_facts_module
from transformer_serving.contract.gate.file_names import FILE_NAMES
from transformer_serving.contract.gate.onnx_weights import LEADS
from transformer_serving.contract.gate.plan import goes_forward
from transformer_serving.contract.gate.refusals import open_manifest, refusals, require_servable
from transformer_serving.contract.gate.server_facts import (
    Gpu,
    ServerFacts,
    ask_gpus,
    read_gpus,
    server_facts,
)
from transformer_serving.contract.manifest import ENGINES, Manifest
from transformer_serving.desk.builders.table import ENGINES as TABLE, GENERATION_BACKENDS
from transformer_serving.engine.bundle_config import ENGINE_BACKENDS, config_faults
from transformer_serving.engine.model_config import (
    TensorConfig,
    build_config,
    to_text,
    with_versions,
)

SERVER = ServerFacts(
    name="the image pin 24.10",
    tensorrt="10.5.0.18",
    compute_capability="8.6",
    onnxruntime="1.19.2",
    kit_version="0.1.0",
)
FITTING = Plan("10.5.0.18", 239, "8.6")
IR = b"<net/>"
TENSORRT = {"version": "10.5.0.18", "compute_capability": "8.6"}


def plan_bundle(folder: Path, fields: dict[str, Any], content: bytes, **stated: Any) -> Manifest:
    return write_bundle(folder, fields, engine="tensorrt", content=content, tensorrt=stated)


def said(manifest: Manifest, folder: Path, server: ServerFacts = SERVER) -> list[str]:
    """The codes of the desk's gate; each message names a fix."""
    found = refusals(manifest, folder, server, config_faults, endpoint=endpoint_of(folder))
    for refusal in found:
        assert any(
            word in refusal.message
            for word in ("convert", "upgrade", "move the pin", "start Triton", "remove it")
        ), refusal.message
    return [refusal.code for refusal in found]


def first(manifest: Manifest, folder: Path, server: ServerFacts = SERVER) -> str:
    return refusals(manifest, folder, server, config_faults, endpoint=endpoint_of(folder))[
        0
    ].message


@pytest.mark.parametrize(
    ("engine", "content"),
    [("tensorrt", build(FITTING)), ("onnxruntime", onnx_bytes(opset=21)), ("openvino", IR)],
)
def test_a_fitting_bundle_passes_whole_and_as_its_model_folder(
    tmp_path: Path, endpoint_fields: dict[str, Any], engine: str, content: bytes
) -> None:
    stated = TENSORRT if engine == "tensorrt" else None
    manifest = write_bundle(
        tmp_path, endpoint_fields, engine=engine, content=content, tensorrt=stated
    )
    assert said(manifest, tmp_path) == []
    require_servable(manifest, tmp_path / "model", SERVER, config_faults)
    # Nothing is refused for what is unknown of a server.
    assert said(manifest, tmp_path, ServerFacts()) == []


def test_a_plan_of_another_tensorrt_is_refused_by_all_four_parts(
    tmp_path: Path, endpoint_fields: dict[str, Any]
) -> None:
    manifest = plan_bundle(tmp_path, endpoint_fields, build(Plan("10.5.0.17", 239, "8.6")))
    assert said(manifest, tmp_path) == ["plan"]
    message = first(manifest, tmp_path)
    assert "built by TensorRT 10.5.0.17, the image pin 24.10 has 10.5.0.18" in message
    with pytest.raises(ContractError, match="model/model.plan"):
        require_servable(manifest, tmp_path / "model", SERVER, config_faults)


def test_a_plan_of_another_gpu_is_refused(tmp_path: Path, endpoint_fields: dict[str, Any]) -> None:
    other = build(dataclasses.replace(FITTING, capability="7.5"))
    manifest = plan_bundle(tmp_path, endpoint_fields, other)
    said = first(manifest, tmp_path)
    assert "compute capability 7.5, the image pin 24.10 has 8.6; convert again on this GPU" in said
    assert "hardware_compatibility" not in said
    # Also where only the manifest states it.
    hidden = build(dataclasses.replace(FITTING, capability="9.9"))
    manifest = plan_bundle(tmp_path, endpoint_fields, hidden, compute_capability="7.5")
    assert "compute capability 7.5" in first(manifest, tmp_path)


def test_a_capability_that_yaml_took_for_a_number_is_the_same(
    tmp_path: Path, endpoint_fields: dict[str, Any]
) -> None:
    """TRANSFORMER_SERVING_COMPUTE_CAPABILITY: 9.0 in a values file comes as "9"."""
    hopper = dataclasses.replace(SERVER, compute_capability="9")
    content = build(dataclasses.replace(FITTING, capability="9.0"))
    stated = {**TENSORRT, "compute_capability": "9.0"}
    assert said(plan_bundle(tmp_path, endpoint_fields, content, **stated), tmp_path, hopper) == []
    ada = build(dataclasses.replace(FITTING, capability="8.9"))
    manifest = plan_bundle(tmp_path, endpoint_fields, ada, version=TENSORRT["version"])
    assert said(manifest, tmp_path, hopper) == ["plan"]
    ampere = dataclasses.replace(SERVER, compute_capability="8")
    stated |= {"hardware_compatibility": "ampere+"}
    assert said(plan_bundle(tmp_path, endpoint_fields, content, **stated), tmp_path, ampere) == []


def test_hardware_compatible_plans_run_on_ampere_and_newer(
    tmp_path: Path, endpoint_fields: dict[str, Any]
) -> None:
    content = build(dataclasses.replace(FITTING, capability="8.0"))
    stated = {**TENSORRT, "compute_capability": "8.0", "hardware_compatibility": "ampere+"}
    manifest = plan_bundle(tmp_path, endpoint_fields, content, **stated)
    assert said(manifest, tmp_path) == []
    turing = dataclasses.replace(SERVER, compute_capability="7.5")
    assert said(manifest, tmp_path, turing) == ["plan"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (build(FITTING)[:-100], "is cut short"),
        (onnx_bytes(), "is an ONNX model, not a TensorRT plan"),
        (b"", "is empty"),
        (build(PLANS[0]), "built by TensorRT 8.2.1.8"),
        (oldest(), "built by TensorRT 7.1.3.4"),
    ],
    ids=["truncated", "onnx", "empty", "8.2", "7.1"],
)
def test_what_is_no_plan_of_this_server_is_named(
    tmp_path: Path, endpoint_fields: dict[str, Any], content: bytes, words: str
) -> None:
    manifest = plan_bundle(tmp_path, endpoint_fields, content)
    assert said(manifest, tmp_path)[0] == "plan"
    assert words in first(manifest, tmp_path)


def test_a_plan_that_is_not_the_manifests_is_refused(
    tmp_path: Path, endpoint_fields: dict[str, Any]
) -> None:
    stated = {"version": "10.4.0.26", "compute_capability": "7.5"}
    manifest = plan_bundle(tmp_path, endpoint_fields, build(FITTING), **stated)
    assert "the manifest says 10.4.0.26: it is another plan" in first(manifest, tmp_path)
    other = tmp_path / "other"
    manifest = write_bundle(other, endpoint_fields, engine="openvino", content=IR)
    no_plan = dataclasses.replace(manifest, engine="tensorrt")
    assert "lists no .plan file" in first(no_plan, other)


def test_a_plan_of_another_gpu_than_the_manifests_is_refused(
    tmp_path: Path, endpoint_fields: dict[str, Any]
) -> None:
    """Also where the server's GPU is the one that the manifest names."""
    stated = {**TENSORRT, "compute_capability": "7.5"}
    manifest = plan_bundle(tmp_path, endpoint_fields, build(FITTING), **stated)
    turing = dataclasses.replace(SERVER, compute_capability="7.5")
    assert said(manifest, tmp_path, turing) == ["plan"]
    assert "(observed), the manifest says 7.5: it is another" in first(manifest, tmp_path, turing)


def test_a_form_that_rules_version_compatibility_out_counts_beside_the_manifests_word(
    tmp_path: Path, endpoint_fields: dict[str, Any]
) -> None:
    old = b"ptrt" + struct.pack("<IIIQ", 0, 205, 0, 99) + bytes(99)
    stated = {"version": "8.6.1.6", "version_compatible": True}
    manifest = plan_bundle(tmp_path, endpoint_fields, old, **stated)
    flagged = dataclasses.replace(SERVER, version_compatible=True)
    assert said(manifest, tmp_path, flagged) == ["plan"]


def test_version_compatible_plans_need_the_flag_and_go_forward_only(
    tmp_path: Path, endpoint_fields: dict[str, Any]
) -> None:
    older = build(Plan("10.4.0.26", 239, "8.6"))
    stated = {"version": "10.4.0.26", "version_compatible": True}
    manifest = plan_bundle(tmp_path, endpoint_fields, older, **stated)
    assert "version-compatible=true" in first(manifest, tmp_path)
    flagged = dataclasses.replace(SERVER, version_compatible=True)
    assert said(manifest, tmp_path, flagged) == []
    backward = dataclasses.replace(flagged, tensorrt="10.3.0.26")
    assert said(manifest, tmp_path, backward) == ["plan"]


@pytest.mark.parametrize(
    ("built", "runtime", "runs"),
    [
        ("8.6.1.6", "10.5.0.18", True),
        ("8.6.1.6", "9.0.0", True),
        ("8.6.1.6", "11.1.0", False),
        ("8.5.3.1", "8.6.1.6", False),
        ("10.5.0.18", "11.1.0", True),
        ("11.1.0", "10.16.0", False),
        ("10.5.0.18", "10.4.0.26", False),
        ("unknown", "10.5.0.18", False),
        # What comes after a suffix is no part of the release.
        ("10.0rc1.6", "10.0.5", True),
    ],
)
def test_the_rules_of_going_forward(built: str, runtime: str, runs: bool) -> None:
    assert goes_forward(built, runtime) is runs


def test_an_opset_or_ir_version_too_new_is_refused(
    tmp_path: Path, endpoint_fields: dict[str, Any]
) -> None:
    for content, words in (
        (onnx_bytes(opset=22), "opset 22, at most 21 for ONNX Runtime 1.19.2"),
        (onnx_bytes(ir_version=11), "IR version 11, at most 10"),
        (onnx_bytes()[:99], "no whole ONNX model"),
    ):
        manifest = write_bundle(tmp_path, endpoint_fields, engine="onnxruntime", content=content)
        assert said(manifest, tmp_path) == ["onnx"]
        assert words in first(manifest, tmp_path)


@pytest.mark.parametrize("put", PUTS)
@pytest.mark.parametrize(
    "place", ["../../../run/secrets/key", "/etc/hostname", "./a.data", "b.data", ".."]
)
def test_weights_outside_of_the_bundle_are_refused(
    tmp_path: Path, endpoint_fields: dict[str, Any], place: str, put: Put
) -> None:
    content = outer_model(place, put)
    manifest = write_bundle(tmp_path, endpoint_fields, engine="onnxruntime", content=content)
    manifest = with_file(manifest, tmp_path, "a.data")
    (refusal,) = refusals(manifest, tmp_path, SERVER, config_faults, checks=("onnx",))
    assert f"'model/model.onnx' has weights in '{place}', which is no file" in refusal.message
    with pytest.raises(ContractError, match="has weights in"):
        require_servable(manifest, tmp_path / "model", SERVER, config_faults)
    content = outer_model("a.data", put)
    inside = with_file(manifest, tmp_path, "model.onnx", content)
    assert refusals(inside, tmp_path, SERVER, config_faults, checks=("onnx",)) == ()


KEY, VALUE = field(1, b"location"), field(2, b"../x")
# A number of 32 bits and one more, of which the ONNX Runtimes read the lower 32.
FAR = bytes([0xBA, 0x80, 0x80, 0x80, 0x10])


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (field(13, KEY + VALUE + b"\x09" + bytes(8)), "has weights in '../x'"),
        (field(13, KEY + VALUE + field(1, b"other")), "has weights in '../x'"),
        (field(13, KEY + VALUE + field(2, b"")), "has weights in '../x'"),
        (field(13, KEY), "has weights in ''"),
        (field(13, KEY + field(2, b"x" * 5000)), "the place of a weight is no short text"),
        (FAR + field(7, b"")[1:], "field number 536870919"),
    ],
    ids=["another kind", "two keys", "two values", "no value", "long", "far"],
)
def test_a_place_that_two_readers_would_read_otherwise_is_refused(
    tmp_path: Path, endpoint_fields: dict[str, Any], tensor: bytes, words: str
) -> None:
    content = outer_model("model.onnx") + field(7, field(5, tensor))
    manifest = write_bundle(tmp_path, endpoint_fields, engine="onnxruntime", content=content)
    found = refusals(manifest, tmp_path, SERVER, config_faults, checks=("onnx",))
    assert words in found[0].message


def test_every_way_to_a_tensor_is_walked() -> None:
    """By onnx's own description of its messages."""
    messages = onnx.ModelProto.DESCRIPTOR.file.message_types_by_name
    last = "StringStringEntryProto"
    leading, before = {"TensorProto"}, set[str]()
    while leading != before:
        before = set(leading)
        leading |= {
            name
            for name, message in messages.items()
            if any(one.message_type and one.message_type.name in leading for one in message.fields)
        }
    for name in leading:
        found = {
            one.number: one.message_type.name
            for one in messages[name].fields
            if one.message_type and one.message_type.name in leading
        }
        if name == "TensorProto":
            found = {messages[name].fields_by_name["external_data"].number: last}
        assert LEADS[name] == found, name
    assert set(LEADS) == leading


def test_a_bundle_newer_than_the_kit_is_called_that(
    tmp_path: Path, endpoint_fields: dict[str, Any]
) -> None:
    manifest = write_bundle(
        tmp_path, endpoint_fields, engine="openvino", content=IR, kit_version="0.2.0"
    )
    assert said(manifest, tmp_path) == ["kit"]
    assert "made by transformer-serving 0.2.0, newer than this 0.1.0" in first(manifest, tmp_path)
    newer = json.dumps({**json.loads(manifest.to_json()), "schema": 2, "files": "a new form"})
    with pytest.raises(ContractError, match=r"0\.2\.0, newer than this 0\.1\.0; upgrade"):
        open_manifest(newer, SERVER)
    assert open_manifest(manifest.to_json(), SERVER) == manifest


def test_changed_files_are_refused(tmp_path: Path, endpoint_fields: dict[str, Any]) -> None:
    manifest = write_bundle(tmp_path, endpoint_fields, engine="openvino", content=IR)
    (tmp_path / "model/model.xml").write_bytes(b"<nut/>")
    assert said(manifest, tmp_path) == ["files"]
    with pytest.raises(ContractError, match="'model.xml' is not the one of the manifest"):
        require_servable(manifest, tmp_path / "model", SERVER, config_faults)
    (tmp_path / "model/extra.bin").write_bytes(b"")
    (tmp_path / "model/model.xml").write_bytes(IR)
    assert "'model/extra.bin' is not in the manifest" in first(manifest, tmp_path)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "name",
    ["libtriton_onnxruntime.so", "libx.so.1", "x.so", "X.SO", "a\nb.so", "model.py", "a/b.json"],
)
def test_no_engine_may_bring_code(
    tmp_path: Path, endpoint_fields: dict[str, Any], engine: str, name: str
) -> None:
    manifest = write_bundle(tmp_path, endpoint_fields, engine=engine, content=b"")
    bare = refusals(manifest, tmp_path, SERVER, config_faults, checks=("names",))
    other = with_file(manifest, tmp_path, name)
    (refusal,) = refusals(other, tmp_path, SERVER, config_faults, checks=("names",))
    assert bare == ()
    assert f"file '{name}' is none that a bundle of engine {engine} may have" in refusal.message
    # As the controller asks, of the model's folder alone.
    assert refusal in refusals(other, tmp_path / "model", SERVER, config_faults, prefix="model/")


@pytest.mark.parametrize(
    ("engine", "names"),
    [
        ("openvino", ("model.bin", "openvino_model.xml", "openvino_model.bin", "config.json")),
        ("onnxruntime", ("model.onnx.data", "model.onnx_data", "w.bin", "h.0.query.weight", "a_1")),
        ("tensorrt", ("sm86.plan",)),
        ("torch", ("program.safetensors",)),
        ("vllm", ("model-00001-of-00002.safetensors", "model.safetensors.index.json")),
    ],
)
def test_what_an_engine_reads_is_taken(
    tmp_path: Path, endpoint_fields: dict[str, Any], engine: str, names: tuple[str, ...]
) -> None:
    manifest = write_bundle(tmp_path, endpoint_fields, engine=engine, content=b"")
    for name in (*names, "parity.json", "tokenizer.json", "generation_config.json"):
        manifest = with_file(manifest, tmp_path, name)
    assert refusals(manifest, tmp_path, SERVER, config_faults, checks=("names",)) == ()


_PARAMETER = 'parameters { key: "%s" value { string_value: "%s" } }'
_ENVIRONMENT = _PARAMETER % ("EXECUTION_ENV_PATH", "%s")


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ('instance_group { name: "x; touch y;" }', "'instance_group.0.name' must have only"),
        ('default_model_filename: "$(id)"', "'default_model_filename' must have only"),
        ('default_model_filename: "../../b/1/model.onnx"', "must be a file of the bundle's model"),
        ('default_model_filename: "config.pbtxt"', "whose name ends in .onnx, got"),
        (_ENVIRONMENT % "/tmp/$(id)", "'parameters.EXECUTION_ENV_PATH' must have only"),
        (_ENVIRONMENT % "/tmp/a.tar.gz", "parameter 'EXECUTION_ENV_PATH' is none"),
        (_PARAMETER % ("TRITON_BATCH_STRATEGY_PATH", "/m/e/7/x.bin"), "'TRITON_BATCH_STRATEGY_PAT"),
        # One of another engine.
        (_PARAMETER % ("num_kv_blocks", "4"), "'num_kv_blocks' is none that .* onnxruntime may"),
        ('instance_group { name: "x" }', "field 'instance_group.name' is none"),
        ('instance_group { host_policy: "x" }', "field 'instance_group.host_policy' is none"),
        ('output { label_filename: "../../../run/secrets/a" }', "'output.label_filename' is none"),
        (
            'model_warmup { inputs { key: "a" value { input_data_file: "../a" } } }',
            "field 'model_warmup.inputs.input_data_file' is none",
        ),
        ("ensemble_scheduling { }", "field 'ensemble_scheduling' is none"),
        ('backend: "python"', "field 'backend' must say onnxruntime, as the manifest's engine is"),
        ('backend: ""', "field 'backend' must say onnxruntime, .*got ''"),
        ('platform: "ensemble"', "field 'platform' must say onnxruntime"),
        ('runtime: "model.onnx"', "field 'runtime' is none that a bundle may have"),
        ('model_operations { op_library_filename: "a" }', "field 'model_operations' is none"),
        (
            'model_repository_agents { agents { name: "../a" } }',
            "'model_repository_agents' is none",
        ),
        ("backend: {", "config.pbtxt: .*; convert again"),
        ("# \xff", "config.pbtxt is no UTF-8"),
    ],
)
def test_a_configuration_that_would_run_code_is_refused(
    tmp_path: Path, endpoint_fields: dict[str, Any], config: str, words: str
) -> None:
    content = onnx_bytes(opset=21)
    manifest = write_bundle(tmp_path, endpoint_fields, engine="onnxruntime", content=content)
    text = config if "backend:" in config else f'backend: "onnxruntime" {config}'
    other = with_file(manifest, tmp_path, "config.pbtxt", text.encode("latin-1"))
    assert said(other, tmp_path)[0] == "configuration"
    assert re.search(words, first(other, tmp_path))
    with pytest.raises(ContractError, match=words):
        require_servable(other, tmp_path / "model", SERVER, config_faults)


@pytest.mark.parametrize("engine", ENGINES)
def test_all_that_convert_writes_may_stand_in_a_configuration(
    tmp_path: Path, endpoint_fields: dict[str, Any], engine: str
) -> None:
    """With every parameter that a user may give there (docs: convert.md, tuning.md)."""
    names = {
        *("precision", "intra_op_thread_count", "vocabulary", "max_positions"),
        *parameters_of(OPENVINO),
    }
    parameters = {
        "openvino": names,
        "onnxruntime": {"intra_op_thread_count"},
        "torch": {"intra_op_thread_count"},
        "vllm": {"ENABLE_VLLM_HEALTH_CHECK"},
    }
    manifest = write_bundle(tmp_path, endpoint_fields, engine=engine, content=IR)
    ids, answer = (
        TensorConfig("ids", "INT32", (-1,), optional=True),
        TensorConfig("a", "FP32", (2,)),
    )
    config = build_config(
        name="", backend=ENGINE_BACKENDS[engine][0], inputs=(ids,), outputs=(answer,),
        max_batch_size=4, max_queue_size=5, max_queue_delay_us=6, warmup_lengths=(8, 16),
        profiles=("0", "1"), file_name=FILE_NAMES[engine].opened.usual, kind="KIND_AUTO",
        decoupled=True, parameters=dict.fromkeys(parameters.get(engine, ()), "1"),
    )  # fmt: skip
    assert list(config_faults(to_text(config).encode(), manifest)) == []
    served = with_versions(config, "a", [7])
    assert list(config_faults(to_text(served).encode(), manifest)) == []


@pytest.mark.parametrize(
    ("engine", "named", "words"),
    [
        ("openvino", "model.bin", "whose name ends in .xml, got 'model.bin'"),
        ("onnxruntime", "", "whose name ends in .onnx, got ''"),
        ("torch", "other.json", "model, program.json, got 'other.json'"),
        ("vllm", "other.json", "model, model.json, got 'other.json'"),
    ],
)
def test_an_engine_opens_no_file_that_is_not_looked_at(
    tmp_path: Path, endpoint_fields: dict[str, Any], engine: str, named: str, words: str
) -> None:
    """With no model.onnx, and none named, a backend takes model.bin."""
    manifest = write_bundle(tmp_path, endpoint_fields, engine=engine, content=IR)
    for name in ("model.bin", "other.json"):
        manifest = with_file(manifest, tmp_path, name)
    if not named:
        kept = tuple(entry for entry in manifest.files if not entry.path.endswith(".onnx"))
        manifest = dataclasses.replace(manifest, files=kept)
    line = f'default_model_filename: "{named}"' if named else ""
    config = f'backend: "{ENGINE_BACKENDS[engine][0]}" {line}'
    (fault,) = config_faults(config.encode(), manifest)
    assert words in fault


@pytest.mark.parametrize("head", [b"", b"\x08\x08", b"\n<", b" <net/>", b"\xef\xbb\xbf<net/>"])
@pytest.mark.parametrize("name", ["model.xml", "other.xml"])
def test_what_is_no_xml_is_nothing_for_openvino(
    tmp_path: Path, endpoint_fields: dict[str, Any], name: str, head: bytes
) -> None:
    manifest = write_bundle(tmp_path, endpoint_fields, engine="openvino", content=IR)
    assert said(manifest, tmp_path) == []
    other = with_file(manifest, tmp_path, name, head)
    assert said(other, tmp_path)[0] == "openvino"
    assert f"'model/{name}' does not begin as XML" in first(other, tmp_path)
    with pytest.raises(ContractError, match="does not begin as XML"):
        require_servable(other, tmp_path / "model", SERVER, config_faults)


def test_a_bundle_without_a_configuration_is_refused(
    tmp_path: Path, endpoint_fields: dict[str, Any]
) -> None:
    manifest = write_bundle(tmp_path, endpoint_fields, engine="openvino", content=IR)
    (tmp_path / "model/config.pbtxt").unlink()
    assert "file 'config.pbtxt' of the bundle is missing" in first(manifest, tmp_path)


def test_the_backends_of_an_engine_are_those_that_convert_writes() -> None:
    for engine, row in TABLE.items():
        told = {row.backend, GENERATION_BACKENDS.get(engine, row.backend)}
        assert set(ENGINE_BACKENDS[engine]) == told
    assert set(ENGINE_BACKENDS) == set(FILE_NAMES) == set(ENGINES)


def test_a_tokenizer_or_labels_that_are_not_the_manifests(
    tmp_path: Path, endpoint_fields: dict[str, Any]
) -> None:
    manifest = write_bundle(tmp_path, endpoint_fields, engine="openvino", content=IR)
    (tmp_path / "tokenizer.json").write_text('{"other": 1}')
    assert said(manifest, tmp_path)[0] == "tokenizer"
    assert "'tokenizer.json' is not the one of the manifest" in first(manifest, tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    swapped = {
        "labels": ["POSITIVE", "NEGATIVE"],
        "problem_type": "single_label",
        "activation": "softmax",
    }
    change_endpoint(tmp_path, classification=swapped)
    assert said(manifest, tmp_path)[0] == "labels"
    assert "its labels and lengths" in first(manifest, tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"bundle_hash": "cd" * 32}, "field 'bundle_hash' differs"),
        ({"bundle_version": 78}, "field 'bundle_version' differs"),
        (
            {
                "classification": {
                    "labels": ["A", "B", "C"],
                    "problem_type": "single_label",
                    "activation": "softmax",
                }
            },
            "3 labels and the model 2 columns",
        ),
        (
            {
                "classification": {
                    "labels": ["A", "B"],
                    "problem_type": "single_label",
                    "activation": "softmax",
                }
            },
            "the label list is another model's",
        ),
    ],
)
def test_another_bundles_endpoint_is_refused_even_with_fitting_hashes(
    tmp_path: Path, endpoint_fields: dict[str, Any], change: dict[str, Any], words: str
) -> None:
    manifest = write_bundle(tmp_path, endpoint_fields, engine="openvino", content=IR)
    change_endpoint(tmp_path, **change)
    assert words in first(rewritten(tmp_path, manifest), tmp_path)


def test_a_manifest_of_another_bundle_or_task_is_refused_beside_whole_files(
    tmp_path: Path, endpoint_fields: dict[str, Any]
) -> None:
    manifest = write_bundle(tmp_path, endpoint_fields, engine="openvino", content=IR)
    other = dataclasses.replace(manifest, task="token-classification")
    assert said(other, tmp_path) == ["labels"]
    assert "field 'task' differs" in first(other, tmp_path)
    for change in ({"bundle_hash": "cd" * 32}, {"bundle_version": 78}):
        other = dataclasses.replace(manifest, **change)
        (refusal,) = refusals(other, tmp_path, SERVER, config_faults, checks=("identity",))
        assert "preprocess.py and manifest.json are of different bundles" in refusal.message


def change_endpoint(folder: Path, **change: Any) -> None:
    path = folder / "endpoint.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))


def test_only_the_named_checks_are_made(tmp_path: Path, endpoint_fields: dict[str, Any]) -> None:
    manifest = write_bundle(tmp_path, endpoint_fields, engine="openvino", content=b"a")
    (tmp_path / "model/model.xml").write_bytes(b"b")
    assert refusals(manifest, tmp_path, SERVER, config_faults, checks=("kit", "plan", "onnx")) == ()


# nvidia-smi of a machine with two kinds of GPUs, which it counts by the bus.
TWO_KINDS = """case "$*" in
*--id=0|*--id=GPU-old) echo 'NVIDIA T4, 560.35.03, 7.5';;
*--id=1|*--id=GPU-new) echo 'NVIDIA A10, 560.35.03, 8.6';;
*) echo 'NVIDIA T4, 560.35.03, 7.5'; echo 'NVIDIA A10, 560.35.03, 8.6';;
esac"""
A10, T4 = Gpu("NVIDIA A10", "560.35.03", "8.6"), Gpu("NVIDIA T4", "560.35.03", "7.5")


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({}, (T4, A10)),
        ({"CUDA_VISIBLE_DEVICES": "GPU-new"}, (A10,)),
        ({"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, (T4,)),
        # CUDA counts from the fastest one on, whichever that is.
        ({"CUDA_VISIBLE_DEVICES": "0"}, ()),
        ({"CUDA_VISIBLE_DEVICES": ""}, ()),
        ({"TRANSFORMER_SERVING_COMPUTE_CAPABILITY": "8.6"}, ()),
    ],
    ids=["all", "uuid", "by-bus", "by-speed", "none", "stated"],
)
def test_the_gpus_of_a_server_are_those_that_triton_uses(
    tmp_path: Path, variables: dict[str, str], wanted: tuple[Gpu, ...]
) -> None:
    nvidia_smi(tmp_path, TWO_KINDS)
    assert server_facts({"PATH": f"{tmp_path}:/bin", **variables}).gpus == wanted


def test_every_gpu_of_a_server_must_fit_a_plan(
    tmp_path: Path, endpoint_fields: dict[str, Any]
) -> None:
    manifest = plan_bundle(tmp_path, endpoint_fields, build(FITTING))
    server = dataclasses.replace(SERVER, compute_capability=None)
    assert said(manifest, tmp_path, dataclasses.replace(server, gpus=(A10, A10))) == []
    mixed = first(manifest, tmp_path, dataclasses.replace(server, gpus=(A10, T4)))
    assert "8.6, the image pin 24.10 has 7.5 (NVIDIA T4); give Triton GPUs of one kind" in mixed
    other = first(manifest, tmp_path, dataclasses.replace(server, gpus=(T4,)))
    assert "has 7.5 (NVIDIA T4); convert again on this GPU" in other


def test_facts_are_asked_where_triton_runs(tmp_path: Path) -> None:
    nvidia_smi(tmp_path, names(A10))
    environment = {"PATH": f"{tmp_path}:/bin", "TRT_VERSION": "10.5.0.18"}
    facts = server_facts(environment)
    assert (facts.tensorrt, facts.gpus) == ("10.5.0.18", (A10,))
    assert facts.onnxruntime
    given = {**environment, "TRANSFORMER_SERVING_ONNXRUNTIME": "1.19.2"}
    assert server_facts(given).onnxruntime == "1.19.2"
    nvidia_smi(tmp_path, "echo 'NVIDIA-SMI has failed'\nexit 9")
    assert read_gpus(environment) == ()
    assert read_gpus({"PATH": "/nowhere"}) == ()


def test_an_nvidia_smi_that_nothing_ends_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a driver's call that hangs it is not gone when it is killed: here, as nothing kills it."""
    nvidia_smi(tmp_path, "exec sleep 600")
    held: list[subprocess.Popen[str]] = []
    monkeypatch.setattr(server_facts_module, "_KILLED_S", 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(subprocess.Popen, "kill", lambda process: held.append(process))
        asked = ask_gpus({"PATH": f"{tmp_path}:/bin"}, patience_s=0.1)
    assert (asked.gpus, asked.status) == ((), None)
    (process,) = held
    assert process.poll() is None
    with process:
        process.kill()
