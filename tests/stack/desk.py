"""A user's desk beside a running stack: model files, and the raw commands to serve them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.engine.text_models import expected, write_onnx
from tests.stack.small_bundles import TEXT, Parts, write_small
from transformer_serving.desk.local.record import require_record

if TYPE_CHECKING:
    from tests.stack.conftest import Stack
    from transformer_serving.desk.bundle.folder import Bundle

IDS = [4, 5, 6]
TENSORS = [
    "--engine", "triton", "--input-size", "[-1]", "[-1]", "--input-type", "int32", "int32",
    "--input-name", "input_ids", "attention_mask", "--output-size", "[3]",
    "--output-type", "float32", "--output-name", "output",
    "--aux-config", 'platform="onnxruntime_onnx"', "max_batch_size=8",
]  # fmt: skip
# Written the stock way: arrays in, arrays out, the call to Triton is the host's own.
STOCK = """
import numpy as np
class Preprocess:
    def preprocess(self, body, state, collect=None):
        ids = np.array([body["ids"]], dtype=np.int32)
        return [ids, np.ones_like(ids)]
    def postprocess(self, data, state, collect=None):
        if collect:
            collect({"first": float(data[0][0])})
        return {"output": [float(x) for x in data[0]], "kind": body_kind}
body_kind = "cat"
"""
OURS, THEIRS = {"text": TEXT}, {"ids": IDS}


@dataclass(frozen=True)
class Desk:
    """What a user has before the commands: model files, each answering with its own scale."""

    stack: Stack
    folder: Path

    def model(self, scale: float, name: str = "model.onnx") -> Path:
        return write_onnx(self.folder / f"of {scale}", scale=scale, file_name=name)

    def code(self, text: str = STOCK) -> str:
        path = self.folder / "preprocess.py"
        path.write_text(text)
        return str(path)

    def upload(self, name: str, *arguments: str) -> str:
        said = self.stack.clearml_serving(
            "model", "upload", "--name", name, "--project", "commands", "--framework", "onnx",
            *arguments,
        )  # fmt: skip
        found = re.search(r"Model ID=([0-9a-f]{32})", said)
        assert found, said
        return found[1]

    def add(self, endpoint: str, *arguments: str) -> None:
        self.stack.clearml_serving(
            "model", "add", "--endpoint", endpoint, "--preprocess", self.code(), *TENSORS,
            *arguments,
        )  # fmt: skip

    def upload_bundle(self, name: str, bundle: Bundle) -> str:
        destination = f"{self.files}/{name}".replace(" ", "_")
        return self.upload(name, "--path", str(bundle.model_folder), "--destination", destination)

    @property
    def files(self) -> str:
        ports = require_record(self.stack.state).ports
        return f"http://127.0.0.1:{ports.control_plane}"

    def answers(self, endpoint: str, scale: float) -> bool:
        """Whether the endpoint answers with the model of that scale."""
        status, body = self.stack.post(endpoint, THEIRS)
        ids = np.array([IDS])
        wanted = expected(ids, np.ones_like(ids), scale=scale)[0]
        return status == 200 and np.allclose(body["output"], wanted, atol=1e-4)

    def until_answers(self, endpoint: str, scale: float) -> None:
        self.stack.until(lambda: self.answers(endpoint, scale), f"{endpoint} with {scale}")

    def until_status(self, endpoint: str, status: int, body: Any = OURS) -> None:
        self.stack.until(
            lambda: self.stack.post(endpoint, body)[0] == status, f"{endpoint} {status}"
        )


def served(stack: Stack, serving_id: str | None = None) -> list[str]:
    """Names of endpoints, auto-update endpoints and canaries, as `model list` prints them."""
    listed = stack.clearml_serving("--id", serving_id or stack.serving_id, "model", "list")
    parts = re.split(r"^(?:Endpoints|Model Monitoring|Canary):$", listed, flags=re.MULTILINE)[1:]
    assert len(parts) == 3, listed
    return [name for part in parts for name in json.loads(part)]


@dataclass(frozen=True)
class Registered:
    """A bundle whose model is uploaded, ready to be added under any name."""

    bundle: Bundle
    model_id: str

    @property
    def version(self) -> int:
        return self.bundle.manifest.bundle_version


def register(stack: Stack, folder: Path, scales: tuple[float, ...]) -> list[Registered]:
    desk = Desk(stack, folder)
    found = []
    for scale in scales:
        bundle = write_small(folder / f"bundle of {scale}", Parts(scale=scale))
        found.append(Registered(bundle, desk.upload_bundle(f"changing {scale}", bundle)))
    return found
