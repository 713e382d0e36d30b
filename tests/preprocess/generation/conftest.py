"""One Triton with a language model that is a rule, for the tests of all that asks it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from preprocess.triton.clients import close_clients
from tests.engine.triton_server import TritonServer, running_triton
from tests.text_engine import Asker, fields, write_model
from transformer_serving.contract.worker.open_streams import streams_ended


@pytest.fixture(scope="session")
def text_triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    with running_triton(tmp_path_factory.mktemp("text")) as server:
        write_model(server.repository, "text")
        client = server.client()
        client.load_model("text")
        client.close()
        yield server


@pytest.fixture(autouse=True)
async def ended_streams() -> AsyncIterator[None]:
    """As a worker waits for them: the loop's end would cut them off, and perhaps end the Triton."""
    yield
    assert await streams_ended(30)


@pytest.fixture
def address(text_triton: TritonServer) -> str:
    """Of the engine's gRPC; a module with another engine has its own."""
    return text_triton.grpc


@pytest.fixture
def settings(address: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    def choose(**values: str) -> None:
        for name, value in values.items():
            monkeypatch.setenv(f"TRANSFORMER_SERVING_{name}", value)

    choose(TRITON_GRPC=address)
    yield choose
    close_clients()


@pytest.fixture
def text(settings: Any, text_triton: TritonServer) -> Asker:
    return Asker("text", fields())
