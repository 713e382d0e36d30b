"""What convert makes, served by a real Triton and asked through preprocess."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from preprocess import Preprocess
from tests.engine.triton_server import TritonServer
from tests.families import save_model
from transformer_serving.contract.golden import agrees
from transformer_serving.desk.bundle.folder import Bundle
from transformer_serving.desk.conversion.encoder import ConvertRequest, convert
from transformer_serving.engine.model_config import from_text, to_text, with_versions

# XLM-R's own vocabulary.
WORDS = 250_002


def converted(
    folder: Path, family: str, head: str, task: str, engine: str, **changes: Any
) -> Bundle:
    # Short texts are enough, but for the pieces of a large vocabulary's tokenizer.
    max_length = None if changes else 40
    model = save_model(family, folder / "model", head, **changes)
    request = ConvertRequest(
        str(model), task=task, engine=engine, precision="fp32", buckets=(16,), max_length=max_length
    )
    return convert(request, folder / "bundle", lambda step, detail: None).bundle


def load(server: TritonServer, bundle: Bundle, name: str) -> None:
    """As the controller does: the files of its version, the configuration under its name."""
    version = bundle.manifest.bundle_version
    folder = server.repository / name
    (folder / str(version)).mkdir(parents=True)
    for path in bundle.model_folder.iterdir():
        if path.name not in ("config.pbtxt", "manifest.json"):
            path.rename(folder / str(version) / path.name)
    config = from_text((bundle.model_folder / "config.pbtxt").read_text())
    (folder / "config.pbtxt").write_text(to_text(with_versions(config, name, [version])))
    server.client().load_model(name)


class Wire:
    """Counts the bytes between preprocess and Triton, both ways."""

    def __init__(self) -> None:
        self.bytes = 0

    @asynccontextmanager
    async def to(self, port: int) -> AsyncIterator[str]:
        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            there, back = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.gather(self._pass(reader, back), self._pass(there, writer))

        relay = await asyncio.start_server(connected, "127.0.0.1", 0)
        try:
            yield f"127.0.0.1:{relay.sockets[0].getsockname()[1]}"
        finally:
            relay.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(ConnectionError):
                while block := await reader.read(65_536):
                    self.bytes += len(block)
                    writer.write(block)
                    await writer.drain()
        finally:
            writer.close()


Ask = Callable[[Any], Any]


@asynccontextmanager
async def endpoint(
    server: TritonServer, bundle: Bundle, name: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Ask, Wire]]:
    wire = Wire()
    async with wire.to(server.addresses.http_port) as address:
        monkeypatch.setenv("TRANSFORMER_SERVING_TRITON_HTTP", address)
        tokenizer = (bundle.folder / "tokenizer.json").read_bytes()
        preprocess = Preprocess(bundle.endpoint.to_json().encode(), lambda: tokenizer)
        preprocess.model_endpoint = SimpleNamespace(serving_url=name, version=None)

        async def ask(body: Any) -> Any:
            state: dict[str, Any] = {}
            request = preprocess.preprocess(body, state)
            answer = preprocess.postprocess(await preprocess.process(request, state), state)
            assert answer.status_code == 200, answer.body
            return json.loads(bytes(answer.body))

        yield ask, wire


@pytest.mark.parametrize(
    ("family", "head", "task", "engine"),
    [
        ("bert", "ForTokenClassification", "token-classification", "openvino"),
        ("roberta", "ForQuestionAnswering", "question-answering", "onnxruntime"),
        ("qwen3", "Model", "rerank", "openvino"),
    ],
)
async def test_the_golden_request_is_answered_through_triton(
    triton_server: TritonServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    family: str,
    head: str,
    task: str,
    engine: str,
) -> None:
    bundle = converted(tmp_path, family, head, task, engine)
    golden = bundle.manifest.golden
    assert bundle.endpoint.golden == golden.request
    name = f"converted_{family}"
    load(triton_server, bundle, name)
    async with endpoint(triton_server, bundle, name, monkeypatch) as (ask, _):
        many = await asyncio.gather(*(ask(golden.request) for _ in range(5)))
    for answer in many:
        assert agrees(answer, golden.answer, golden.tolerance)


@pytest.mark.usefixtures("graphs_are_kept")
@pytest.mark.parametrize("engine", ["openvino", "onnxruntime"])
async def test_a_vocabulary_of_250002_words_stays_in_the_engine(
    triton_server: TritonServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "vocab_size": WORDS}
    bundle = converted(tmp_path, "xlm-roberta", "ForMaskedLM", "fill-mask", engine, **sizes)
    name = f"masks_{engine}"
    load(triton_server, bundle, name)
    text = "the <mask> left early because of <mask> and we <mask>"
    async with endpoint(triton_server, bundle, name, monkeypatch) as (ask, wire):
        golden = await ask(bundle.manifest.golden.request)
        assert agrees(golden, bundle.manifest.golden.answer, bundle.manifest.golden.tolerance)
        before = wire.bytes
        answer = await ask({"text": text, "parameters": {"top_k": 100}})
        assert [len(rows) for rows in answer] == [100, 100, 100]
        # The scores of the three masks over the whole vocabulary would be 3 MB.
        assert 3_000 < wire.bytes - before < 100_000
        targets = {"targets": ["train", "snow"], "top_k": 2}
        asked = await ask({"text": "the <mask> left", "parameters": targets})
        assert len(asked) == 2
        assert wire.bytes - before < 100_000
