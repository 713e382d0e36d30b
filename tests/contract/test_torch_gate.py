"""A bundle of engine torch before several servers, and graphs that torch must not read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.contract.bundles import with_file, write_bundle
from tests.contract.test_gate import first, said
from transformer_serving.contract.errors import ContractError
from transformer_serving.contract.gate.refusals import require_servable
from transformer_serving.contract.gate.server_facts import MISSING, ServerFacts
from transformer_serving.contract.manifest import Manifest
from transformer_serving.contract.torch_program import TorchProgram, read_program
from transformer_serving.engine.bundle_config import config_faults

EXPRESSION = "Mul(Integer(2), Symbol('s77', positive=True, integer=True))"
SIZE = {"as_expr": {"expr_str": EXPRESSION, "hint": {"as_int": 11}}}
NODE = {"target": "torch.ops.aten.embedding.default", "inputs": [{"name": "n", "arg": SIZE}]}
TREE = '[1, {"type": "builtins.tuple", "context": "null", "children_spec": []}]'
GRAPH: dict[str, Any] = {
    "graph_module": {
        "graph": {"nodes": [NODE, {"target": "_operator.getitem", "inputs": []}]},
        "module_call_graph": [{"signature": {"in_spec": TREE, "out_spec": TREE}}],
    },
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


@pytest.fixture
def manifest(tmp_path: Path, endpoint_fields: dict[str, Any]) -> Manifest:
    return bundle(tmp_path, endpoint_fields)


def test_a_server_without_pytorch_is_told_of_the_extra(manifest: Manifest, tmp_path: Path) -> None:
    none = replace(HERE, torch=MISSING)
    message = first(manifest, tmp_path, none)
    assert "this server has no PyTorch; install the extra 'torch' where Triton runs" in message
    assert "pip install 'transformer-serving[torch]'" in message
    with pytest.raises(ContractError, match="has no PyTorch"):
        require_servable(manifest, tmp_path / "model", none, config_faults, prefix="model/")
    require_servable(manifest, tmp_path / "model", HERE, config_faults, prefix="model/")
    # Nothing is refused for what is unknown of a server.
    require_servable(manifest, tmp_path / "model", ServerFacts(), config_faults, prefix="model/")


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
        ("builtins.tuple", "collections.defaultdict", "containers of another kind"),
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


def test_a_program_is_read_as_it_was_written() -> None:
    whole = TorchProgram("2.13.0", "bf16", (), (), {"a": "b"}, GRAPH)
    assert read_program(whole.to_json()) == whole
    for text in ("{", "[]", '{"schema": 2}', '{"schema": 1, "same": {"a": 1}, "graph": {}}'):
        with pytest.raises(ContractError):
            read_program(text)
