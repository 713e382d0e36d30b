"""A real Triton with a language model that is a rule (model.py), and endpoints that ask it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from preprocess.handover import Successor
from tests.engine.triton_server import TritonServer
from transformer_serving.contract.worker.request_context import current_operation
from transformer_serving.engine.model_config import TensorConfig, build_config, to_text

VERSION = 77
# Words of the rule, by their ids: see model.py.
MARKS = ("slow", "fail", "hang", "full", "cache", "refuse", "every", "never")
WORDS = tuple(f"w{at}" for at in range(12, 80))
PROMPT = "w20 w21 w22"
TEMPLATE = (
    "{% for message in messages %}{{ message.content }} {% endfor %}"
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
)


def tokenizer() -> bytes:
    """A token a word; </s>, 3, ends a sequence."""
    words = ("[PAD]", "[UNK]", "<s>", "</s>", *MARKS, *WORDS)
    made = Tokenizer(models.WordLevel({word: at for at, word in enumerate(words)}, "[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens([AddedToken(word, special=True) for word in words[:4]])
    return str(made.to_str()).encode()


def fields(**changes: Any) -> dict[str, Any]:
    """endpoint.json of the rule, 64 positions; `changes` are of its generation."""
    return {
        "schema": 1,
        "bundle_version": VERSION,
        "bundle_hash": "ab" * 32,
        "task": "text-generation",
        "head": "generation",
        "inputs": [{"name": "input_ids", "role": "input_ids", "dtype": "INT32"}],
        "outputs": [
            {"name": "token_ids", "dtype": "INT32", "dims": [-1]},
            {"name": "logprobs", "dtype": "FP32", "dims": [-1]},
            {"name": "state", "dtype": "INT32", "dims": [3]},
        ],
        "tokens": {
            "max_length": 64, "buckets": [64], "pad_id": 0, "pad_token": "[PAD]",
            "pad_type_id": 0, "padding_side": "right", "truncate": False,
        },
        "limits": {
            "max_texts": 8, "max_characters": 10_000, "max_tokens": 2_000, "max_batch_size": 1,
        },
        "generation": {
            "engine": "openvino",
            "vocabulary": 80,
            "max_positions": 64,
            "max_new_tokens": 32,
            "default_new_tokens": 16,
            "eos_ids": [3],
            "sampling": {
                "do_sample": False, "temperature": 1.0, "top_p": 1.0, "top_k": 0,
                "repetition_penalty": 1.0,
            },
            "special_tokens": {"eos_token": "</s>"},
            "chat_template": TEMPLATE,
            **changes,
        },
    }  # fmt: skip


def write_model(
    repository: Path, name: str, version: int = VERSION, places: int | None = None
) -> None:
    """`places` is how many sequences it runs at once, without it all."""
    folder = repository / name
    (folder / str(version)).mkdir(parents=True, exist_ok=True)
    shutil.copy(Path(__file__).parent / "model.py", folder / str(version) / "model.py")
    config = build_config(
        name=name,
        backend="python",
        inputs=[
            TensorConfig("input_ids", "INT32", (-1,)), TensorConfig("options", "UINT8", (-1,)),
        ],
        outputs=[
            TensorConfig("token_ids", "INT32", (-1,)), TensorConfig("logprobs", "FP32", (-1,)),
            TensorConfig("state", "INT32", (3,)),
        ],
        max_batch_size=0,
        parameters=None if places is None else {"places": str(places)},
    )  # fmt: skip
    config.model_transaction_policy.decoupled = True
    config.version_policy.all.SetInParent()
    (folder / "config.pbtxt").write_text(to_text(config))


def asked(new: int, **parameters: Any) -> dict[str, Any]:
    return {"text": PROMPT, "parameters": {"max_new_tokens": new, **parameters}}


def three_tokens() -> list[Any]:
    """The events of `asked(3, seed=5)`, each token a message."""
    pieces = [{"index": 0, "text": f" w2{at}"} for at in range(3)]
    end = {
        "index": 0, "text": "", "finish_reason": "length", "prompt_tokens": 3,
        "generated_tokens": 3, "seed": 5,
    }  # fmt: skip
    return [*pieces, end, "[DONE]"]


def lived(server: TritonServer, name: str) -> list[str]:
    """What became of the model's sequences: `ended N` or `cancelled N` with their tokens."""
    file = server.repository / name / "lived"
    return file.read_text().splitlines() if file.is_file() else []


class Asker:
    """One endpoint as the host asks it: one state and three steps."""

    def __init__(
        self, name: str, endpoint: dict[str, Any], tokens: Callable[[], bytes] = tokenizer
    ) -> None:
        self.endpoint = Successor(json.dumps(endpoint).encode(), tokens)
        self.endpoint.model_endpoint = SimpleNamespace(serving_url=name, version=None)

    async def ask(self, body: Any, operation: str | None = None) -> Any:
        """The Response; with an operation, of that path."""
        token = current_operation.set(None if operation is None else (operation, b""))
        try:
            state: dict[str, Any] = {}
            wanted = self.endpoint.preprocess(body, state)
            return self.endpoint.postprocess(await self.endpoint.process(wanted, state), state)
        finally:
            current_operation.reset(token)

    async def answer(self, body: Any, operation: str | None = None) -> Any:
        """The JSON of an answer with status 200."""
        response = await self.ask(body, operation)
        assert response.status_code == 200, response.body
        return orjson.loads(response.body)

    async def refusal(self, body: Any, operation: str | None = None) -> tuple[int, Any]:
        response = await self.ask(body, operation)
        return response.status_code, orjson.loads(response.body)

    async def events(self, body: Any, operation: str | None = None) -> list[Any]:
        """The data of each event, an event's name before its data where it has one."""
        response = await self.ask(
            {**body, "stream": True} if operation is None else body, operation
        )
        assert response.status_code == 200, response.body
        raw = b"".join([chunk async for chunk in response.body_iterator])
        return [event_of(row) for row in raw.decode().split("\n\n") if row]


def event_of(row: str) -> Any:
    name, _, data = row.rpartition("data: ")
    value = data if data == "[DONE]" else orjson.loads(data)
    return (name.removeprefix("event: ").strip(), value) if name else value
