"""docs/api.md: its commands run as they stand, against every task, and answer as the references."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from typing import Any

import pytest

from preprocess.answers import TASKS as TASK_TABLE
from tests.preprocess.answers.comparison import check_equal
from tests.preprocess.answers.served import endpoint_of
from tests.stack.conftest import AT_THE_ROOT, ROOT, EveryTask
from tests.stack.shown_tasks import NAMES
from tests.stack.task_models import reference_of
from transformer_serving.contract.errors import KINDS
from transformer_serving.contract.heads import TASKS

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]
PAGE = (ROOT / "docs" / "api.md").read_text("utf-8")
EXAMPLE = re.compile(
    r"<!-- run -->\n```bash\n(.*?)```\n\n<!-- answer -->\n```json\n(.*?)```", re.DOTALL
)
EXAMPLES = EXAMPLE.findall(PAGE)


def shape(value: Any) -> Any:
    """Keys and types; of a list its first item's."""
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return type(value).__name__


def parsed(command: str) -> tuple[str, dict[str, Any]]:
    """The endpoint that a curl line asks, and its body as an object; at / it is fill-mask."""
    words = shlex.split(command.replace("\\\n", " "))
    address = next(word for word in words if word.startswith("http"))
    endpoint = address.rsplit("/", 1)[1] or AT_THE_ROOT
    if "-H" not in words:
        return endpoint, {"text": words[words.index("-d") + 1]}
    if "-d" in words:
        body: dict[str, Any] = json.loads(words[words.index("-d") + 1])
        return endpoint, body
    return endpoint, {"text": words[words.index("--data-binary") + 1]}


@pytest.mark.parametrize(
    ("command", "shown"), EXAMPLES, ids=[parsed(command)[0] for command, _ in EXAMPLES]
)
def test_an_example_answers_as_the_reference(
    every_task: EveryTask, command: str, shown: str
) -> None:
    stack, folder = every_task
    task, body = parsed(command)
    command = command.replace("127.0.0.1:8080", f"127.0.0.1:{stack.base}")
    command = command.replace(f"/serve/{task}", f"/serve/{NAMES[task]}")
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    answer, expected = json.loads(done.stdout), json.loads(shown)
    if isinstance(expected, dict) and "code" in expected:
        assert answer == expected
        return
    assert shape(answer) == shape(expected)
    check_equal(task, answer, reference_of(task, folder)(body))


def test_every_task_has_an_example_and_all_its_parameters() -> None:
    asked = {parsed(command)[0] for command, _ in EXAMPLES}
    assert asked == set(TASKS)
    sections = dict(re.findall(r"^## (\S+)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE))
    for task in TASKS:
        rows = re.findall(r"^\| `(\w+)` \|", sections[task], re.MULTILINE)
        assert set(rows) == {row.name for row in parameters_of(task)}
    for kind in KINDS.values():
        assert str(kind.status) in sections["Errors"]


def parameters_of(task: str) -> Any:
    from tests.preprocess.answers.families import FAMILIES

    changes: dict[str, Any] = {}
    if task == "zero-shot-classification":
        changes["classification"] = {
            "labels": ["no", "entailment"], "problem_type": "single_label",
            "activation": "softmax", "entailment": 1,
        }  # fmt: skip
    if task == "sentence-similarity":
        changes["head"] = "vector"
    if task == "rerank":
        # A cross-encoder, which has all of them.
        changes["classification"] = {
            "labels": ["score"], "problem_type": "regression", "activation": "sigmoid",
        }  # fmt: skip
    return TASK_TABLE[task](endpoint_of(FAMILIES["bert"], task, **changes)).parameters


LONG = "tea " * 130
# For each task a wrong parameter, an impossible input where there is one, and one too long.
REFUSED: list[tuple[str, dict[str, Any], int]] = [
    ("text-classification", {"text": "a", "parameters": {"top_k": 0}}, 400),
    ("text-classification", {"text": LONG}, 413),
    ("token-classification", {"text": "a", "parameters": {"aggregation_strategy": "x"}}, 400),
    ("token-classification", {"text": LONG, "parameters": {"stride": 118}}, 422),
    ("token-classification", {"text": LONG, "truncate": False}, 413),
    ("question-answering", {"question": "a", "context": "b", "parameters": {"top_k": 0}}, 400),
    ("question-answering", {"question": "a", "context": ""}, 422),
    ("question-answering", {"question": LONG, "context": "b"}, 413),
    ("fill-mask", {"text": "<mask>", "parameters": {"top_k": "5"}}, 400),
    ("fill-mask", {"text": "no mask"}, 422),
    ("fill-mask", {"text": f"<mask> {LONG}"}, 413),
    ("zero-shot-classification", {"text": "a", "candidate_labels": 7}, 400),
    ("zero-shot-classification", {"text": "a", "candidate_labels": []}, 422),
    (
        "zero-shot-classification",
        {"text": LONG, "candidate_labels": ["a"], "truncate": False},
        413,
    ),
    ("feature-extraction", {"text": "a", "parameters": {"truncation": 1}}, 400),
    ("feature-extraction", {"text": LONG}, 413),
    ("sentence-embedding", {"text": "a", "parameters": {"prompt_name": "none such"}}, 400),
    ("sentence-embedding", {"text": LONG, "truncate": False}, 413),
    (
        "sentence-similarity",
        {"source_sentence": "a", "sentences": ["b"], "parameters": {"prompt": 1}},
        400,
    ),
    ("sentence-similarity", {"source_sentence": "a", "sentences": [LONG], "truncate": False}, 413),
    ("rerank", {"query": "a", "texts": ["b"], "parameters": {"top_k": 0}}, 400),
    ("rerank", {"query": "a", "texts": [LONG], "truncate": False}, 413),
]


def test_every_task_refuses_with_the_tables_status(every_task: EveryTask) -> None:
    for task, body, status in REFUSED:
        got, answer = every_task.stack.post(NAMES[task], body)
        assert (task, got) == (task, status), answer
        assert set(answer) == {"code", "message", "field", "limit", "got"}
        assert KINDS[answer["code"]].status == status
    assert {task for task, _, _ in REFUSED} == set(TASKS)
