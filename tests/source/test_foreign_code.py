"""Code that comes with a model is not run, whatever stands on stdin."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import SentenceTransformer

from tests.tiny_models import save_classifier, save_sentence_model
from transformer_serving.desk.export.heads import load_head
from transformer_serving.desk.export.language_model import load_language_model
from transformer_serving.desk.failure import ConversionRefused
from transformer_serving.desk.source.language_model import open_language_model
from transformer_serving.desk.source.model import open_source
from transformer_serving.desk.source.tokenizer import load_tokenizer

pytestmark = pytest.mark.usefixtures("agreeing_stdin")


@pytest.fixture
def agreeing_stdin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As `yes | transformer-serving convert`; what the package copies of a model stays in here."""
    monkeypatch.setattr("builtins.input", lambda *_asked: "y")
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "hf"))


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    return tmp_path / "ran"


@pytest.fixture
def folder(tmp_path: Path, marker: Path) -> Path:
    """A classifier with code beside it that writes `marker` as it is imported."""
    model = save_classifier(tmp_path / "model")
    code = f"open({str(marker)!r}, 'w').close()\nraise ValueError('foreign code')\n"
    (model / "own.py").write_text(code)
    return model


def change(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def test_a_config_of_a_models_own(folder: Path, marker: Path) -> None:
    change(folder / "config.json", model_type="own", auto_map={"AutoConfig": "own.Config"})
    with pytest.raises(ConversionRefused, match="models with code of their own are not loaded"):
        open_source(str(folder))
    assert not marker.exists()


def test_a_tokenizer_of_a_models_own(folder: Path, marker: Path) -> None:
    """Of a model type that the package has no tokenizer for."""
    change(folder / "config.json", model_type="vit")
    change(
        folder / "tokenizer_config.json",
        tokenizer_class="OwnTokenizer",
        auto_map={"AutoTokenizer": ["own.Tokenizer", "own.Tokenizer"]},
    )
    with pytest.raises(ConversionRefused, match="tokenizer of 'model' cannot be loaded"):
        load_tokenizer(folder)
    assert not marker.exists()


@pytest.mark.parametrize("form", [dict, list])
def test_a_tokenizer_of_its_own_beside_one_that_the_package_knows(
    folder: Path, marker: Path, form: type
) -> None:
    """It would be the package's, which may make other tokens of a text."""
    own = [None, "own.Tokenizer"]
    change(
        folder / "tokenizer_config.json",
        auto_map=own if form is list else {"AutoTokenizer": own},
    )
    with pytest.raises(ConversionRefused, match=r"auto_map names code of its own, .* of a copy"):
        load_tokenizer(folder)
    assert not marker.exists()


@pytest.mark.parametrize(
    ("task", "name"),
    [
        ("text-classification", "AutoModelForSequenceClassification"),
        ("rerank", "AutoModelForSequenceClassification"),
        ("feature-extraction", "AutoModel"),
        ("sentence-embedding", "AutoModel"),
        ("fill-mask", "AutoModelForMaskedLM"),
    ],
)
def test_a_class_of_its_own_for_a_type_that_the_package_knows(
    folder: Path, marker: Path, task: str, name: str
) -> None:
    """Its encoder may look both ways where the package's looks back, under the same weights."""
    change(folder / "config.json", id2label={"0": "LABEL_0"}, auto_map={"AutoConfig": "own.Config"})
    if task == "fill-mask":
        change(folder / "config.json", architectures=["BertForMaskedLM"])
    assert open_source(str(folder), task=task).task == task
    change(folder / "config.json", auto_map={name: "own.Model"})
    with pytest.raises(ConversionRefused, match=f"code of the model's own for {name}, and models"):
        open_source(str(folder), task=task)
    change(folder / "config.json", auto_map={"AutoModelForCausalLM": "own.Model"})
    assert open_source(str(folder), task=task).task == task
    assert not marker.exists()


def test_a_class_of_a_models_own(folder: Path, marker: Path) -> None:
    """For a config that the package knows, and has no such head of."""
    source = open_source(str(folder))
    change(
        folder / "config.json",
        model_type="dpr",
        auto_map={"AutoModelForSequenceClassification": "own.Model"},
    )
    with pytest.raises(ValueError, match="trust_remote_code"):
        load_head(replace(source, model_type="dpr"), ("input_ids",))
    assert not marker.exists()


def test_a_language_model_of_a_models_own(folder: Path, marker: Path) -> None:
    change(
        folder / "config.json",
        model_type="distilbert",
        architectures=["OwnForCausalLM"],
        auto_map={"AutoModelForCausalLM": "own.Model"},
    )
    with pytest.raises(ConversionRefused, match="contains custom code"):
        load_language_model(open_language_model(str(folder)))
    assert not marker.exists()


def test_an_activation_that_is_none_of_torchs_own_is_refused(tmp_path: Path) -> None:
    """sentence-transformers takes another one for it, and so would the reference."""
    model = save_sentence_model(tmp_path / "model", tmp_path / "scratch", pooling="mean", dense=8)
    config = model / "2_Dense" / "config.json"
    assert open_source(str(model)).head == "vector"
    name = "transformers.activations.NewGELUActivation"
    change(config, activation_function=name)
    said = f"has the activation_function '{name}' in its config.json, which is none of torch's own"
    with pytest.raises(ConversionRefused, match=said):
        open_source(str(model))
    loaded: Any = SentenceTransformer(str(model), device="cpu")
    assert isinstance(loaded[2].activation_function, torch.nn.Tanh)
    change(config, activation_function="torch.nn.modules.activation.GELU")
    assert open_source(str(model)).head == "vector"
