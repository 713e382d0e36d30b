"""Every family of models, with its real kind of tokenizer, through convert's steps: exported, built
for both CPU engines, and its answers those of the reference."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.families import save_model
from transformer_serving.bundle_endpoint import LIMITS, endpoint_of, tokens_of
from transformer_serving.model_source import open_source
from transformer_serving.onnx_export import export_onnx
from transformer_serving.optimize import build_engine, clean_onnx
from transformer_serving.parity import compare, prepare_case, refuse_when_over

ENGINES = ("onnxruntime", "openvino")
BUCKETS = (16, 32)


@dataclass(frozen=True)
class Row:
    """A model of `family` with one head, and the tasks that it answers."""

    family: str
    head: str
    tasks: tuple[str, ...]
    changes: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.family}-{self.tasks[0]}"


NAMED = ("contradiction", "neutral", "entailment")
LABELS = {
    "id2label": dict(enumerate(NAMED)),
    "label2id": {name: at for at, name in enumerate(NAMED)},
}
ONE_LABEL = {"id2label": {0: "LABEL_0"}, "label2id": {"LABEL_0": 0}}
CLASSIFIES = ("ForSequenceClassification", ("text-classification", "zero-shot-classification"))
SCORES = ("ForSequenceClassification", ("rerank", "sentence-similarity"))
NAMES = ("ForTokenClassification", ("token-classification",))
ANSWERS = ("ForQuestionAnswering", ("question-answering",))
FILLS = ("ForMaskedLM", ("fill-mask",))
EMBEDS = ("Model", ("sentence-embedding", "sentence-similarity", "rerank"))
EXTRACTS = ("Model", ("feature-extraction",))


def rows(family: str, *heads: tuple[str, tuple[str, ...]]) -> list[Row]:
    changes = {CLASSIFIES: LABELS, NAMES: LABELS, SCORES: ONE_LABEL}
    return [Row(family, *head, changes.get(head, {})) for head in heads]


EVERY_TASK = (CLASSIFIES, SCORES, NAMES, ANSWERS, FILLS, EMBEDS, EXTRACTS)
TESTED = [
    *rows("bert", *EVERY_TASK),
    *rows("xlm-roberta", FILLS, NAMES, SCORES),
    *rows("roberta", FILLS, ANSWERS, CLASSIFIES),
    *rows("distilbert", CLASSIFIES),
    *rows("mpnet", EMBEDS),
    *rows("deberta-v3", CLASSIFIES),
    *rows("modernbert", FILLS),
    *rows("electra", NAMES),
    *rows("albert", ANSWERS),
    *rows("bart", ("ForSequenceClassification", ("zero-shot-classification",))),
    *rows("qwen3", EMBEDS),
]


@pytest.mark.parametrize("row", TESTED, ids=str)
def test_answers_are_the_references(row: Row, tmp_path: Path) -> None:
    changes = dict(row.changes)
    if row.head == "ForSequenceClassification" and not changes:
        changes = LABELS
    model = save_model(row.family, tmp_path / "model", row.head, **changes)
    first = open_source(str(model), task=row.tasks[0])
    graph = export_onnx(first, tmp_path / "graph.onnx")
    clean_onnx(graph.path)
    engines = []
    for engine in ENGINES:
        folder = tmp_path / engine
        folder.mkdir()
        copy = Path(shutil.copy(graph.path, folder))
        engines.append(build_engine(engine, "fp32", copy, folder))
    for task in row.tasks:
        source = open_source(str(model), task=task)
        endpoint = endpoint_of(source, graph, tokens_of(source, None, BUCKETS), LIMITS)
        case = prepare_case(source, endpoint)
        for files in engines:
            report = compare(case, files)
            refuse_when_over(report)
