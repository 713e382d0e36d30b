"""Clients of generated text, unmodified: openai, huggingface_hub's, langchain-openai."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.clients.environments import Environments
from tests.engine.triton_server import wait_until
from tests.gateway.conftest import running_session
from tests.gateway.streaming import Streaming, running_streaming
from tests.text_engine import PROMPT

ENVIRONMENTS = ("openai", "huggingface", "langchain")
NEXT = " w20 w21 w22 w20"
GREEDY = {"model": "text", "temperature": 0, "max_tokens": 4}
MESSAGES = [{"role": "user", "content": PROMPT}]
USAGE = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
CHAT = {**GREEDY, "messages": MESSAGES}
TEXT = {**GREEDY, "prompt": PROMPT}
OPENAI: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "text": ("/v1", "text", "whole", TEXT),
    "text in chunks": (
        "/v1", "text", "streamed", {**TEXT, "stream_options": {"include_usage": True}},
    ),
    "several": ("/v1", "text", "whole", {**TEXT, "prompt": [PROMPT, PROMPT], "n": 2}),
    "stop": ("/v1", "text", "whole", {**TEXT, "stop": [" w21", "w22"]}),
    "echo": ("/v1", "text", "whole", {**TEXT, "echo": True}),
    "logprobs": ("/v1", "text", "whole", {**TEXT, "logprobs": 1}),
    "chat": ("/v1", "chat", "whole", CHAT),
    "chat in chunks": ("/v1", "chat", "streamed", CHAT),
    "chat with logprobs": ("/v1", "chat", "whole", {**CHAT, "logprobs": True}),
    "chat at TGI": ("/tgi/text/v1", "chat", "whole", {**CHAT, "model": "tgi"}),
    "seed": ("/v1", "text", "whole", {**TEXT, "temperature": 1, "seed": 11}),
    "seed again": ("/v1", "text", "whole", {**TEXT, "temperature": 1, "seed": 11}),
    "no room": ("/v1", "text", "whole", {**TEXT, "prompt": "w20 " * 62}),
    "full": ("/v1", "text", "streamed", {**TEXT, "prompt": "full w20"}),
    "fails": ("/v1", "text", "streamed", {**TEXT, "prompt": "fail w20"}),
    "fails in chat": (
        "/v1", "chat", "streamed",
        {**CHAT, "messages": [{"role": "user", "content": "fail w20"}]},
    ),
    "left": ("/v1", "text", "left", {**TEXT, "prompt": "slow w20", "max_tokens": 32}),
}  # fmt: skip
SHORT = {"prompt": PROMPT, "max_new_tokens": 4}
HUGGINGFACE: dict[str, tuple[str, str, dict[str, Any]]] = {
    "text": ("/tgi/text", "text_generation", SHORT),
    "new text": ("/tgi/text", "text_generation", {**SHORT, "return_full_text": False}),
    "details": ("/tgi/text", "text_generation", {**SHORT, "details": True, "seed": 3}),
    "stream": ("/tgi/text", "text_generation", {**SHORT, "stream": True}),
    "stream of details": (
        "/tgi/text", "text_generation", {**SHORT, "stream": True, "details": True},
    ),
    "inference": ("/hf/text", "text_generation", {**SHORT, "return_full_text": False}),
    "whole": ("/hf/text", "text_generation", SHORT),
    "stop": ("/tgi/text", "text_generation", {**SHORT, "stop": ["w22"]}),
    "chat": ("/tgi/text", "chat_completion", {"messages": MESSAGES, "max_tokens": 4,
                                              "temperature": 0}),
    "chat in chunks": ("/hf/text", "chat_completion", {"messages": MESSAGES, "max_tokens": 4,
                                                       "temperature": 0, "stream": True}),
    "refused": ("/tgi/text", "text_generation", {**SHORT, "watermark": True}),
    "fails": ("/tgi/text", "text_generation", {"prompt": "fail w20", "stream": True}),
}  # fmt: skip


@pytest.fixture(scope="module")
def streaming(
    environments: Environments, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Streaming]:
    folder = tmp_path_factory.mktemp("text")
    (folder / "session").mkdir()
    with (
        running_session(folder / "session") as session,
        running_streaming(session, folder) as made,
    ):
        yield made


@pytest.fixture(scope="module")
def given(streaming: Streaming) -> dict[str, Any]:
    return {"address": f"http://127.0.0.1:{streaming.servers['gateway'].port}"}


@pytest.fixture(scope="module")
def openai(given: Any, streaming: Streaming, environments: Environments) -> Any:
    before = streaming.cancelled()
    answers = environments.ask("openai", "openai_text_client", **given, calls=OPENAI)
    wait_until(lambda: streaming.cancelled() > before, 60)
    return answers


@pytest.fixture(scope="module")
def huggingface(given: Any, environments: Environments) -> Any:
    return environments.ask("huggingface", "huggingface_text_client", **given, calls=HUGGINGFACE)


@pytest.fixture(scope="module")
def langchain(given: Any, environments: Environments) -> Any:
    return environments.ask("langchain", "langchain_text_client", **given, prompt=PROMPT)


def test_openais_text(openai: Any) -> None:
    answer = openai["text"]
    [choice] = answer["choices"]
    assert (choice["text"], choice["finish_reason"]) == (NEXT, "length")
    assert {name: answer["usage"][name] for name in USAGE} == USAGE
    assert [row["text"] for row in openai["several"]["choices"]] == [NEXT] * 4
    stopped = openai["stop"]["choices"][0]
    assert (stopped["text"], stopped["finish_reason"]) == (" w20", "stop")
    assert openai["echo"]["choices"][0]["text"] == PROMPT + NEXT
    listed = openai["logprobs"]["choices"][0]
    assert listed["logprobs"]["token_logprobs"] == [-1.5, -0.5, -1.0, -1.5]


def test_openais_chunks(openai: Any) -> None:
    *chunks, last = openai["text in chunks"]
    assert "".join(row["choices"][0]["text"] for row in chunks) == NEXT
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert {name: last["usage"][name] for name in USAGE} == USAGE


def test_openais_chat(openai: Any) -> None:
    for name in ("chat", "chat with logprobs", "chat at TGI"):
        assert openai[name]["choices"][0]["message"]["content"] == NEXT
    rows = openai["chat with logprobs"]["choices"][0]["logprobs"]["content"]
    assert [row["token"] for row in rows] == [" w20", " w21", " w22", " w20"]
    deltas = [row["choices"][0]["delta"] for row in openai["chat in chunks"]]
    assert deltas[0]["role"] == "assistant"
    assert "".join(row["content"] or "" for row in deltas) == NEXT


def test_openais_seed(openai: Any) -> None:
    assert openai["seed"]["choices"] == openai["seed again"]["choices"]
    assert openai["seed"]["choices"][0]["text"] != NEXT


@pytest.mark.parametrize(
    ("case", "raised", "said"),
    [
        ("no room", "APIStatusError", "62 tokens and 4"),
        ("full", "InternalServerError", "queue is full"),
        ("fails", "APIError", "failed on this input"),
        ("fails in chat", "APIError", "failed on this input"),
    ],
)
def test_openais_errors(openai: Any, case: str, raised: str, said: str) -> None:
    assert openai[case]["raised"] == raised
    assert said in openai[case]["body"]["message"]


def test_openais_caller_may_leave(openai: Any) -> None:
    assert len(openai["left"]) == 2


def test_openais_models(openai: Any) -> None:
    assert [row["id"] for row in openai["models"]["data"]] == ["text"]


def test_huggingfaces_text(huggingface: Any) -> None:
    assert huggingface["new text"] == huggingface["inference"] == NEXT
    assert huggingface["text"] == huggingface["whole"] == PROMPT + NEXT
    assert huggingface["stop"] == PROMPT + " w20 w21 "
    details = huggingface["details"]
    assert details["generated_text"] == PROMPT + NEXT
    assert (details["details"]["finish_reason"], details["details"]["seed"]) == ("length", 3)
    assert [row["text"] for row in details["details"]["tokens"]] == [
        " w20", " w21", " w22", " w20",
    ]  # fmt: skip


def test_huggingfaces_stream(huggingface: Any) -> None:
    assert "".join(huggingface["stream"]) == NEXT
    last = huggingface["stream of details"][-1]
    assert (last["generated_text"], last["details"]["generated_tokens"]) == (PROMPT + NEXT, 4)


def test_huggingfaces_chat(huggingface: Any) -> None:
    assert huggingface["chat"]["choices"][0]["message"]["content"] == NEXT
    deltas = [row["choices"][0]["delta"]["content"] for row in huggingface["chat in chunks"]]
    assert "".join(text or "" for text in deltas) == NEXT


def test_huggingfaces_errors(huggingface: Any) -> None:
    assert "watermark" in huggingface["refused"]["message"]
    assert "failed on this input" in huggingface["fails"]["message"]


def test_langchains_text(langchain: Any) -> None:
    assert langchain["text"] == "".join(langchain["text in chunks"]) == NEXT
    assert len(langchain["text in chunks"]) > 1
    assert langchain["several"] == [NEXT] * 2
    assert langchain["stop"] == " w20"


def test_langchains_chat(langchain: Any) -> None:
    usage = {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7}
    assert langchain["chat"] == "".join(langchain["chat in chunks"]) == NEXT
    assert langchain["chain"] == "".join(langchain["chain in chunks"]) == NEXT
    assert langchain["finish"] == "length"
    for counted in (langchain["usage"], *langchain["usage of chunks"]):
        assert {name: counted[name] for name in usage} == usage
    assert len(langchain["usage of chunks"]) == 1


def test_langchains_errors(langchain: Any) -> None:
    assert "62 tokens and 4" in langchain["no room"]["message"]
    assert "failed on this input" in langchain["fails"]["message"]
