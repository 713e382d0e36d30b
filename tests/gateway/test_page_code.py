"""The code that the page shows of a call, where node is there to write it."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.conftest import ROOT

NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="no node on this machine")
SHOW = """
import { callOf, languages } from "./code.mjs";
const call = callOf("vectors", process.argv[2], "http://here/", false);
const rows = languages(JSON.parse(process.argv[3]), call);
console.log(JSON.stringify(Object.fromEntries(rows.map((row) => [row.name, row.write(call)]))));
"""


VECTORS = {"operations": ["openai.embeddings"]}
TEXT = {
    "operations": ["openai.chat", "openai.completions", "v2.infer"],
    "parameters": [{"name": "do_sample", "default": False}, {"name": "top_k", "default": 50}],
}
SAMPLING = {
    **TEXT, "parameters": [{"name": "do_sample", "default": True}, {"name": "top_k", "default": 5}],
}  # fmt: skip
DRAWN = 'extra_body={"top_k": 50},'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    code = ROOT / "transformer_serving" / "gateway" / "page" / "code.js"
    (tmp_path / "code.mjs").write_bytes(code.read_bytes())
    (tmp_path / "show.mjs").write_text(SHOW)
    return tmp_path


def shown(folder: Path, body: str, card: Any = VECTORS) -> dict[str, str]:
    done = subprocess.run(
        [str(NODE), str(folder / "show.mjs"), body, json.dumps(card)],
        capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    ("body", "lines"),
    [
        ({"text": "a"}, ['input="a",']),
        ({"inputs": ["a", "b"], "parameters": None, "truncate": None}, ['input=["a", "b"],']),
        (
            {"text": "a", "parameters": {"truncate_dim": 4, "normalize_embeddings": True}},
            ['input="a",', "dimensions=4,"],
        ),
    ],
)
def test_openais_call_is_the_same_one(folder: Path, body: Any, lines: list[str]) -> None:
    assert asked(shown(folder, json.dumps(body))["openai"]) == ['model="vectors",', *lines]


def asked(code: str) -> list[str]:
    """The arguments of the call that the code makes of openai's client."""
    compile(code, "shown", "exec")
    inner = code.partition("create(\n")[2].partition("\n)\n")[0]
    return [line.strip() for line in inner.splitlines()]


@pytest.mark.parametrize(
    "body",
    [
        "no JSON",
        "null",
        '"a"',
        "[]",
        '{"text": []}',
        '{"text": [1]}',
        '{"text": "a", "inputs": "b"}',
        '{"text": "a", "truncate": true}',
        '{"text": "a", "timeout_ms": 100}',
        '{"text": "a", "parameters": {"prompt": "b"}}',
        '{"text": "a", "parameters": {"truncate_dim": 4}}',
        '{"text": "a", "parameters": {"normalize_embeddings": true}}',
        '{"source_sentence": "a", "sentences": ["b"]}',
        '{"inputs": {"source_sentence": "a", "sentences": ["b"]}}',
    ],
)
def test_a_call_that_openai_has_not_is_not_shown_as_its(folder: Path, body: str) -> None:
    assert shown(folder, body).keys() == {"curl", "Python"}


@pytest.mark.parametrize(
    ("body", "lines"),
    [
        ({"text": "a"}, ['prompt="a",', "temperature=0,", "echo=True,"]),
        ({"text": "a", "stream": True}, ['prompt="a",', "temperature=0,", "stream=True,"]),
        (
            {
                "inputs": "a",
                "parameters": {
                    "max_new_tokens": 4, "do_sample": True, "temperature": 0.5, "seed": 7,
                    "return_full_text": False, "top_k": None,
                },
            },
            ['prompt="a",', "max_tokens=4,", "temperature=0.5,", "seed=7,", DRAWN],
        ),
        # Who sends one of them samples, also from a model that does not do so by itself.
        (
            {"text": "a", "parameters": {"temperature": 0.7}},
            ['prompt="a",', "temperature=0.7,", DRAWN, "echo=True,"],
        ),
        (
            {"text": "a", "parameters": {"top_p": 0.9, "do_sample": None}},
            ['prompt="a",', "top_p=0.9,", DRAWN, "echo=True,"],
        ),
        (
            {"text": "a", "parameters": {"top_k": 4}},
            ['prompt="a",', 'extra_body={"top_k": 4},', "echo=True,"],
        ),
    ],
)  # fmt: skip
def test_openais_completion_is_the_same_one(folder: Path, body: Any, lines: list[str]) -> None:
    code = shown(folder, json.dumps(body), TEXT)
    assert asked(code["openai"]) == ['model="vectors",', *lines]
    assert ("for piece in answer" in code["openai"]) is body.get("stream", False)


def test_openais_completion_of_a_model_that_samples(folder: Path) -> None:
    code = shown(folder, json.dumps({"text": "a"}), SAMPLING)
    wanted = ['prompt="a",', 'extra_body={"top_k": 5},', "echo=True,"]
    assert asked(code["openai"]) == ['model="vectors",', *wanted]
    calm = json.dumps({"text": "a", "parameters": {"do_sample": False}})
    wanted = ['prompt="a",', "temperature=0,", "echo=True,"]
    assert asked(shown(folder, calm, SAMPLING)["openai"]) == ['model="vectors",', *wanted]


@pytest.mark.parametrize(
    "body",
    [
        '{"text": ["a", "b"]}',
        '{"text": "a", "timeout_ms": 100}',
        '{"text": "a", "parameters": {"min_p": 0.1}}',
        '{"text": "a", "parameters": {"num_return_sequences": 2}}',
    ],
)
def test_a_text_that_openai_has_not_is_not_shown_as_its(folder: Path, body: str) -> None:
    assert shown(folder, body, TEXT).keys() == {"curl", "Python", "tritonclient"}


@pytest.mark.parametrize(
    "body",
    [
        "no JSON", "null", '"a"', "[]", "{}", '{"text": [1]}', '{"parameters": {"top_k": 4}}',
        '{"messages": [{"role": "user", "content": "a"}]}',
        '{"inputs": {"question": "a", "context": "b"}}',
        '{"text": "a", "messages": []}',
    ],
)  # fmt: skip
def test_what_no_tensors_hold_is_not_shown_as_tritonclients(folder: Path, body: str) -> None:
    assert shown(folder, body, TEXT).keys() == {"curl", "Python"}


def test_tritonclient_is_given_texts_as_tensors_and_the_rest_as_parameters(folder: Path) -> None:
    body = {
        "query": "a", "texts": ["b", "c"], "stream": False, "truncate": True, "top_n": 1,
        "parameters": {"return_documents": True},
    }  # fmt: skip
    code = shown(folder, json.dumps(body), TEXT)["tritonclient"]
    compile(code, "shown", "exec")
    assert 'texts = {"query": ["a"], "texts": ["b", "c"]}' in code
    assert '    parameters={"return_documents": True, "top_n": 1, "truncate": True},' in code


def test_tritonclient_is_not_given_what_counts_as_not_sent(folder: Path) -> None:
    body = {"text": "a", "text_pair": None, "truncate": None, "timeout_ms": None}
    code = shown(folder, json.dumps(body), TEXT)["tritonclient"]
    assert "parameters" not in code
    code = shown(folder, json.dumps(body | {"parameters": {"top_k": None}}), TEXT)["tritonclient"]
    assert 'parameters={"top_k": None},' in code


def test_a_stream_is_read_as_it_comes(folder: Path) -> None:
    body = json.dumps({"text": "a", "stream": True})
    code = shown(folder, body, TEXT)
    assert code.keys() == {"curl", "Python", "openai"}
    assert code["curl"].startswith("curl -sN 'http://here/serve/vectors'")
    assert "stream=True" in code["Python"]
    assert "iter_lines" in code["Python"]
    assert code["Python"] != shown(folder, json.dumps({"text": "a"}), TEXT)["Python"]
