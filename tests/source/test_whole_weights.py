"""Weights that are not whole are refused by the name of their file, before torch is loaded."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.language_models import save_language_model
from tests.tiny_models import save_classifier, save_sentence_model
from transformer_serving.desk.export.onnx import load_module
from transformer_serving.desk.failure import ConversionRefused
from transformer_serving.desk.source.language_model import open_language_model
from transformer_serving.desk.source.model import open_source

_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 9\n"
_DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "a pointer": lambda _: _POINTER,
    "cut in its header": lambda whole: whole[:40],
    "cut in its weights": lambda whole: whole[:-40],
    "empty": lambda _: b"",
    "added to": lambda whole: whole + bytes(8),
    "zeros": lambda whole: bytes(len(whole)),
    "no header of theirs": lambda whole: len(b"[1]").to_bytes(8, "little") + b"[1]",
}


def _classifier(folder: Path) -> tuple[Path, str]:
    return save_classifier(folder / "model"), "model.safetensors"


def _dense(folder: Path) -> tuple[Path, str]:
    model = save_sentence_model(folder / "model", folder / "scratch", pooling="mean", dense=8)
    return model, "2_Dense/model.safetensors"


def _pickled(folder: Path) -> tuple[Path, str]:
    model = save_classifier(folder / "model")
    (model / "model.safetensors").unlink()
    torch.save({"weight": torch.zeros(64)}, model / "pytorch_model.bin")
    return model, "pytorch_model.bin"


def _sharded(folder: Path) -> tuple[Path, str]:
    model = save_language_model("llama", folder / "whole")
    shards = folder / "model"
    whole: Any = AutoModelForCausalLM.from_pretrained(str(model))
    whole.save_pretrained(str(shards), max_shard_size="100KB")
    (model / "model.safetensors").unlink()
    shutil.copytree(model, shards, dirs_exist_ok=True)
    index = json.loads((shards / "model.safetensors.index.json").read_text())
    return shards, sorted(index["weight_map"].values())[-1]


_MODELS = {
    "a classifier": _classifier,
    "a dense module": _dense,
    "a pickle": _pickled,
    "shards": _sharded,
}


@pytest.mark.parametrize("kind", _MODELS)
def test_weights_that_are_not_whole_are_refused(tmp_path: Path, kind: str) -> None:
    model, name = _MODELS[kind](tmp_path)
    whole = (model / name).read_bytes()
    opened: Any = open_language_model if kind == "shards" else open_source
    assert opened(str(model), allow_pickle=True).folder == model
    for damage, done in _DAMAGES.items():
        # torch looks at nothing behind an archive either.
        if (kind, damage) == ("a pickle", "added to"):
            continue
        (model / name).write_bytes(done(whole))
        with pytest.raises(ConversionRefused) as refused:
            opened(str(model), allow_pickle=True)
        assert str(refused.value) == (
            f"the weights '{name}' are not whole: the file is cut short, or a git-lfs pointer "
            "(git lfs pull); fetch the model whole"
        )


def test_a_shard_that_is_not_there_is_refused_by_its_name(tmp_path: Path) -> None:
    """As most downloads end that end early."""
    model, name = _sharded(tmp_path)
    (model / name).unlink()
    with pytest.raises(ConversionRefused) as refused:
        open_language_model(str(model))
    assert str(refused.value) == (
        f"the weights '{name}' are not there, and the model's index of weights names them; fetch "
        "the model whole"
    )


@pytest.mark.parametrize("kept", [1, 40])
def test_an_older_pickle_that_is_cut_short_is_refused_as_it_is_loaded(
    tmp_path: Path, kept: int
) -> None:
    """It does not say how long it is."""
    model, name = _pickled(tmp_path)
    weights = {"weight": torch.zeros(64)}
    torch.save(weights, model / name, _use_new_zipfile_serialization=False)
    (model / name).write_bytes((model / name).read_bytes()[:kept])
    source = open_source(str(model), allow_pickle=True)
    with pytest.raises(ConversionRefused, match="the weights of 'model' could not be loaded"):
        load_module(source, ("input_ids", "token_type_ids", "attention_mask"))
