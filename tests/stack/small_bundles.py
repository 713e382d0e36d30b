"""Bundles of a few kilobytes around a graph that numpy can check, each told by its own answer."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from unittest.mock import patch

import numpy as np
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors

from tests.engine.small_parity import small_parity_set
from tests.engine.text_models import LABELS, VOCABULARY, expected, write_onnx, write_torch
from transformer_serving.contract.endpoint import (
    Endpoint,
    InputTensor,
    Limits,
    OutputTensor,
    Tokens,
)
from transformer_serving.contract.manifest import Golden, entry_of, read_manifest
from transformer_serving.contract.meanings import Classification
from transformer_serving.desk.builders.files import EngineFiles
from transformer_serving.desk.bundle import preprocess_file
from transformer_serving.desk.bundle.folder import Bundle
from transformer_serving.desk.bundle.writer import BundleContent, write_bundle
from transformer_serving.desk.source.tokenizer import TokenizerFile
from transformer_serving.engine.backends.openvino_quiet import openvino

WORDS = ("rain", "tea", "fog", "kettle", "river", "stone", "lamp", "wind", "garden")
TEXT = "rain tea fog kettle river"
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")


@dataclass(frozen=True)
class Parts:
    """What makes one bundle differ from another; two equal ones are the same bundle."""

    scale: float = 1.0
    labels: tuple[str, ...] = ("one", "two", "three")
    rotated: int = 0  # the words of the vocabulary, moved by so many places
    revision: str = ""  # a comment in the preprocess code
    code: str = ""  # more of it, at its end
    engine: str = "onnxruntime"
    broken: bool = False  # the engine cannot be loaded, though every file is the manifest's
    parity: bool = False  # with a parity set, so that it is proven where it is served
    wrong_at: int | None = None  # the engine is wrong at exactly so many tokens
    split: str = ""  # a pattern by which the tokenizer splits words further
    strange: str = ""  # a word of the tokenizer for which the engine has no row


def write_small(target: Path, parts: Parts | None = None) -> Bundle:
    """Write the bundle; its golden answer is computed here, not asked from an engine."""
    parts = parts or Parts()
    tokenizer = _tokenizer(parts.rotated, parts.split, parts.strange)
    content = BundleContent(
        endpoint=_endpoint(parts),
        tokenizer=TokenizerFile(tokenizer.to_str().encode(), 0, "[PAD]", 0, "right"),
        engine=EngineFiles(parts.engine, "fp32", _engine_files(target, parts)),
        golden=Golden({"text": TEXT}, answer_of(parts), 1e-3),
        parity={},
        source={},
        parity_set=small_parity_set(parts.scale) if parts.parity else None,
    )
    try:
        if not (parts.revision or parts.code):
            return write_bundle(content, target)
        with _other_code(parts.revision, parts.code):
            return write_bundle(content, target)
    finally:
        shutil.rmtree(_scratch(target), ignore_errors=True)


def hash_anew(folder: Path) -> None:
    """What somebody does who changes a file and does not want it to be noticed."""
    path = folder / "model" / "manifest.json"
    manifest = read_manifest(path.read_bytes())
    files = tuple(entry_of(folder, folder / entry.path) for entry in manifest.files)
    path.write_text(replace(manifest, files=files).to_json())


def answer_of(parts: Parts, text: str = TEXT) -> dict[str, object]:
    """Label and score of one text, in numpy."""
    ids = np.array([_tokenizer(parts.rotated, parts.split).encode(text).ids])
    logits = expected(ids, np.ones_like(ids), scale=parts.scale)[0]
    chances = np.exp(logits - logits.max())
    chances /= chances.sum()
    best = int(chances.argmax())
    return {"label": parts.labels[best], "score": float(chances[best])}


@cache
def _tokenizer(rotated: int, split: str = "", strange: str = "") -> Tokenizer:
    at = rotated % len(WORDS)
    words = [*_SPECIAL, *WORDS[at:], *WORDS[:at]]
    assert len(words) <= VOCABULARY
    if strange:
        words += [*(f"[{number}]" for number in range(len(words), VOCABULARY)), strange]
    tokenizer = Tokenizer(
        models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    if split:
        pieces = pre_tokenizers.Split(Regex(split), "isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([tokenizer.pre_tokenizer, pieces])
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer


def _endpoint(parts: Parts) -> Endpoint:
    roles = ("input_ids", "attention_mask")
    return Endpoint(
        bundle_version=0,
        bundle_hash="",
        task="text-classification",
        head="sequence",
        inputs=tuple(InputTensor(role, role, "INT32") for role in roles),
        outputs=(OutputTensor("output", "FP32", (LABELS,)),),
        tokens=Tokens(
            max_length=32,
            buckets=(8, 16, 32),
            pad_id=0,
            pad_token="[PAD]",
            pad_type_id=0,
            padding_side="right",
            truncate=False,
        ),
        limits=Limits(max_texts=100, max_characters=10_000, max_tokens=2_000, max_batch_size=8),
        classification=Classification(parts.labels, "single_label", "softmax"),
        embedding=None,
        masks=None,
    )


def _scratch(target: Path) -> Path:
    return target.with_name(f".{target.name}-parts")


def _engine_files(target: Path, parts: Parts) -> tuple[Path, ...]:
    scratch = _scratch(target)
    if parts.engine == "torch":
        path = write_torch(scratch, scale=parts.scale, wrong_at=parts.wrong_at)
        return (path, path.with_name("program.safetensors"))
    path = write_onnx(scratch, scale=parts.scale, wrong_at=parts.wrong_at)
    if parts.engine == "onnxruntime":
        return (path,)
    openvino.save_model(openvino.convert_model(path), scratch / "model.xml", compress_to_fp16=False)
    if parts.broken:
        (scratch / "model.xml").write_text("<net/>")
    return (scratch / "model.xml", scratch / "model.bin")


class _other_code:
    """The preprocess code with one more comment, or with more code at its end."""

    def __init__(self, revision: str, code: str) -> None:
        plain = dict(preprocess_file._sources())
        plain["preprocess/__init__.py"] += f"\n# {revision}\n{code}\n"
        self._patch = patch.object(preprocess_file, "_sources", lambda: iter(plain.items()))

    def __enter__(self) -> None:
        self._forget()
        self._patch.start()

    def __exit__(self, *_: object) -> None:
        self._patch.stop()
        self._forget()

    @staticmethod
    def _forget() -> None:
        preprocess_file.code_hash.cache_clear()
        preprocess_file._code_zip.cache_clear()
