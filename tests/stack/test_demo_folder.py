"""What `up --demo` builds: a classifier that learned its sentences, found again without torch."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stack.conftest import ROOT, Stack
from transformer_serving.desk import demo as demo_models
from transformer_serving.desk.bundle.folder import open_bundle
from transformer_serving.desk.demo import sentiment
from transformer_serving.desk.failure import Failure

pytestmark = pytest.mark.long


def test_most_held_out_sentences_are_answered_right(stack: Stack) -> None:
    sentences = sentiment.read_sentences(demo_models.sentences_file())
    held_out = [row for row in sentences if row.split == "held_out"]
    status, rows = stack.post("transformer_model", {"text": [row.text for row in held_out]})
    assert status == 200
    right = sum(row["label"] == one.label for row, one in zip(rows, held_out, strict=True))
    assert right >= 0.8 * len(held_out)


def test_the_bundles_are_found_again_without_torch(
    stack: Stack, demo: Path, tmp_path: Path
) -> None:
    target = shutil.copytree(demo, tmp_path / "demo")
    killed = target / ".train.killed"
    killed.mkdir()
    code = (
        "import sys; from pathlib import Path; from transformer_serving.desk import demo; "
        f"found = demo.build_demo_models(Path({str(target)!r}), precision=None, report=print); "
        "assert [b.endpoint for b in found] == ['transformer_model', 'sentence_embeddings']; "
        "assert all(b.request.keys() == {'text'} for b in found); "
        "heavy = {'torch', 'transformers', 'openvino', 'onnx'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    assert "up to date" in done.stdout
    assert not killed.exists()
    (target / "transformer_model" / "tokenizer.json").write_text("{}")
    with pytest.raises(Failure, match=r"tokenizer\.json"):
        open_bundle(target / "transformer_model")
