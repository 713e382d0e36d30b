"""A bundle of engine torch before several servers, and graphs that torch must not read."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tomllib

from tests.contract.bundles import with_file, write_bundle
from tests.contract.test_gate import first, said
from transformer_serving.contract.errors import ContractError
from transformer_serving.contract.gate.refusals import require_servable
from transformer_serving.contract.gate.server_facts import MISSING, ServerFacts
from transformer_serving.contract.manifest import Manifest
from transformer_serving.contract.torch_program.program import PACKAGES, TorchProgram, read_program
from transformer_serving.engine.bundle_config import config_faults

ROOT = Path(__file__).parent.parent.parent
EXPRESSION = "Mul(Integer(2), Symbol('s77', positive=True, integer=True))"
SIZE = {"as_expr": {"expr_str": EXPRESSION, "hint": {"as_int": 11}}}
NODE = {"target": "torch.ops.aten.embedding.default", "inputs": [{"name": "n", "arg": SIZE}]}
TREE = '[1, {"type": "builtins.tuple", "context": "null", "children_spec": []}]'
# torch would import the module and take what it names there.
ENUM = r"{\"__enum__\": true, \"fqn\": \"os:path\", \"name\": \"x\"}"
GRAPH: dict[str, Any] = {
    "graph_module": {
        "graph": {
            "inputs": [{"as_tensor": {"name": "tensors_0"}}],
            "nodes": [NODE, {"target": "_operator.getitem", "inputs": []}],
            "tensor_values": {"tensors_0": {"dtype": 3, "device": {"type": "cpu"}}},
        },
        "signature": {"input_specs": [{"parameter": {"parameter_name": "head.0.weight"}}]},
        "module_call_graph": [
            {
                "fqn": "",
                "signature": {"in_spec": TREE, "out_spec": TREE, "forward_arg_names": ["a"]},
            }
        ],
        "metadata": {},
    },
    "range_constraints": {"s77": {"min_val": 2, "max_val": None}},
    "guards_code": [],
}
HERE = ServerFacts(name="this server", torch="2.13.1+cu126")


def program(graph: dict[str, Any]) -> bytes:
    return TorchProgram("2.13.0+cpu", "fp32", (), (), {}, graph).to_json().encode()


def bundle(folder: Path, fields: dict[str, Any], graph: dict[str, Any] | None = None) -> Manifest:
    manifest = write_bundle(folder, fields, engine="torch", content=program(graph or GRAPH))
    return with_file(manifest, folder, "program.safetensors")


def changed(old: str, new: str) -> dict[str, Any]:
    text = json.dumps(GRAPH)
    assert old in text
    return dict(json.loads(text.replace(old, new)))


def with_container(old: str, new: str) -> dict[str, Any]:
    """Changed in the JSON that is a text of the graph's JSON."""
    assert old in TREE
    return changed(json.dumps(TREE), json.dumps(TREE.replace(old, new)))


@pytest.fixture
def manifest(tmp_path: Path, endpoint_fields: dict[str, Any]) -> Manifest:
    return bundle(tmp_path, endpoint_fields)


def test_a_server_without_pytorch_is_told_of_the_extra(manifest: Manifest, tmp_path: Path) -> None:
    none = replace(HERE, torch=MISSING)
    message = first(manifest, tmp_path, none)
    assert "this server has no PyTorch; install it where Triton runs: pip install " in message
    assert f"pip install {PACKAGES}, or" in message
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["optional-dependencies"]["torch"] == shlex.split(PACKAGES)
    with pytest.raises(ContractError, match="has no PyTorch"):
        require_servable(manifest, tmp_path / "model", none, config_faults)
    require_servable(manifest, tmp_path / "model", HERE, config_faults)
    # Nothing is refused for what is unknown of a server.
    require_servable(manifest, tmp_path / "model", ServerFacts(), config_faults)


@pytest.mark.parametrize("version", ["2.12.0", "2.14.1", "3.0.0"])
def test_another_release_of_pytorch_is_refused_with_both(
    manifest: Manifest, tmp_path: Path, version: str
) -> None:
    message = first(manifest, tmp_path, replace(HERE, torch=version))
    assert f"exported by PyTorch 2.13.0+cpu, and this server has {version}" in message
    assert "install PyTorch 2.13.0 where Triton runs" in message


@pytest.mark.parametrize("name", ["model.py", "weights.bin", "program.pt2", "x.pkl"])
def test_code_and_pickles_are_refused(manifest: Manifest, tmp_path: Path, name: str) -> None:
    other = with_file(manifest, tmp_path, name)
    assert f"file '{name}' is none that a bundle of engine torch may have" in first(
        other, tmp_path, HERE
    )


@pytest.mark.parametrize("name", ["program.json", "program.safetensors"])
def test_a_file_that_the_manifest_does_not_list_is_named(
    manifest: Manifest, tmp_path: Path, name: str
) -> None:
    kept = tuple(entry for entry in manifest.files if entry.path != f"model/{name}")
    assert f"it lists no {name}" in first(replace(manifest, files=kept), tmp_path, HERE)


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("torch.ops.aten.embedding.default", "torch.hub.load", "the operator 'torch.hub.load'"),
        ("torch.ops.aten.embedding.default", "torch.load", "the operator 'torch.load'"),
        *(
            (
                "torch.ops.aten.embedding.default",
                f"torch.ops.aten.{name}",
                f"'torch.ops.aten.{name}",
            )
            for name in (
                "from_file.default",
                "from_file.out",
                "save.default",
                "set_.source_Storage",
                "resize_.default",
                "empty.memory_format",
                "as_strided.default",
            )
        ),
        ("_operator.getitem", "_operator.methodcaller", "the operator '_operator.methodcaller'"),
        ("_operator.getitem", "#os:system", "the operator '#os:system'"),
        (EXPRESSION, "Symbol('s1').__class__", "the size"),
        (EXPRESSION, "exec(chr(1))", r"the size 'exec\(chr\(1\)\)'"),
        (EXPRESSION, "Symbol('x.y')", "the size"),
        ('"guards_code": []', '"guards_code": ["print(1)"]', "code to check its inputs"),
        (EXPRESSION, "Lambda(Symbol('s1'), Integer(2))", "the size"),
        (EXPRESSION, "Integer(10)**Integer(9)", "the size"),
        # Names become source code.
        ("tensors_0", "t=print(1)", r"the name 't=print\(1\)'"),
        ('["a"]', '["a=print(1)"]', "the name"),
        ("head.0.weight", 'head.0\\"+print(1)', "the name"),
        ("head.0.weight", "head.__class__.weight", "the name"),
        ('"s77":', '"u99999999999":', "the symbol"),
        # What no export of ours has.
        ('"name": "n"', '"name": "n", "note": "x"', "a text at 'note'"),
        ('"metadata": {}', '"metadata": {"custom": "1"}', "notes beside its nodes"),
        ('"as_expr"', '"as_graph"', "an argument as_graph"),
        ('"type": "cpu"', '"type": "cuda"', "the device 'cuda'"),
        ('"target": "_operator.getitem"', '"target": []', "no text at 'target'"),
    ],
)
def test_a_graph_that_would_run_something_else_is_refused(
    tmp_path: Path, endpoint_fields: dict[str, Any], old: str, new: str, fault: str
) -> None:
    graph = changed(old, new)
    with pytest.raises(ContractError, match=fault):
        read_program(program(graph))
    manifest = bundle(tmp_path, endpoint_fields, graph)
    assert "torch" in said(manifest, tmp_path, HERE)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("builtins.tuple", "collections.defaultdict"),
        ('"type": "builtins.tuple"', '"type":"collections.defaultdict"'),
        ('"type": "builtins.tuple"', r'"ty\u0070e": "collections.defaultdict"'),
        ("null", ENUM),
        ("null", ENUM.replace("__", r"\\u005f\\u005f")),
        ("null", ENUM.replace("__", r"\u005f\u005f")),
        ("null", "[]"),
        ('tuple", "context": "null"', r'dict", "context": "[\"a\", 1]"'),
        ('tuple", "context": "null"', r'dict", "context": "[\"a\u0027:print(1)\"]"'),
        ('"children_spec": []', '"children_spec": [[]]'),
        ('"children_spec": []', '"children_spec": [{"type": null, "context": "null"}]'),
        ("[1,", "[2,"),
        pytest.param(TREE, "[" * 100_000, id="deep"),
        (TREE, "null"),
    ],
)
def test_a_container_is_what_it_decodes_to(old: str, new: str) -> None:
    with pytest.raises(ContractError, match="containers of another kind"):
        read_program(program(with_container(old, new)))


def test_a_container_gets_to_torch_in_one_spelling() -> None:
    keys = r'dict", "context": "[\"a\"]"'
    given = with_container('tuple", "context": "null"', keys)
    spelt = with_container('tuple", "context": "null"', keys.replace("a", r"\u0061"))
    assert spelt != given
    assert read_program(program(spelt)).graph == given


def test_a_program_is_read_as_it_was_written() -> None:
    whole = TorchProgram("2.13.0", "bf16", (), (), {"a": "b"}, GRAPH)
    assert read_program(whole.to_json()) == whole
    for text in ("{", "[]", '{"schema": 2}', '{"schema": 1, "same": {"a": 1}, "graph": {}}'):
        with pytest.raises(ContractError):
            read_program(text)
