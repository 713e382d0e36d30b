"""A model of every family, by turns on the two CPU engines: converted, deployed, asked by HTTP, and
equal to what transformers or sentence-transformers answers itself. Both engines of each family are
compared in tests/test_architectures.py."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from tests.architectures import ENGINES, TESTED, Row
from tests.families import FAMILIES, save_model
from tests.preprocess.answers.comparison import check_equal
from tests.stack.conftest import Stack
from tests.stack.task_models import reference_at
from transformer_serving.contract.heads import TASKS
from transformer_serving.desk.conversion.encoder import ConvertRequest, convert

pytestmark = [
    pytest.mark.long,
    pytest.mark.by_hand,
    pytest.mark.filterwarnings("ignore"),
]
# One task a family; docs/models.md has the others.
SERVED_AS = {
    "bert": "sentence-embedding",
    "distilbert": "text-classification",
    "roberta": "question-answering",
    "xlm-roberta": "token-classification",
    "mpnet": "sentence-similarity",
    "deberta-v3": "zero-shot-classification",
    "modernbert": "fill-mask",
    "electra": "token-classification",
    "albert": "question-answering",
    "bart": "zero-shot-classification",
    "qwen3": "sentence-embedding",
    "gemma2": "text-classification",
    "gpt2": "text-classification",
}
CASES = list(zip(SERVED_AS, cycle(ENGINES), strict=False))
# Their lengths fall into different buckets.
TEXTS = (
    "Tea.",
    "The train left early because of snow.",
    "We waited in a small warm room where someone played an old piano.",
    "crème brûlée – 12,50 €",
    "電車は早く出発しました。",
)
BODIES: dict[str, list[dict[str, Any]]] = {
    "text-classification": [
        *({"text": text} for text in TEXTS),
        {"text": TEXTS[1], "text_pair": TEXTS[0]},
    ],
    "token-classification": [{"text": text} for text in TEXTS],
    "question-answering": [{"question": "Why?", "context": text} for text in TEXTS],
    "fill-mask": [{"text": f"{text} <mask>"} for text in TEXTS],
    "zero-shot-classification": [
        {"text": text, "candidate_labels": ["travel", "music"]} for text in TEXTS
    ],
    "sentence-embedding": [{"text": text} for text in TEXTS],
    "sentence-similarity": [
        {"source_sentence": text, "sentences": list(TEXTS)} for text in TEXTS[:2]
    ],
}


def row_of(family: str) -> Row:
    return next(row for row in TESTED if row.family == family and SERVED_AS[family] in row.tasks)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("families")
    rows = {family: row_of(family) for family in SERVED_AS}
    return {
        family: save_model(family, folder / family, row.head, **row.changes)
        for family, row in rows.items()
    }


@pytest.fixture(scope="module")
def deployed(
    cleared: Stack, models: dict[str, Path]
) -> Iterator[dict[tuple[str, str], Future[str]]]:
    """Deploys go on while the next model is converted."""
    with ThreadPoolExecutor(2) as pool:
        waiting = {}
        for family, engine in CASES:
            bundle = models[family].with_name(f"{family} {engine}")
            request = ConvertRequest(
                str(models[family]), task=SERVED_AS[family], engine=engine, precision="fp32"
            )
            convert(request, bundle, lambda step, detail: None)
            command = ("deploy", str(bundle), "--endpoint", f"{family}-{engine}")
            waiting[family, engine] = pool.submit(cleared.run, *command, "--timeout", "200")
        yield waiting


def test_every_family_is_served_and_no_task_lacks_a_body() -> None:
    assert set(SERVED_AS) == set(FAMILIES)
    assert set(SERVED_AS.values()) == set(BODIES) <= set(TASKS)


@pytest.mark.parametrize(("family", "engine"), CASES)
def test_a_family_answers_as_its_reference(
    cleared: Stack,
    models: dict[str, Path],
    deployed: dict[tuple[str, str], Future[str]],
    family: str,
    engine: str,
) -> None:
    deployed[family, engine].result()
    task = SERVED_AS[family]
    reference = reference_at(task, models[family])
    bodies = BODIES[task]
    # All at once, so that texts of several lengths share padded calls.
    with ThreadPoolExecutor(len(bodies)) as clients:
        found = list(clients.map(lambda body: cleared.post(f"{family}-{engine}", body), bodies))
    for body, (status, answer) in zip(bodies, found, strict=True):
        assert status == 200, answer
        check_equal(task, answer, reference(body))
