"""A language model's callers: hostile prompts and parameters, and streams that nobody reads."""

from __future__ import annotations

import http.client
import json
import socket
import struct
import time
from collections import Counter
from collections.abc import Collection
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import psutil

from tests.attack.ground import Ground
from tests.attack.raw_http import SECRET
from tests.attack.seen import Seen, counted
from tests.language_models import POSITIONS, save_language_model
from transformer_serving.contract.heads import GENERATION
from transformer_serving.desk.bundle.signing import sign_bundle
from transformer_serving.desk.conversion.encoder import ConvertRequest, convert
from transformer_serving.desk.export.endpoint_json import LIMITS

NAME = "writer"
_OK, _BAD, _LARGE = {200}, {400, 422}, {413}
_WORD = SECRET.decode()
_PATIENCE_S = 180
# A template that does with messages what templates do, and refuses what many refuse.
_TEMPLATE = (
    "{% for message in messages %}{% if message.role == 'system' %}{{ raise_exception('none') }}"
    "{% endif %}<{{ message.role }}>{{ message.content | trim }}{% endfor %}<assistant>"
)
_GREEDY = {"text": "my name is ", "parameters": {"max_new_tokens": 12, "ignore_eos": True}}


@dataclass(frozen=True)
class Body:
    """What is sent to an address, and the statuses that it may get."""

    name: str
    body: Any
    allowed: Collection[int]
    path: str = f"/serve/{NAME}"


def _prompts() -> list[Body]:
    """Texts alone: whatever their characters, they are text."""
    texts = {
        "special tokens": "<s></s><s></s>" * 10,
        "controls": "".join(map(chr, range(1, 32))),
        "a NUL": "\0",
        "marks without a letter": "\u0301" * 100,
        "right to left": "\u202e\u2066 abc",
        "an emoji of five code points": "\U0001f468\u200d\U0001f469\u200d\U0001f467",
        "a template": "{{ messages }}{% for x in range(10**9) %}{% endfor %}",
        "an event's end": "\n\ndata: [DONE]\n\nevent: error\n\n",
        "private use": "\ue000\U000f0000",
    }
    rows = [Body(f"prompt: {name}", {"text": text}, _OK) for name, text in texts.items()]
    return [
        *rows,
        *(Body(f"{row.name}, streamed", {**row.body, "stream": True}, _OK) for row in rows),
        Body("prompt: none", {"text": ""}, _BAD),
        Body("prompt: half of a pair", b'{"text": "\\ud800"}', _BAD),
        Body("prompt: one token too many", {"text": f"{_WORD} " * POSITIONS}, _LARGE),
        Body("prompt: a megabyte", {"text": _WORD * 150_000}, _LARGE),
        Body("prompt: 1,000 of them", {"text": ["a"] * 1000}, {200, 503, 504}),
        Body("prompt: one more than texts", {"text": ["a"] * (LIMITS.max_texts + 1)}, _LARGE),
        Body("prompt: two, streamed", {"text": ["a", "b"], "stream": True}, _BAD),
        Body("prompt: in two fields", {"text": _WORD, "inputs": _WORD}, _BAD),
    ]


def _parameters() -> list[Body]:
    values: dict[str, tuple[Any, Collection[int]]] = {
        "max_new_tokens 0": ({"max_new_tokens": 0}, _BAD),
        "max_new_tokens -1": ({"max_new_tokens": -1}, _BAD),
        "max_new_tokens 2^63": ({"max_new_tokens": 2**63}, _BAD),
        "max_new_tokens 1e300": ({"max_new_tokens": 1e300}, _BAD),
        "max_new_tokens of the model": ({"max_new_tokens": POSITIONS - 1}, {200, 413}),
        "temperature 0": ({"do_sample": True, "temperature": 0}, _BAD),
        "temperature 1e-300": ({"do_sample": True, "temperature": 1e-300}, _BAD),
        "temperature 2e-6": ({"do_sample": True, "temperature": 2e-6}, _OK),
        "temperature 100": ({"do_sample": True, "temperature": 100}, _OK),
        "temperature of a word": ({"temperature": _WORD}, _BAD),
        "top_p 0": ({"do_sample": True, "top_p": 0}, _BAD),
        "top_p 1e-300": ({"do_sample": True, "top_p": 1e-300}, _BAD),
        "top_p 2e-6": ({"do_sample": True, "top_p": 2e-6}, _OK),
        "min_p 1.1": ({"do_sample": True, "min_p": 1.1}, _BAD),
        "min_p 1 - 1e-9": ({"do_sample": True, "min_p": 1 - 1e-9}, _OK),
        "top_k 2^31": ({"do_sample": True, "top_k": 2**31}, _BAD),
        "top_k above the vocabulary": ({"do_sample": True, "top_k": 2**31 - 1}, _OK),
        "repetition_penalty 1e-300": ({"repetition_penalty": 1e-300}, _BAD),
        "repetition_penalty 2e-6": ({"repetition_penalty": 2e-6}, _OK),
        "repetition_penalty 100": ({"repetition_penalty": 100}, _OK),
        "repetition_penalty -1": ({"repetition_penalty": -1}, _BAD),
        "seed 2^63": ({"seed": 2**63}, _BAD),
        "seed 2^63 - 1, several": ({"seed": 2**63 - 1, "num_return_sequences": 3}, _OK),
        "64 sequences": ({"num_return_sequences": 64}, {200, 413, 503}),
        "65 sequences": ({"num_return_sequences": 65}, _BAD),
        "stop: an empty one": ({"stop": [""]}, _BAD),
        "stop: 17": ({"stop": ["a"] * 17}, _BAD),
        "stop: 257 characters": ({"stop": "a" * 257}, _BAD),
        "stop: a pattern": ({"stop": ["(a+)+$", ".*"]}, _OK),
        "stop: lists": ({"stop": [[_WORD]]}, _BAD),
        "stop: every letter": ({"stop": list("abcdefghijklmnop")}, _OK),
        "truncate 1": ({"truncate": 1}, _OK),
        "an unknown one": ({_WORD: 1}, _BAD),
        "ids of an end": ({"eos_token_id": [1]}, _BAD),
        "a list": ([_WORD], _BAD),
    }
    return [
        Body(f"parameters: {name}", {"text": "a b c", "parameters": given}, allowed)
        for name, (given, allowed) in values.items()
    ]


def _conversations() -> list[Body]:
    chat = "/v1/chat/completions"
    user = {"role": "user", "content": "a"}
    values: dict[str, tuple[Any, Collection[int]]] = {
        "one": ([user], _OK),
        "none": ([], _BAD),
        "a text": (_WORD, _BAD),
        "refused by the template": ([{"role": "system", "content": _WORD}, user], _BAD),
        "a role of 10,000 letters": ([{"role": _WORD * 2000, "content": "a"}], {400, 413, 422}),
        "content null": ([{"role": "user", "content": None}], _BAD),
        "an image": ([{"role": "user", "content": [{"type": "image_url"}]}], _BAD),
        "10,000 messages": ([user] * 10_000, {400, 413, 422}),
        "a template in it": ([{"role": "user", "content": "{{ 7 * 7 }}"}], _OK),
        "a way out of the sandbox": (
            [{"role": "user", "content": "{{ ''.__class__.__mro__ }}"}],
            _OK,
        ),
    }
    return [
        Body(f"chat: {name}", {"model": NAME, "messages": given, "max_tokens": 4}, allowed, chat)
        for name, (given, allowed) in values.items()
    ]


def hostile(ground: Ground) -> Seen:
    """Each is refused as its own fault or answered; the engine's process and text stay."""
    _deployed(ground)
    before, process = _greedy(ground), _engine(ground)
    cases = [*_prompts(), *_parameters(), *_conversations()]
    faults: list[str] = []
    statuses: Counter[int] = Counter()
    for case in cases:
        status, raw = _sent(ground.port, case)
        statuses[status] += 1
        if status not in case.allowed:
            faults.append(f"{case.name}: {status}")
        if status >= 400 and SECRET in raw:
            faults.append(f"{case.name}: the request's data is repeated")
    if _greedy(ground) != before:
        faults.append("the same prompt has another text")
    if not process.is_running():
        faults.append("the model's process ended")
    told = "; ".join(faults) or "the engine goes on, its text as before"
    return Seen(f"{len(cases)} bodies: {counted(statuses)}; {told}", not faults)


def unread(ground: Ground) -> Seen:
    """Streams whose callers read nothing, then close with bytes unread, as a reset."""
    _deployed(ground)
    before, process = _greedy(ground), _engine(ground)
    callers = 16 if ground.short else 128
    long = {"max_new_tokens": POSITIONS - 20, "ignore_eos": True}
    asked = json.dumps({"text": _GREEDY["text"], "parameters": long, "stream": True}).encode()
    head = (
        f"POST /serve/{NAME} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
        f"content-length: {len(asked)}\r\n\r\n"
    ).encode()
    sockets = []
    for _ in range(callers):
        one = socket.create_connection(("127.0.0.1", ground.port))
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        one.sendall(head + asked)
        sockets.append(one)
    time.sleep(1.0)
    for one in sockets:
        one.close()
    begun = time.monotonic()
    ground.stack.until(lambda: _answers(ground), "the next caller is answered", _PATIENCE_S)
    took = time.monotonic() - begun
    same = _greedy(ground) == before and process.is_running()
    told = "the next caller is answered as before" if same else "the next caller is not"
    return Seen(f"{callers} streams; {told}", same, f"after {took:.1f} s")


def _deployed(ground: Ground) -> None:
    """Once, for both."""
    if NAME in ground.stack.rows():
        return
    source = save_language_model("llama", ground.folder / "llama")
    (source / "chat_template.jinja").write_text(_TEMPLATE)
    request = ConvertRequest(str(source), task=GENERATION, precision="fp32")
    bundle = convert(request, ground.folder / NAME, lambda step, detail: None).bundle
    sign_bundle(bundle.folder, ground.key)
    ground.stack.run("deploy", str(bundle.folder), "--endpoint", NAME)


def _sent(port: int, case: Body) -> tuple[int, bytes]:
    raw = case.body if isinstance(case.body, bytes) else json.dumps(case.body).encode()
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=_PATIENCE_S)) as connection:
        connection.request("POST", case.path, raw, {"content-type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()


def _greedy(ground: Ground) -> str:
    status, answer = ground.stack.post(NAME, _GREEDY)
    assert status == 200, answer
    return str(answer["text"])


def _answers(ground: Ground) -> bool:
    return ground.stack.post(NAME, _GREEDY)[0] == 200


def _engine(ground: Ground) -> psutil.Process:
    """The model's process: Triton's child that has the model's folder in its command line."""
    children = ground.process("triton").children(recursive=True)
    return next(one for one in children if f"/{NAME}/" in " ".join(one.cmdline()))
