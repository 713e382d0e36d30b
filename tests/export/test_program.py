"""A model as a program of torch.export: what the files hold, and what they compute when read."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.engine.torch_models import export_small
from tests.families import FAMILIES, save_model
from tests.tiny_models import POSITIONS, save_classifier, save_longformer
from transformer_serving.contract.errors import ContractError
from transformer_serving.contract.torch_program.operators import OPERATORS
from transformer_serving.contract.torch_program.program import GRAPH, WEIGHTS, read_program
from transformer_serving.desk.export.heads import load_head
from transformer_serving.desk.export.program import Traceable, export_program, write_program
from transformer_serving.desk.failure import ConversionRefused
from transformer_serving.desk.source.model import ModelSource, open_source
from transformer_serving.engine.backends.exported_program import load_program

VOCABULARY = 120


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelSource, Path]:
    source = open_source(str(save_classifier(tmp_path_factory.mktemp("classifier"))))
    return source, export_program(source, "fp32", tmp_path_factory.mktemp("program"))


def rows(texts: int, tokens: int) -> list[torch.Tensor]:
    ids = torch.from_numpy(np.random.default_rng(3).integers(5, VOCABULARY, (texts, tokens)))
    given = ids.int(), torch.zeros_like(ids).int(), torch.ones_like(ids).int()
    return list(given)


@pytest.mark.parametrize("shape", [(1, 1), (1, POSITIONS), (5, 2), (70, 3), (3, 11)])
def test_it_computes_what_the_model_does_at_any_shape(
    classifier: tuple[ModelSource, Path], shape: tuple[int, int]
) -> None:
    source, path = classifier
    loaded = load_program(path)
    names = [tensor.name for tensor in loaded.program.inputs]
    assert names == ["input_ids", "token_type_ids", "attention_mask"]
    given = rows(*shape)
    with torch.inference_mode():
        [found] = loaded.forward(given)
        [wanted] = load_head(source, names)(*given)
    assert found.shape == (shape[0], 3)
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)


def test_attention_is_one_operator_and_types_are_not_checked(
    classifier: tuple[ModelSource, Path],
) -> None:
    graph = json.dumps(read_program(classifier[1].read_bytes()).graph)
    assert graph.count('"torch.ops.aten.scaled_dot_product_attention.default"') == 2
    assert "_assert_tensor_metadata" not in graph


def test_the_rows_of_the_tables_are_known_by_their_input(
    classifier: tuple[ModelSource, Path],
) -> None:
    assert load_program(classifier[1]).id_limits == {
        "input_ids": VOCABULARY, "token_type_ids": 2,
    }  # fmt: skip


@pytest.mark.parametrize(
    "family",
    [
        # BART's ids come to their table through another view of them; others like BERT's.
        family
        if family == "bart"
        else pytest.param(family, marks=(pytest.mark.long, pytest.mark.by_hand))
        for family in FAMILIES
    ],
)
def test_of_every_family_the_ids_of_its_words_are_known(tmp_path: Path, family: str) -> None:
    """A GPU ends the process that reads beyond a table."""
    model = save_model(family, tmp_path / "model", "Model")
    source = open_source(str(model), task="feature-extraction")
    path = export_program(source, "fp32", tmp_path)
    assert load_program(path).id_limits["input_ids"] >= source.vocabulary


def test_nothing_of_the_machine_and_no_pickle_is_in_the_files(
    classifier: tuple[ModelSource, Path],
) -> None:
    folder = classifier[1].parent
    assert sorted(path.name for path in folder.iterdir()) == [GRAPH, WEIGHTS]
    for path in folder.iterdir():
        content = path.read_bytes()
        assert b"site-packages" not in content
        assert b".py" not in content
        # How a pickle of protocol 2 and a zip file begin.
        assert not content.startswith((b"\x80\x02", b"PK"))


def test_export_twice_gives_the_same_bytes(
    classifier: tuple[ModelSource, Path], tmp_path: Path
) -> None:
    source, first = classifier
    again = export_program(source, "fp32", tmp_path)
    for name in (GRAPH, WEIGHTS):
        assert again.with_name(name).read_bytes() == first.with_name(name).read_bytes()


@pytest.mark.parametrize(("precision", "near"), [("bf16", 6e-2), ("fp16", 6e-3)])
def test_weights_are_in_the_precision_and_outputs_in_float32(
    classifier: tuple[ModelSource, Path], tmp_path: Path, precision: str, near: float
) -> None:
    source, whole = classifier
    path = export_program(source, precision, tmp_path)
    ratio = path.with_name(WEIGHTS).stat().st_size / whole.with_name(WEIGHTS).stat().st_size
    assert 0.45 < ratio < 0.75
    given = rows(3, 9)
    with torch.inference_mode():
        [found] = load_program(path).forward(given)
        [wanted] = load_program(whole).forward(given)
    assert found.dtype == torch.float32
    assert 0 < (found - wanted).abs().max() < near * wanted.abs().max()


def test_weights_that_are_one_are_stored_once(tmp_path: Path) -> None:
    """A masked language model's table of words is also its last layer."""
    model = save_model("roberta", tmp_path / "model", "ForMaskedLM")
    source = open_source(str(model), task="fill-mask")
    path = export_program(source, "fp32", tmp_path)
    table = source.vocabulary * 32 * 4
    stored = sum(one.stat().st_size for one in model.glob("*.safetensors"))
    assert path.with_name(WEIGHTS).stat().st_size < stored + table / 2
    loaded = load_program(path)
    names = tuple(tensor.name for tensor in loaded.program.inputs)
    assert names[-2:] == ("mask_positions", "candidates")
    assert loaded.program.same
    # Of a device too: 'meta' is one without memory.
    for held in (loaded.module.state_dict(), load_program(path, "meta").module.state_dict()):
        memory = {tensor.untyped_storage()._cdata for tensor in held.values()}
        assert len(memory) == len(held) - len(loaded.program.same)


def test_a_model_that_cannot_be_exported_says_why_and_what_would_work(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    save_longformer(tmp_path)
    capfd.readouterr()
    with pytest.raises(ConversionRefused) as refused:
        export_program(open_source(str(tmp_path)), "fp32", tmp_path)
    message = str(refused.value)
    assert "model type 'longformer' into a program" in message
    assert "docs/models.md, or with --engine openvino or onnxruntime" in message
    assert capfd.readouterr().err == ""
    assert not (tmp_path / GRAPH).exists()


@torch.library.custom_op("tests::doubled", mutates_args=())
def doubled(tokens: torch.Tensor) -> torch.Tensor:
    return tokens * 2


@doubled.register_fake
def _(tokens: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(tokens)


class WithOwnOperator(torch.nn.Module):
    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (doubled(ids.float()),)


def test_a_model_with_an_operator_of_its_own_is_refused_as_it_is_written(tmp_path: Path) -> None:
    example = (torch.ones((3, 11), dtype=torch.int32),)
    own = Traceable(WithOwnOperator(), ("input_ids",), example, (), "fp32", "own")
    with pytest.raises(ConversionRefused, match=r"the operator 'torch\.ops\.tests\.doubled"):
        write_program(own, tmp_path)


def test_every_operator_that_a_graph_may_call_is_of_atens_and_takes_no_path() -> None:
    schemas: dict[str, list[str]] = {}
    for schema in torch._C._jit_get_all_schemas():
        schemas.setdefault(schema.name, []).append(str(schema))
    assert "filename" in schemas["aten::from_file"][0]
    for name in OPERATORS:
        assert not [one for one in schemas[f"aten::{name}"] if "filename" in one]


@pytest.mark.parametrize("shared", [True, False])
def test_a_graph_that_opens_a_file_is_not_run(tmp_path: Path, shared: bool) -> None:
    """It would be read into an answer, or, shared, be written as the tensor is."""
    path, target = export_small(tmp_path), tmp_path / "opened"
    program = json.loads(path.read_text())
    nodes = program["graph"]["graph_module"]["graph"]["nodes"]
    node = next(one for one in nodes if one["target"].startswith("torch.ops.aten."))
    values = {"filename": {"as_string": str(target)}, "shared": {"as_bool": shared}}
    values["size"] = {"as_int": 8}
    node["target"] = "torch.ops.aten.from_file.default"
    node["inputs"] = [{"name": name, "arg": arg, "kind": 1} for name, arg in values.items()]
    path.write_text(json.dumps(program))
    with pytest.raises(ContractError, match=r"torch\.ops\.aten\.from_file\.default"):
        load_program(path)
    assert not target.exists()


_CONTEXT = json.dumps('{"__enum__": true, "fqn": "imported:a", "name": "b"}')


@pytest.mark.parametrize(
    ("old", "new"),
    [
        # As the last placeholder's default value, in the source code that torch makes of it.
        ('"tensors_1"', "\"tensors_1=__import__('imported')\""),
        # As the context of a container.
        ('\\"null\\"', json.dumps(_CONTEXT.replace("__", r"\u005f\u005f"))[1:-1]),
    ],
    ids=["name", "container"],
)
def test_a_graph_that_imports_a_module_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "imported", raising=False)
    (tmp_path / "imported.py").touch()
    path = export_small(tmp_path)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with contextlib.suppress(Exception):
        load_program(path)
    assert "imported" not in sys.modules
    with pytest.raises(ContractError, match="the graph has"):
        load_program(path)


def test_a_program_that_is_none_is_not_read(tmp_path: Path) -> None:
    path = export_small(tmp_path)
    text = path.read_text()
    path.write_text(text.replace("torch.ops.aten.embedding.default", "torch.hub.load"))
    with pytest.raises(ContractError, match=r"torch\.hub\.load"):
        load_program(path)
