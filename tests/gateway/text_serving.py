"""Endpoints of ours on the real app, before a real Triton whose model is plain arithmetic."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from preprocess.tensors import Tensor
from tests.engine.triton_server import TritonServer, running_triton
from tests.gateway.conftest import ENDPOINTS, ROOT, STOCK_APP, Server, Session, running_session
from tests.triton_text import INPUTS, endpoint, load, tokenizer, write_model
from transformer_serving.contract.endpoint import read_endpoint
from transformer_serving.contract.keys import Key, keys_text
from transformer_serving.desk.bundle import preprocess_file
from transformer_serving.desk.parity.local_endpoint import LocalEndpoint
from transformer_serving.gateway.access import KEYS_FILE

# Triton models by name: width of the output, longest queue (0: no limit).
MODELS = {
    "texts": (2, 0), "vectors": (4, 0), "narrow": (2, 1), "faulty": (2, 0), "swayed": (4, 0),
    "ranked": (4, 0),
}  # fmt: skip
# The modulus of the models' arithmetic (triton_text/model.py).
PRIME = 65521
# Endpoints whose models are not in Triton.
MISSING, QUESTIONS, PANICKING = "missing", "questions", "panicking"
# What the health check asks the endpoint "swayed", whose bundle knows the right answer.
GOLDEN = {"text": "a kettle of tea"}
# Searching this in a row of x gives up after very many steps, and the tokenizers library panics.
BACKTRACKING = "(x+x+)+y"
FAULT = """

def _render(rows, work):
    raise KeyError(work.request.texts[0])


_init = Preprocess.__init__


def _broken(self):
    _init(self)
    self.own.task.render = _render


Preprocess.__init__ = _broken
"""


@dataclass(frozen=True)
class TextServing:
    """`session` makes servers of these endpoints; `triton` may be killed and brought back."""

    session: Session
    triton: TritonServer

    def settings(self, **more: str) -> dict[str, str]:
        return {
            "TRANSFORMER_SERVING_TRITON_HTTP": f"127.0.0.1:{self.triton.addresses.http_port}",
            "TRANSFORMER_SERVING_TRITON_GRPC": self.triton.grpc,
            "TOKENIZERS_PARALLELISM": "false",
            **more,
        }

    def gateway(self, *options: str, **settings: str) -> Server:
        return self.session.gateway(*options, **self.settings(**settings))

    @contextlib.contextmanager
    def behind_keys(self, folder: Path, *rows: Key, **settings: str) -> Iterator[Server]:
        """A gateway that is ready and takes these keys."""
        path = folder / "keys.json"
        path.write_text(keys_text(rows))
        server = self.gateway(**{KEYS_FILE.name: str(path)}, **settings).start()
        try:
            yield server.wait_for("/health/ready")
        finally:
            server.stop()

    def stock(self, **settings: str) -> Server:
        return self.session.uvicorn(STOCK_APP, **self.settings(**settings))


@contextlib.contextmanager
def running_text_serving(
    session: Session, folder: Path, *, traces: str | None = None
) -> Iterator[TextServing]:
    # Its part of a trace would else be up to five seconds behind.
    soon = {"OTEL_BSP_SCHEDULE_DELAY": "100"} if traces else {}
    with running_triton(folder / "triton", traces=traces, variables=soon) as triton:
        for name, (width, queue) in MODELS.items():
            write_model(triton.repository, name, width, max_queue_size=queue)
        load(triton, *MODELS)
        write_endpoints(folder)
        names = [
            *MODELS,
            MISSING,
            QUESTIONS,
            PANICKING,
            "holdings=custom_async",
            "queued=custom_async",
        ]
        environment = {
            **session.environment,
            "CLEARML_SERVING_TASK_ID": register(session, folder, names),
        }
        yield TextServing(replace(session, environment=environment, folder=folder), triton)


@contextlib.contextmanager
def text_serving_alone() -> Iterator[TextServing]:
    """With a control plane of its own, outside pytest."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("session", "texts"):
            (folder / part).mkdir()
        with (
            running_session(folder / "session") as session,
            running_text_serving(session, folder / "texts") as serving,
        ):
            yield serving


def write_endpoints(folder: Path) -> None:
    for name, (width, _) in {
        **MODELS,
        **dict.fromkeys((MISSING, QUESTIONS, PANICKING), (2, 0)),
    }.items():
        fields = endpoint(width, **({"max_tokens": 5000} if name == "narrow" else {}))
        if name == QUESTIONS:
            fields |= {"task": "question-answering", "head": "spans", "classification": None}
            fields["outputs"][0]["dims"] = [-1, 2]
            fields["golden"] = {"question": "what?", "context": "tea"}
        if name == "ranked":
            fields |= {"task": "rerank", "golden": {"query": "tea", "texts": ["a kettle"]}}
        pattern = BACKTRACKING if name == PANICKING else None
        # Trained anew its pieces have other numbers, and the endpoint other answers.
        trained = tokenizer(pattern)
        if name == "swayed":
            answer = recorded(fields, trained)
            fields |= {"golden": GOLDEN, "recorded": {"answer": answer, "tolerance": 1e-3}}
        text = preprocess_file.build(json.dumps(fields), trained)
        (folder / f"{name}.py").write_text(text + (FAULT if name == "faulty" else ""))
    for name in ("holdings", "queued"):
        (folder / f"{name}.py").write_text((ENDPOINTS / f"{name}.py").read_text())


def recorded(fields: dict[str, Any], trained: bytes) -> Any:
    """What the arithmetic of triton_text answers to GOLDEN, without Triton."""

    def call(tensors: Sequence[Tensor]) -> list[Any]:
        ids, mask = (
            next(tensor.array for tensor in tensors if tensor.name == name) for name in INPUTS
        )
        return [arithmetic(ids, mask)]

    return LocalEndpoint(read_endpoint(json.dumps(fields)), trained, call).answer(GOLDEN)


def arithmetic(ids: Any, mask: Any) -> Any:
    """As model.py has it, for width 4."""
    output = np.ones((len(ids), 4), np.float32)
    places = np.cumsum(mask, axis=1)
    output[:, 0] = (ids.astype(np.int64) * mask * places).sum(axis=1) % PRIME
    output[:, 1] = mask.sum(axis=1)
    return output


def register(session: Session, folder: Path, names: list[str]) -> str:
    """A serving service of its own on the session's control plane; its id."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.gateway.endpoints.register_bundles", str(folder), *names],
        env=session.environment, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    found = re.search(r"^id=([0-9a-f]{32})$", done.stdout, re.MULTILINE)
    assert found, done.stdout + done.stderr
    return found.group(1)
