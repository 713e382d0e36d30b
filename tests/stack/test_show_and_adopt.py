"""The lines that `show` prints, run as printed; and a hand-made endpoint adopted into a bundle."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.triton_server import wait_until
from tests.stack.conftest import ROOT, Stack
from transformer_serving.desk.bundle.folder import open_bundle
from transformer_serving.desk.deploy.golden import wait_for_golden

pytestmark = [pytest.mark.long, pytest.mark.spare]


def shell(stack: Stack, script: str) -> str:
    environment = stack.environment()
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_printed_lines_serve_the_bundle(stack: Stack, demo: Path) -> None:
    folder = demo / "transformer_model"
    text = stack_free("show", str(folder), "--endpoint", "as_shown")
    lines = re.findall(r"^(?:MODEL_ID=\$\()?clearml-serving .*$", text, re.MULTILINE)
    assert len(lines) == 2
    assert json.loads(stack_free("show", str(folder), "--endpoint", "as_shown", "--json"))[
        "commands"
    ] == {"upload": lines[0], "add": lines[1]}
    shell(stack, "\n".join(lines))
    manifest = open_bundle(folder).manifest
    try:
        reason = wait_for_golden(
            stack.url("as_shown"), manifest.golden, manifest.bundle_version, 180
        )
        assert reason is None
    finally:
        stack.run("remove", "as_shown")


def stack_free(*arguments: str) -> str:
    """A command of the kit that needs no stack."""
    done = subprocess.run(
        [sys.executable, "-m", "transformer_serving.desk.cli", *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    return done.stdout


def test_an_endpoint_added_by_hand_becomes_a_bundle(
    stack: Stack, tiny_classifier: Path, tiny_bundle: Path, tmp_path: Path
) -> None:
    serving = stack.environment()["CLEARML_SERVING_TASK_ID"]
    uploaded = stack.clearml_serving(
        "--id", serving, "model", "upload", "--name", "stock", "--project", "stock",
        "--framework", "onnx", "--path", str(tiny_bundle / "model" / "model.onnx"),
    )  # fmt: skip
    found = re.search(r"new Model ID=([0-9a-f]{32})", uploaded)
    assert found is not None
    stack.clearml_serving(
        "--id", serving, "model", "add", "--engine", "triton", "--endpoint", "stock_by_hand",
        "--model-id", found[1], "--preprocess", str(ROOT / "examples/stock/preprocess.py"),
        "--input-size", "[-1, -1]", "[-1, -1]", "[-1, -1]",
        "--input-type", "int32", "int32", "int32",
        "--input-name", "input_ids", "token_type_ids", "attention_mask",
        "--output-size", "[-1, 3]", "--output-type", "float32", "--output-name", "output",
        "--aux-config", 'platform="onnxruntime_onnx"',
    )  # fmt: skip
    target = tmp_path / "adopted"
    try:
        told = stack.json(
            "adopt", "stock_by_hand", "--tokenizer", str(tiny_classifier), "--task",
            "text-classification", "--text", "the train left early", "--output", str(target),
        )  # fmt: skip
        assert told["engine"] == "onnxruntime"
        bundle = open_bundle(target)
        assert bundle.endpoint.classification is not None
        assert bundle.endpoint.classification.labels == ("bad", "fair", "good")
        stack.run("deploy", str(target), "--endpoint", "stock_by_hand", "--timeout", "180")
        wait_until(
            lambda: (
                stack.post("stock_by_hand", {"text": "the train left early"})
                == (200, bundle.manifest.golden.answer)
            ),
            30,
        )
        missing = stack.run(
            "adopt", "nobody", "--tokenizer", str(tiny_classifier), "--task",
            "text-classification", "--text", "x", "--output", str(tmp_path / "no"), code=2,
        )  # fmt: skip
        assert "there is no endpoint 'nobody'" in missing
    finally:
        stack.run("remove", "stock_by_hand")
