"""A long answer is made beside the loop, of every task that makes its answers piece by piece."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import orjson
import pytest
import torch

from preprocess import Preprocess
from preprocess.answers.work import Work
from preprocess.dialects import Conversation
from preprocess.engine import Engine
from preprocess.passage import Passage
from preprocess.queue.admission import Admission
from preprocess.queue.coalesce import Coalescer
from preprocess.request import read_body
from preprocess.settings import read_settings
from preprocess.tensors import Tensor
from preprocess.threads import THREADS, renderers, threads
from tests.preprocess.answers.families import FAMILIES
from tests.preprocess.answers.served import BEST, endpoint_of, serve
from tests.preprocess.answers.test_sentence_models import embedding
from transformer_serving.contract.errors import ServingError
from transformer_serving.contract.worker.request_context import current_operation

LONG = [("tea rain " * 15)] * 30
MASKS = ["[MASK] tea " * 4] * 10
# By task a short body and a long one.
BODIES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "token-classification": ({"text": "tea"}, {"text": LONG}),
    "question-answering": (
        {"question": "who?", "context": "tea"},
        {"question": ["who?"] * 30, "context": LONG[0]},
    ),
    "fill-mask": ({"text": "hot [MASK]"}, {"text": MASKS}),
}


def rows(task: str, work: Any) -> list[Any]:
    if task != "fill-mask":
        return [[np.zeros((len(row.ids), 3), np.float32)] for row in work.encoded]
    masks = [len(row.extras["mask_positions"]) for row in work.encoded]
    return [
        [np.zeros((at, BEST), np.float32), np.zeros((at, BEST), np.int64), np.zeros((at, 1))]
        for at in masks
    ]


@pytest.mark.parametrize("task", BODIES)
async def test_a_long_answer_leaves_the_loop_and_a_short_one_does_not(task: str) -> None:
    endpoint = serve(FAMILIES["bert"], task, torch.nn.Identity())
    engine = Engine(endpoint.endpoint, read_settings(), "endpoint", None)
    for body, on_loop in zip(BODIES[task], (True, False), strict=True):
        request = read_body(body, endpoint.task, endpoint.endpoint.limits)
        work = endpoint.task.encode(request, endpoint.tokenizer)
        threads: list[threading.Thread] = []

        def render(work: Any, threads: list[threading.Thread]) -> Any:
            threads.append(threading.current_thread())
            return endpoint.task.render(rows(task, work), work)

        deadline, who = time.monotonic() + 60, Passage(body)
        answer = await engine.render(work, partial(render, work, threads), deadline, who)
        assert answer == endpoint.task.render(rows(task, work), work)
        assert [thread is threading.main_thread() for thread in threads] == [on_loop]


class Whole:
    """An endpoint from body to answer, before an engine that answers with ones [texts, *shape]."""

    def __init__(self, shape: Callable[[int], Sequence[int]], task: str, **changes: Any) -> None:
        self._shape = shape
        endpoint = endpoint_of(FAMILIES["bert"], task, **changes)
        tokenizer_json = FAMILIES["bert"].tokenizer().to_str().encode()
        self._preprocess = served = Preprocess(endpoint.to_json().encode(), lambda: tokenizer_json)
        served.model_endpoint = SimpleNamespace(serving_url="whole", version=None)
        figures, room = served.engine.departures.figures, Admission(10**6, 2.0)
        served.engine._coalescer = Coalescer(endpoint, self._ones, room, lambda: 1, figures)
        self.tokens: list[int] = []

    async def _ones(self, inputs: list[Tensor], deadline: float) -> Any:
        texts, length = inputs[0].array.shape
        return [np.ones((texts, *self._shape(length)), np.float32)]

    async def answer(self, body: Any, operation: str | None = None) -> Any:
        """In the dialect of an operation; None is our own."""
        state: dict[str, Any] = {}
        token = current_operation.set((operation, b"") if operation else None)
        try:
            request = self._preprocess.preprocess(body, state)
            outcome = await self._preprocess.process(request, state)
            response = self._preprocess.postprocess(outcome, state)
        finally:
            current_operation.reset(token)
        self.tokens = [len(row.ids) for row in state["work"].encoded]
        return orjson.loads(response.body)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each answer that is made, whether that is on the loop."""
    found: list[bool] = []
    own = Conversation.reply

    def reply(self: Conversation, answer: Any, work: Work) -> Any:
        found.append(threading.current_thread() is threading.main_thread())
        return own(self, answer, work)

    monkeypatch.setattr(Conversation, "reply", reply)
    return found


async def test_many_vectors_are_written_beside_the_loop_and_few_are_not(
    written: list[bool],
) -> None:
    """Of vectors it is their JSON that takes long."""
    width = 256
    outputs = [{"name": "output_0", "dtype": "FP32", "dims": [-1, width]}]
    served = Whole(lambda length: (length, width), "feature-extraction", outputs=outputs)
    for text, on_loop in (("tea", True), (LONG, False)):
        found = await served.answer({"text": text, "truncate": True})
        wanted = [[[1.0] * width] * count for count in served.tokens]
        assert found == (wanted[0] if on_loop else wanted)
        assert written.pop() == on_loop
    assert not written


async def test_many_labels_are_written_beside_the_loop_and_few_are_not(
    written: list[bool],
) -> None:
    """A body of one-letter texts asks for as many as the model has, of each."""
    labels = [f"label {at}" for at in range(100)]
    classification = {"labels": labels, "problem_type": "single_label", "activation": "softmax"}
    served = Whole(lambda _: (100,), "text-classification", classification=classification)
    for top_k, count, on_loop in ((1, 1, True), (None, 100, False), (1000, 100, False)):
        body = {"text": ["a"] * 50, "parameters": {"top_k": top_k}}
        found = await served.answer(body)
        wanted = [{"label": label, "score": pytest.approx(0.01)} for label in labels[:count]]
        assert found == [wanted[0] if top_k == 1 else wanted] * 50
        assert written.pop() == on_loop
    assert not written


WIDTH = 1024
FEW, MANY = ["tea"] * 2, ["tea"] * 50
# By task and operation the field of the texts, and what is the answer to many of them.
VECTORS: list[tuple[str, str | None, str, Callable[[Any], Any]]] = [
    ("sentence-embedding", None, "text", lambda found: [row["embedding"] for row in found]),
    ("sentence-embedding", "tei.embed", "inputs", lambda found: found),
    (
        "sentence-embedding", "openai.embeddings", "input",
        lambda found: [row["embedding"] for row in found["data"]],
    ),
    (
        "sentence-similarity", "openai.embeddings", "input",
        lambda found: [row["embedding"] for row in found["data"]],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("task", "operation", "field", "vectors"), VECTORS)
async def test_many_texts_vectors_are_written_beside_the_loop_and_few_are_not(
    task: str,
    operation: str | None,
    field: str,
    vectors: Callable[[Any], Any],
    written: list[bool],
) -> None:
    served = Whole(lambda _: (WIDTH,), task, embedding=embedding(dimensions=WIDTH))
    for texts, on_loop in ((FEW, True), (MANY, False)):
        [*found] = vectors(await served.answer({field: texts}, operation))
        assert len(found) == len(texts)
        assert all(len(vector) == WIDTH for vector in found)
        assert written.pop() == on_loop
    assert not written


async def test_few_numbers_of_many_texts_are_written_on_the_loop(written: list[bool]) -> None:
    """A part of each vector is asked for."""
    served = Whole(lambda _: (WIDTH,), "sentence-embedding", embedding=embedding(dimensions=WIDTH))
    found = await served.answer({"text": MANY, "parameters": {"truncate_dim": 8}})
    assert [len(row["embedding"]) for row in found] == [8] * len(MANY)
    assert written == [True]


@pytest.mark.parametrize("operation", [None, "tei.similarity"])
async def test_many_vectors_of_tokens_are_pooled_beside_the_loop(
    operation: str | None, written: list[bool]
) -> None:
    """However few are written of them."""
    served = Whole(
        lambda length: (length, WIDTH), "sentence-embedding", head="token_vectors",
        outputs=[{"name": "o", "dtype": "FP32", "dims": [-1, WIDTH]}],
        embedding=embedding(pooling="mean", dimensions=WIDTH),
    )  # fmt: skip
    for texts, on_loop in ((FEW, True), (LONG + LONG[:15], False)):
        body: dict[str, Any] = {"text": texts, "parameters": {"truncate_dim": 1}}
        if operation is not None:
            body = {"inputs": {"source_sentence": "tea", "sentences": texts}}
        assert len(await served.answer(body, operation)) == len(texts)
        assert written.pop() == on_loop
    assert not written


async def test_a_long_list_of_tokens_is_written_beside_the_loop(written: list[bool]) -> None:
    limits = {"max_texts": 50, "max_characters": 100_000, "max_tokens": 12_000, "max_batch_size": 8}
    served = Whole(lambda _: (WIDTH,), "sentence-embedding", limits=limits)
    for words, on_loop in ((5, True), (9000, False)):
        [found] = await served.answer({"inputs": "tea " * words}, "tei.tokenize")
        assert len(found) >= words
        assert written.pop() == on_loop
    assert not written


def a_long_one() -> tuple[Engine, Work, dict[str, Any]]:
    """An engine, and a request whose answer is made in a thread."""
    endpoint = serve(FAMILIES["bert"], "token-classification", torch.nn.Identity())
    body = BODIES["token-classification"][1]
    request = read_body(body, endpoint.task, endpoint.endpoint.limits)
    work = endpoint.task.encode(request, endpoint.tokenizer)
    return Engine(endpoint.endpoint, read_settings(), "endpoint", None), work, body


async def test_what_is_computed_is_not_refused_for_who_else_waits() -> None:
    """Both threads are held, for longer than the request has left by what was measured."""
    engine, work, body = a_long_one()
    release, begun = threading.Event(), threading.Barrier(THREADS + 1)
    deadline = time.monotonic() + 60

    def held() -> bool:
        begun.wait(60)
        return release.wait(60)

    for pool in (renderers, threads):
        running = pool.pace.begin(1, time.monotonic() - 100)
        pool.pace.end(running, time.monotonic(), answered=True)
    others = [
        asyncio.create_task(engine.render(work, held, deadline, Passage(body)))
        for _ in range(THREADS)
    ]
    await asyncio.to_thread(begun.wait, 60)
    hasty = Passage(body)
    hasty.own_deadline = True
    mine = asyncio.create_task(engine.render(work, lambda: "made", deadline, hasty))
    await asyncio.sleep(0)
    release.set()
    assert await mine == "made"
    assert await asyncio.gather(*others) == [True] * THREADS


async def test_texts_are_the_callers_however_many_rows_are_made_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the figures of answers and of what is given up, wherever that is."""
    labels = {
        "labels": ["contradiction", "entailment"], "problem_type": "single_label",
        "activation": "softmax", "entailment": 1,
    }  # fmt: skip
    endpoint = serve(
        FAMILIES["bert"], "zero-shot-classification", torch.nn.Identity(), classification=labels
    )
    engine = Engine(endpoint.endpoint, read_settings(), "rows_of_texts", None)
    given_up: list[tuple[str, int]] = []
    figures = engine.departures.figures
    monkeypatch.setattr(figures, "abandoned", lambda *given: given_up.append(given))
    body = {"text": ["tea", "rain"], "candidate_labels": ["a", "b", "c"]}
    request = read_body(body, endpoint.task, endpoint.endpoint.limits)
    passage, soon = Passage(body), time.monotonic() + 60
    encode = partial(endpoint.task.encode, request, endpoint.tokenizer)
    work = await engine.tokenize(request, encode, soon, passage)
    assert (len(work.encoded), passage.texts) == (6, 2)
    passage.caller = asyncio.get_running_loop().create_future()
    passage.caller.set_result(None)
    with pytest.raises(ServingError):
        await engine.infer(work.encoded, soon, passage)
    long, release = work._replace(pieces=10_000), threading.Event()
    try:
        with pytest.raises(ServingError):
            await engine.render(long, lambda: release.wait(60), soon, passage)
    finally:
        release.set()
    assert given_up == [("disconnect", 2), ("disconnect", 2)]


@pytest.mark.parametrize("busy", [False, True])
async def test_texts_that_come_behind_their_deadline_are_given_up_before_any_queue(
    monkeypatch: pytest.MonkeyPatch, busy: bool
) -> None:
    engine, work, body = a_long_one()
    monkeypatch.setattr(Coalescer, "has_room", lambda _: not busy)
    given_up: list[tuple[str, int]] = []
    figures = engine.departures.figures
    monkeypatch.setattr(figures, "abandoned", lambda *given: given_up.append(given))
    late = time.monotonic() - 1
    with pytest.raises(ServingError) as caught:
        await engine.tokenize(work.request, lambda: work, late, Passage(body))
    assert caught.value.kind.code == "deadline"
    assert given_up == [("deadline", len(work.request.texts))]


async def test_an_answer_that_is_made_too_late_is_none() -> None:
    engine, work, body = a_long_one()
    release = threading.Event()
    late = time.monotonic() + 0.05
    try:
        with pytest.raises(ServingError) as caught:
            await engine.render(work, lambda: release.wait(60), late, Passage(body))
    finally:
        release.set()
    assert caught.value.kind.code == "deadline"
