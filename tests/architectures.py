"""Models of every family through convert's steps; `python -m tests.architectures` prints the table
of docs/models.md with every task of the families that are tested in full."""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.families import save_model
from transformer_serving.desk.builders.table import build_engine
from transformer_serving.desk.export.cleaning import clean_onnx
from transformer_serving.desk.export.endpoint_json import LIMITS, endpoint_of, tokens_of
from transformer_serving.desk.export.onnx import ExportedGraph, export_onnx, quiet
from transformer_serving.desk.export.program import export_program
from transformer_serving.desk.parity.check import ParityReport, compare, prepare_case, within
from transformer_serving.desk.source.model import ModelSource, open_source

ENGINES = ("openvino", "onnxruntime", "torch")
BUCKETS = (16, 32)


@dataclass(frozen=True)
class Row:
    """A model of `family` with one head and the tasks that it answers; `changes` for save_model."""

    family: str
    head: str
    tasks: tuple[str, ...]
    changes: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        side = self.changes.get("padding_side")
        return f"{self.family}-{self.tasks[0]}{f'-padded-{side}' if side else ''}"


@dataclass(frozen=True)
class Figure:
    """One task on one engine."""

    task: str
    engine: str
    report: ParityReport


def _labels(*names: str) -> dict[str, Any]:
    table = dict(enumerate(names))
    return {"id2label": table, "label2id": {name: at for at, name in table.items()}}


THREE = _labels("contradiction", "neutral", "entailment")
CLASSIFIES = (
    "ForSequenceClassification",
    ("text-classification", "zero-shot-classification"),
    THREE,
)
SCORES = ("ForSequenceClassification", ("rerank", "sentence-similarity"), _labels("LABEL_0"))
NAMES = ("ForTokenClassification", ("token-classification",), THREE)
ANSWERS = ("ForQuestionAnswering", ("question-answering",))
FILLS = ("ForMaskedLM", ("fill-mask",))
EMBEDS = ("Model", ("sentence-embedding", "sentence-similarity", "rerank"))
# sentence-transformers folders: all-MiniLM and all-mpnet pool by means, decoders by last tokens.
MEANS = (*EMBEDS, {"pooling": "mean"})
LAST_TOKENS = (*EMBEDS, {"pooling": "lasttoken"})
EXTRACTS = ("Model", ("feature-extraction",))
EVERY_TASK: tuple[Any, ...] = (CLASSIFIES, SCORES, NAMES, ANSWERS, FILLS, EMBEDS, EXTRACTS)


def _rows(family: str, *heads: Any) -> list[Row]:
    return [Row(family, *head) for head in heads]


_OTHERS = [
    *_rows("distilbert", CLASSIFIES),
    *_rows("mpnet", MEANS),
    *_rows("deberta-v3", CLASSIFIES),
    *_rows("modernbert", FILLS),
    *_rows("electra", NAMES),
    *_rows("albert", ANSWERS),
    *_rows("bart", CLASSIFIES),
    *_rows("qwen3", LAST_TOKENS),
]
# Padding between the start of a row and the text would move positions and the first token.
_PADDED_LEFT = [
    replace(row, changes={**row.changes, "padding_side": "left"})
    for row in (*_rows("bert", CLASSIFIES, ANSWERS), *_rows("xlm-roberta", NAMES))
]
# One architecture as xlm-roberta's and roberta's other rows; their tokenizers fill other rows too.
AGAIN = [*_rows("xlm-roberta", FILLS), *_rows("roberta", FILLS)]
# What the tests check, AGAIN with those that take long; and what `make models` does.
TESTED = [
    *_rows("bert", *EVERY_TASK),
    *_rows("xlm-roberta", NAMES),
    *_rows("roberta", ANSWERS),
    *AGAIN,
    *_OTHERS,
    *_rows("gemma2", CLASSIFIES),
    *_rows("gpt2", CLASSIFIES),
    *_PADDED_LEFT,
]
ALL = [
    *(row for family in ("bert", "xlm-roberta", "roberta") for row in _rows(family, *EVERY_TASK)),
    *_OTHERS,
]


class Graphs:
    """Exported graphs: rows that differ by their tokenizer alone share one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._of: dict[str, ExportedGraph] = {}
        self._programs: dict[str, Path] = {}

    def of(self, model: Path, source: ModelSource) -> ExportedGraph:
        """The graph of these weights and this configuration, with the head of the source's task."""
        name = self._name(model, source)
        if name not in self._of:
            self._of[name] = export_onnx(source, self._folder / f"{name}.onnx")
            clean_onnx(self._of[name].path)
        return self._of[name]

    def program_of(self, model: Path, source: ModelSource) -> Path:
        """The same as a program of torch.export."""
        name = self._name(model, source)
        if name not in self._programs:
            (self._folder / name).mkdir()
            self._programs[name] = export_program(source, "fp32", self._folder / name)
        return self._programs[name]

    def _name(self, model: Path, source: ModelSource) -> str:
        facts = f"{source.head} {source.takes_token_types} {source.tokenizer.pad_id} "
        digest = hashlib.sha256(facts.encode())
        for path in sorted(model.rglob("*")):
            if path.is_file() and "token" not in path.name:
                digest.update(f"{path.relative_to(model)} ".encode() + path.read_bytes())
        return digest.hexdigest()


def figures(row: Row, folder: Path, graphs: Graphs) -> Iterable[Figure]:
    """The row's model exported, built for each engine, and compared on each of its tasks."""
    model = save_model(row.family, folder / "model", row.head, **row.changes)
    graph = graphs.of(model, open_source(str(model), task=row.tasks[0]))
    for task in row.tasks:
        source = open_source(str(model), task=task)
        endpoint = endpoint_of(source, graph, tokens_of(source, None, BUCKETS), LIMITS)
        case = prepare_case(source, endpoint)
        for engine in ENGINES:
            place = folder / task / engine
            place.mkdir(parents=True)
            given = graph.path if engine != "torch" else graphs.program_of(model, source)
            report = compare(case, build_engine(engine, "fp32", given, place))
            yield Figure(task, engine, report)


def asked_families(about: str | None, known: Iterable[str]) -> list[str]:
    """Those that the command line names, none for all."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("families", nargs="*", metavar="FAMILY", help=", ".join(known))
    named: list[str] = parser.parse_args().families
    for name in named:
        if name not in known:
            parser.error(f"no family '{name}'; there are {', '.join(known)}")
    return named


def main(families: list[str]) -> int:
    """Print the table as Markdown. The exit code counts the rows that are over the tolerance."""
    with tempfile.TemporaryDirectory() as folder:
        return _print(families, Graphs(Path(folder)))


def _print(families: list[str], graphs: Graphs) -> int:
    out, failed = sys.stdout, 0
    out.write(f"| family | task | {' | '.join(ENGINES)} |\n|---|---|{'---|' * len(ENGINES)}\n")
    for row in ALL:
        if families and row.family not in families:
            continue
        with tempfile.TemporaryDirectory() as folder, quiet():
            found = list(figures(row, Path(folder), graphs))
        for task in row.tasks:
            reports = [one.report for one in found if one.task == task]
            failed += not all(map(within, reports))
            cells = [f"{one.largest_difference:.1e}" for one in reports]
            out.write(f"| {row.family} | {task} | {' | '.join(cells)} |\n")
            out.flush()
    return failed


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    sys.exit(main(asked_families(__doc__, {row.family: None for row in ALL})))
