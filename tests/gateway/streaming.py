"""The real app with an endpoint of text-generation, before a real Triton whose model is a rule."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tests.engine.triton_server import TritonServer, running_triton
from tests.gateway.conftest import STOCK_APP, Server, Session, running
from tests.gateway.text_serving import register
from tests.text_engine import fields, lived, tokenizer, write_model
from transformer_serving.desk.bundle import preprocess_file
from transformer_serving.gateway.settings import GENERATE_ENDPOINT


@dataclass(frozen=True)
class Streaming:
    """The app in both ways, and the Triton behind it; the endpoint is named `text`."""

    session: Session
    triton: TritonServer
    servers: dict[str, Server]

    def settings(self, **more: str) -> dict[str, str]:
        return settings_of(self.triton, **more)

    def cancelled(self) -> int:
        return sum(row.startswith("cancelled") for row in lived(self.triton, "text"))


def settings_of(triton: TritonServer, **more: str) -> dict[str, str]:
    return {
        "TRANSFORMER_SERVING_TRITON_GRPC": triton.grpc,
        GENERATE_ENDPOINT.name: "text",
        **more,
    }


@contextlib.contextmanager
def of_the_rule(
    session: Session, folder: Path, *, traces: str | None = None
) -> Iterator[tuple[Session, TritonServer]]:
    """A session whose service has the endpoint `text`, and the Triton with its model."""
    (folder / "text.py").write_text(preprocess_file.build(json.dumps(fields()), tokenizer()))
    with running_triton(folder / "triton", traces=traces) as triton:
        write_model(triton.repository, "text")
        client = triton.client()
        client.load_model("text")
        client.close()
        task = register(session, folder, ["text"])
        environment = {**session.environment, "CLEARML_SERVING_TASK_ID": task}
        yield replace(session, environment=environment, folder=folder), triton


@contextlib.contextmanager
def running_streaming(session: Session, folder: Path, **more: str) -> Iterator[Streaming]:
    """`more` are settings of both servers."""
    with of_the_rule(session, folder) as (own, triton):
        settings = settings_of(triton, **more)
        stock = own.uvicorn(STOCK_APP, **settings)
        with running(own.gateway(**settings), stock) as servers:
            yield Streaming(own, triton, servers)
