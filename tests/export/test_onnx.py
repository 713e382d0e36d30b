"""The exported graph computes what the model computes, also on padded rows."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from safetensors.torch import load_file, save_file
from transformers import (
    T5Config,
    T5ForConditionalGeneration,
)

from tests.kept_graphs import KeptGraphs
from tests.tiny_models import (
    save_classifier,
    save_encoder,
    save_longformer,
    save_older_layout,
    save_roberta,
    save_sentence_model,
    save_tokenizer,
)
from transformer_serving.desk.builders.files import EngineFiles
from transformer_serving.desk.builders.table import build_engine
from transformer_serving.desk.export.cleaning import clean_onnx
from transformer_serving.desk.export.endpoint_json import LIMITS, endpoint_of, tokens_of
from transformer_serving.desk.export.onnx import ExportedGraph, export_onnx, tensors_of
from transformer_serving.desk.export.program import export_program
from transformer_serving.desk.failure import ConversionRefused
from transformer_serving.desk.parity.check import (
    ParityReport,
    compare,
    prepare_case,
    refuse_when_over,
)
from transformer_serving.desk.source.model import ModelSource, open_source


def exported(model: Path, folder: Path) -> tuple[ModelSource, ExportedGraph]:
    source = open_source(str(model))
    graph = export_onnx(source, folder / "export.onnx")
    clean_onnx(graph.path)
    return source, graph


def parity_of(source: ModelSource, graph: ExportedGraph, files: EngineFiles) -> ParityReport:
    endpoint = endpoint_of(source, graph, tokens_of(source, None, (16, 32)), LIMITS)
    return compare(prepare_case(source, endpoint), files)


@pytest.fixture(scope="module")
def classifier(
    kept_graphs: KeptGraphs, tmp_path_factory: pytest.TempPathFactory
) -> tuple[ModelSource, ExportedGraph]:
    source = open_source(str(save_classifier(tmp_path_factory.mktemp("classifier"))))
    return source, kept_graphs.graph(source, tmp_path_factory.mktemp("graph"))


def test_classifier_agrees_with_the_pipeline_alone_and_in_padded_batches(
    classifier: tuple[ModelSource, ExportedGraph],
) -> None:
    source, graph = classifier
    files = EngineFiles("onnxruntime", "fp32", (graph.path,))
    report = parity_of(source, graph, files)
    assert report.largest_difference < 1e-5
    assert report.label_agreement == 1.0
    assert report.longest_tokens == source.max_length
    assert report.texts > 15


def test_openvino_agrees_too(classifier: tuple[ModelSource, ExportedGraph], tmp_path: Path) -> None:
    source, graph = classifier
    files = build_engine("openvino", "fp32", graph.path, tmp_path)
    assert [path.name for path in files.files] == ["model.xml", "model.bin"]
    assert parity_of(source, graph, files).largest_difference < 1e-5


def test_graph_is_what_the_engines_of_the_image_read(
    classifier: tuple[ModelSource, ExportedGraph],
) -> None:
    model = onnx.load(str(classifier[1].path))
    assert model.ir_version <= 10
    assert model.opset_import[0].version <= 21
    assert [tensor.name for tensor in model.graph.input] == list(classifier[1].inputs)
    for tensor in model.graph.input:
        assert tensor.type.tensor_type.elem_type == onnx.TensorProto.INT32
        axes = [dim.dim_param for dim in tensor.type.tensor_type.shape.dim]
        assert axes == ["batch", "tokens"]
    assert [tensor.name for tensor in model.graph.output] == ["output"]


def test_graph_holds_nothing_of_the_machine_it_was_made_on(
    classifier: tuple[ModelSource, ExportedGraph],
) -> None:
    content = classifier[1].path.read_bytes()
    assert b"site-packages" not in content
    assert b".py" not in content
    assert not onnx.load(str(classifier[1].path)).graph.value_info


def test_export_twice_gives_the_same_bytes(
    classifier: tuple[ModelSource, ExportedGraph], tmp_path: Path
) -> None:
    source, first = classifier
    again = export_onnx(source, tmp_path / "again.onnx")
    clean_onnx(again.path)
    assert again.path.read_bytes() == first.path.read_bytes()
    engines = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        engines.append(build_engine("openvino", "fp32", first.path, folder))
    one, two = ([path.read_bytes() for path in engine.files] for engine in engines)
    assert one == two


@pytest.mark.parametrize(("pooling", "dense"), [("cls", 0), ("max", 0), ("mean", 12)])
def test_poolings_agree_with_sentence_transformers(
    tmp_path: Path, pooling: str, dense: int
) -> None:
    """Means alone and last tokens: mpnet and qwen3 in tests/test_architectures.py."""
    folders = [tmp_path / name for name in ("model", "scratch", "graph")]
    for folder in folders:
        folder.mkdir()
    model = save_sentence_model(folders[0], folders[1], pooling=pooling, dense=dense)
    source, graph = exported(model, folders[2])
    assert graph.outputs[0].dims == (dense or 32,)
    for engine in ("openvino", "onnxruntime"):
        files = build_engine(engine, "fp32", graph.path, folders[2])
        report = parity_of(source, graph, files)
        assert report.lowest_cosine is not None
        assert report.lowest_cosine > 0.9999999
        assert report.largest_difference < 1e-5


def test_a_model_without_token_types_gets_two_inputs(tmp_path: Path) -> None:
    model = save_roberta(tmp_path)
    source, graph = exported(model, tmp_path)
    assert graph.inputs == ("input_ids", "attention_mask")
    report = parity_of(source, graph, EngineFiles("onnxruntime", "fp32", (graph.path,)))
    assert report.largest_difference < 1e-5


def test_weights_that_are_not_there_are_refused(tmp_path: Path) -> None:
    model = save_classifier(tmp_path)
    (model / "model.safetensors").unlink()
    with pytest.raises(
        ConversionRefused, match="could not be loaded .*; fetch the model whole, or"
    ):
        export_onnx(open_source(str(model)), tmp_path / "graph.onnx")


def test_a_head_without_trained_weights_is_refused(tmp_path: Path) -> None:
    model = save_encoder(tmp_path)
    with pytest.raises(ConversionRefused, match="the weights of .* parts are missing"):
        export_onnx(open_source(str(model), task="fill-mask"), tmp_path / "graph.onnx")


@pytest.mark.parametrize("task", ["sentence-embedding", "feature-extraction"])
def test_the_older_layout_of_an_embedder_is_loaded_and_has_a_reference(
    tmp_path: Path, task: str
) -> None:
    source = open_source(str(save_older_layout(tmp_path)), task=task)
    tokens = tokens_of(source, 16, (16,))
    endpoint = endpoint_of(source, tensors_of(source), tokens, LIMITS)
    assert prepare_case(source, endpoint).expected


@pytest.mark.parametrize("task", ["sentence-embedding", "rerank", "feature-extraction"])
def test_weights_that_would_be_made_up_are_refused_of_an_encoder(tmp_path: Path, task: str) -> None:
    """Norms' would be ones and zeros, so that graph and reference agree; its pooler is not used."""
    model = save_encoder(tmp_path)
    weights = load_file(str(model / "model.safetensors"))
    kept = {name: tensor for name, tensor in weights.items() if "pooler" not in name}
    assert len(kept) < len(weights)
    save_file(kept, str(model / "model.safetensors"), metadata={"format": "pt"})
    tensors_of(open_source(str(model), task=task))
    without = {name: tensor for name, tensor in kept.items() if "LayerNorm" not in name}
    save_file(without, str(model / "model.safetensors"), metadata={"format": "pt"})
    said = rf"weights of {len(kept) - len(without)} parts are missing, the first is .*LayerNorm"
    with pytest.raises(ConversionRefused, match=said):
        tensors_of(open_source(str(model), task=task))


def test_a_model_that_cannot_be_exported_says_why_and_what_would_work(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    save_longformer(tmp_path)
    capfd.readouterr()
    with pytest.raises(ConversionRefused) as refused:
        export_onnx(open_source(str(tmp_path)), tmp_path / "graph.onnx")
    message = str(refused.value)
    assert "model type 'longformer'" in message
    assert "GuardOnDataDependentSymNode" in message
    assert "docs/models.md" in message
    assert "bundle --from" in message
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("broken", "exports"),
    [
        ("torch.onnx.export", lambda source, folder: export_onnx(source, folder / "graph.onnx")),
        ("torch.export.export", lambda source, folder: export_program(source, "fp32", folder)),
        (
            "torch._export.serde.serialize.serialize",
            lambda source, folder: export_program(source, "fp32", folder),
        ),
    ],
    ids=["onnx", "program", "serialize"],
)
def test_an_interruption_that_a_library_hides_is_no_refusal(
    broken: str, exports: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As pybind11 makes of one while a module of it is imported, which the exporters do late."""

    def interrupted(*_: object, **__: object) -> None:
        raise ImportError("initialization failed") from KeyboardInterrupt()

    source = open_source(str(save_classifier(tmp_path)))
    monkeypatch.setattr(broken, interrupted)
    with pytest.raises(KeyboardInterrupt):
        exports(source, tmp_path)


def test_an_encoder_with_a_decoder_is_refused_where_it_wants_more_than_tokens(
    tmp_path: Path,
) -> None:
    config = T5Config(
        vocab_size=120, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, pad_token_id=0
    )
    T5ForConditionalGeneration(config).save_pretrained(str(tmp_path))
    save_tokenizer(tmp_path, token_types=False)
    with pytest.raises(ConversionRefused, match="name --task sentence-embedding to serve"):
        open_source(str(tmp_path))
    source = open_source(str(tmp_path), task="feature-extraction")
    with pytest.raises(ConversionRefused, match="'t5' does not run for task feature-extraction"):
        tensors_of(source)
    # What is advised runs.
    assert tensors_of(open_source(str(tmp_path), task="sentence-embedding")).outputs[0].dims == (
        16,
    )


def test_graph_accepts_any_batch_and_length(
    classifier: tuple[ModelSource, ExportedGraph],
) -> None:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(classifier[1].path))
    for shape in ((1, 1), (1, 48), (5, 2), (70, 3)):
        rows = np.ones(shape, np.int32)
        [output] = session.run(None, dict.fromkeys(classifier[1].inputs, rows))
        assert output.shape == (shape[0], 3)
        assert np.isfinite(output).all()


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ExportedGraph]:
    """A model of means, and the graph of all its tasks."""
    folder = tmp_path_factory.mktemp("embedder")
    model = save_sentence_model(folder / "model", folder / "encoder", pooling="mean")
    return model, exported(model, folder)[1]


@pytest.mark.parametrize(
    ("task", "default"),
    [("sentence-embedding", "document"), ("sentence-similarity", None), ("rerank", "document")],
)
def test_prompts_and_kept_dimensions_are_those_of_the_reference(
    task: str, default: str | None, embedder: tuple[Path, ExportedGraph], tmp_path: Path
) -> None:
    """As e5, arctic and Qwen3-Embedding have them: a prompt for queries, and one for documents."""
    saved, graph = embedder
    model = Path(shutil.copytree(saved, tmp_path / "model"))
    settings = model / "config_sentence_transformers.json"
    written = {
        "prompts": {"query": "the old piano: ", "document": "tea: "},
        "default_prompt_name": default,
        "truncate_dim": 20,
    }
    settings.write_text(json.dumps({**json.loads(settings.read_text()), **written}))
    source = open_source(str(model), task=task)
    assert graph.outputs[0].dims == (32,)
    endpoint = endpoint_of(source, graph, tokens_of(source, None, ()), LIMITS)
    assert endpoint.embedding is not None
    assert endpoint.embedding.dimensions == 20
    report = parity_of(source, graph, EngineFiles("onnxruntime", "fp32", (graph.path,)))
    refuse_when_over(report)
