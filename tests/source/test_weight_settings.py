"""Weights that are looked at are those that are read, whatever a model's own settings say."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.language_models import save_language_model
from tests.tiny_models import save_classifier, save_sentence_model
from transformer_serving.desk.export.heads import load_sentence_model
from transformer_serving.desk.failure import ConversionRefused
from transformer_serving.desk.source.language_model import open_language_model
from transformer_serving.desk.source.model import open_source

_SETTINGS = "sentence_bert_config.json"
_SHIFT = 1.0


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Its model.safetensors is a decoy beside pickles, in which each number is greater by one."""
    folder = save_sentence_model(tmp_path / "model", tmp_path / "scratch", pooling="mean")
    weights = load_file(str(folder / "model.safetensors"))
    moved = {name: weight + _SHIFT for name, weight in weights.items()}
    for name in ("pytorch_model.bin", "pytorch_model.x.bin"):
        torch.save(moved, folder / name)
    return folder


def change(path: Path, **fields: Any) -> None:
    values = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps({**values, **fields}))


def first_weight(folder: Path) -> torch.Tensor:
    """As the packages read it."""
    loaded = load_sentence_model(open_source(str(folder)))
    found: torch.Tensor = loaded[0].auto_model.embeddings.word_embeddings.weight.data
    return found


@pytest.mark.parametrize("section", ["model_args", "model_kwargs"])
@pytest.mark.parametrize("given", [{"use_safetensors": False}, {"variant": "x"}])
@pytest.mark.parametrize("allowed", [False, True])
def test_settings_that_lead_past_a_decoy_to_a_pickle_are_refused(
    model: Path,
    section: str,
    given: Mapping[str, Any],
    allowed: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked_at = first_weight(model)
    change(model / _SETTINGS, **{section: given})
    [name] = given
    with pytest.raises(ConversionRefused, match=f"^{section} of .* has '{name}', by which other"):
        open_source(str(model), allow_pickle=allowed)
    # Otherwise it would be those that nobody has looked at.
    monkeypatch.setattr(
        "transformer_serving.desk.source.pickled_weights.refuse_other_weights", lambda *_: None
    )
    assert torch.equal(first_weight(model), looked_at + _SHIFT)


def test_settings_that_change_no_weights_are_taken(model: Path) -> None:
    looked_at = first_weight(model)
    given = {"torch_dtype": "float16", "use_safetensors": True, "variant": None}
    given |= {"add_pooling_layer": False, "revision": "main", "subfolder": "other"}
    change(model / _SETTINGS, model_args=given, config_args={})
    assert torch.equal(first_weight(model), looked_at)


@pytest.mark.parametrize("name", ["_configuration_file", "gguf_file"])
def test_settings_that_name_another_config_are_refused(model: Path, name: str) -> None:
    change(model / _SETTINGS, config_args={name: "other.json"})
    with pytest.raises(ConversionRefused, match=f"^config_args of .* has '{name}'"):
        open_source(str(model))


@pytest.mark.parametrize("kind", ["encoder", "language model"])
def test_a_config_that_names_other_weights_is_refused(tmp_path: Path, kind: str) -> None:
    """An index of that name may have any files."""
    opened: Any = open_source if kind == "encoder" else open_language_model
    folder = tmp_path / "model"
    if kind == "encoder":
        save_classifier(folder)
    else:
        shutil.copytree(save_language_model("llama", tmp_path / "whole"), folder)
    assert opened(str(folder)).folder == folder
    change(folder / "config.json", transformers_weights="x.safetensors.index.json")
    with pytest.raises(ConversionRefused, match="transformers_weights names a file of weights"):
        opened(str(folder), allow_pickle=True)
