"""One endpoint a task, named as a user would name them, for what shows all of them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.stack.conftest import Stack
from tests.stack.task_models import bundle_of

NAMES = {
    "text-classification": "reviews",
    "token-classification": "people",
    "question-answering": "questions",
    "fill-mask": "gaps",
    "zero-shot-classification": "topics",
    "feature-extraction": "vectors",
    "sentence-embedding": "search",
    "sentence-similarity": "similar",
    "rerank": "ranking",
}
# Each answered by tests/stack/task_models.py's small models.
BODIES = {
    "text-classification": '{"text": "The staff were kind and breakfast was excellent."}',
    "token-classification": '{"text": "Anna Berg works in Zürich."}',
    "question-answering": '{"question": "where?", "context": "Anna works for the Royal Museum."}',
    "fill-mask": '{"text": "a clerk brought <mask> and said sorry"}',
    "zero-shot-classification": '{"text": "the train left", "candidate_labels": ["travel", "tea"]}',
    "feature-extraction": '{"text": "tea"}',
    "sentence-embedding": '{"text": "tea in Oslo", "parameters": {"normalize_embeddings": true}}',
    "sentence-similarity": '{"source_sentence": "hot tea", "sentences": ["a warm room", "tea"]}',
    "rerank": '{"query": "hot tea", "texts": ["a small warm room", "tea"]}',
}


def deploy_all(stack: Stack, folder: Path) -> None:
    with ThreadPoolExecutor(3) as pool:
        deployed = []
        for task, name in NAMES.items():
            bundle = bundle_of(task, folder)
            command = ("deploy", str(bundle.folder), "--endpoint", name, "--timeout", "200")
            deployed.append(pool.submit(stack.run, *command))
        for one in deployed:
            one.result()
