"""One event, as clients read it that have their own idea of a line."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import httpx
import orjson
import pytest
from huggingface_hub import InferenceClient, close_session
from huggingface_hub.utils import _http

from preprocess.generation.voice import DONE, event

# Every character that ends a line somewhere; JSON itself escapes the others.
ENDS = [chr(code) for code in range(sys.maxunicode + 1) if len(f"a{chr(code)}b".splitlines()) > 1]


@pytest.mark.parametrize("end", ENDS, ids=ascii)
def test_an_event_is_one_line_whatever_ends_one_elsewhere(end: str) -> None:
    said = {"text": f"één{end}{end}twee \\{end} “drie”", end: [end]}
    raw = event(said)
    line, *others = raw.decode().splitlines()
    assert others == [""]
    assert json.loads(line.removeprefix("data: ")) == said


def test_other_text_is_as_json_writes_it() -> None:
    for said in ("tea", "“thé” – 茶 …", "\u2027\u202a\x84"):
        assert event(said, "error") == b"event: error\ndata: " + orjson.dumps(said) + b"\n\n"


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """huggingface_hub is answered with a stream of two events, whose last has the prompt."""

    def answer(request: httpx.Request) -> httpx.Response:
        prompt = json.loads(request.content)["inputs"]
        token = {"id": 5, "text": " \u2028", "logprob": -1.0, "special": False}
        first = {"index": 1, "token": token, "generated_text": None, "details": None}
        last = {**first, "index": 2, "generated_text": f"{prompt} \u2028 \u2028"}
        return httpx.Response(
            200, content=event(first) + event(last) + DONE,
            headers={"content-type": "text/event-stream"},
        )  # fmt: skip

    close_session()
    client = httpx.Client(transport=httpx.MockTransport(answer))
    monkeypatch.setattr(_http, "_GLOBAL_CLIENT_FACTORY", lambda: client)
    yield
    close_session()


@pytest.mark.usefixtures("answered")
def test_huggingfaces_client_reads_a_stream_whose_text_ends_lines() -> None:
    client = InferenceClient(model="http://gateway/hf/text")
    prompt = "one\u2028two\u2029three\x85four"
    rows = list(client.text_generation(prompt, stream=True, details=True))
    assert [row.token.text for row in rows] == [" \u2028"] * 2
    assert rows[-1].generated_text == f"{prompt} \u2028 \u2028"
