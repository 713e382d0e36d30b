"""A real Triton with a model that is plain arithmetic: see model.py."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import tritonclient.grpc as triton
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors, trainers
from tritonclient.utils import InferenceServerException

from tests.conftest import SENTENCES
from tests.engine.triton_server import TritonServer, wait_until
from transformer_serving.engine.model_config import TensorConfig, build_config, to_text

VERSION = 77
INPUTS = ("input_ids", "attention_mask")


def tokenizer(pattern: str | None = None) -> bytes:
    """A WordPiece tokenizer with the two marks of model.py as special tokens 5 and 6.

    It splits texts as BERT does, or at what a pattern matches.
    """
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    if pattern is not None:
        made.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[FAIL]", "[SLOW]"]
    made.train_from_iterator(
        SENTENCES, trainers.WordPieceTrainer(vocab_size=200, special_tokens=special)
    )
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return str(made.to_str()).encode()


def endpoint(width: int, *, version: int = VERSION, **limits: int) -> dict[str, Any]:
    """endpoint.json: a classifier without activation for width 2, else sentence vectors."""
    fields: dict[str, Any] = {
        "schema": 1,
        "bundle_version": version,
        "bundle_hash": "ab" * 32,
        "task": "text-classification" if width == 2 else "sentence-embedding",
        "head": "sequence" if width == 2 else "vector",
        "inputs": [{"name": name, "role": name, "dtype": "INT32"} for name in INPUTS],
        "outputs": [{"name": "output", "dtype": "FP32", "dims": [width]}],
        "tokens": {
            "max_length": 512,
            "buckets": [16, 32, 64, 128, 256, 512],
            "pad_id": 0,
            "pad_token": "[PAD]",
            "pad_type_id": 0,
            "padding_side": "right",
            "truncate": False,
        },
        "limits": {
            "max_texts": 100,
            "max_characters": 10_000,
            "max_tokens": 60_000,
            "max_batch_size": 32,
            **limits,
        },
        "classification": None,
        "embedding": None,
    }
    if width == 2:
        fields["classification"] = {
            "labels": ["SUM", "LENGTH"], "problem_type": "single_label", "activation": "none",
        }  # fmt: skip
    else:
        fields["embedding"] = {
            "pooling": "engine", "normalize": False, "dimensions": width,
            "similarity": "dot", "prompts": {}, "default_prompt": None,
        }  # fmt: skip
    return fields


def write_model(
    repository: Path, name: str, width: int, *, version: int = VERSION, max_queue_size: int = 0
) -> None:
    folder = repository / name
    (folder / str(version)).mkdir(parents=True, exist_ok=True)
    shutil.copy(Path(__file__).parent / "model.py", folder / str(version) / "model.py")
    config = build_config(
        name=name,
        backend="python",
        inputs=[TensorConfig(one, "INT32", (-1,)) for one in INPUTS],
        outputs=[TensorConfig("output", "FP32", (width,))],
        max_batch_size=32,
        max_queue_size=max_queue_size,
    )
    config.version_policy.all.SetInParent()
    (folder / "config.pbtxt").write_text(to_text(config))


def load(server: TritonServer, *names: str) -> None:
    """Load the models at once, as the controller does after a start."""

    def one(name: str) -> None:
        with client_of(server) as client:
            client.load_model(name)

    with ThreadPoolExecutor(len(names)) as pool:
        list(pool.map(one, names))


def is_loaded(server: TritonServer, name: str) -> bool:
    with client_of(server) as client, contextlib.suppress(InferenceServerException):
        return bool(client.is_model_ready(name, str(VERSION)))
    return False


@contextlib.contextmanager
def client_of(server: TritonServer) -> Iterator[triton.InferenceServerClient]:
    client = server.client()
    try:
        yield client
    finally:
        client.close()


def back(server: TritonServer, *names: str) -> None:
    """Start a Triton that went, with its models."""
    server.start()
    load(server, *names)
    wait_until(lambda: all(is_loaded(server, name) for name in names), 120)
