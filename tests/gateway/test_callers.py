"""Callers that leave, message by message: who hears of it, and what a request costs meanwhile."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from starlette.responses import Response

from tests.gateway.played_host import App, Ours, Processor, host_of
from transformer_serving.contract.worker.request_context import current_caller
from transformer_serving.gateway import callers as callers_module
from transformer_serving.gateway.callers import Caller, Callers
from transformer_serving.gateway.front_door import FrontDoor
from transformer_serving.gateway.settings import read_settings


async def until(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not what():
            await asyncio.sleep(0.005)


class Connection:
    """A connection that brings one whole body; `close` is its caller's."""

    def __init__(self) -> None:
        self.closed = asyncio.Event()
        self.asked = 0
        self.body: list[Any] = [{"type": "http.request", "body": b"{}", "more_body": False}]

    async def receive(self) -> Any:
        if self.body:
            return self.body.pop()
        self.asked += 1
        await self.closed.wait()
        return {"type": "http.disconnect"}


class WaitingProcessor(Processor):
    """Counts requests in and out as the host does; answers when let, or when the caller left."""

    def __init__(self) -> None:
        super().__init__({"ours": Response(b"{}"), "other": None})
        self.engines["other"] = "sklearn"
        self.changed()
        self.built("ours", Ours())
        self.let = asyncio.Event()
        self.left = 0

    async def process_request(self, base_url: str, version: str | None, request_body: Any) -> Any:
        self._request_processing_state.inc()
        try:
            caller = current_caller.get()
            assert caller is not None
            caller.add_done_callback(lambda _: self.let.set())
            await self.let.wait()
            self.left += caller.done()
        finally:
            self._request_processing_state.dec()
        return Response(b"{}")


class WaitingApp(App):
    """The host's own app, in which an endpoint of ours may run as well."""

    def __init__(self, processor: WaitingProcessor) -> None:
        super().__init__()
        self._processor = processor

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["body"] == b"{}"
        await self._processor.process_request("ours", None, {})
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": b"host"})


class Door:
    def __init__(self) -> None:
        self.processor = WaitingProcessor()
        self.host = host_of(self.processor)
        self.host.app = WaitingApp(self.processor)
        settings = replace(
            read_settings({}), max_body_bytes=100, max_body_elements=100, body_memory_bytes=1000,
            body_seconds=5, body_stall_seconds=60, drain_seconds=0,
        )  # fmt: skip
        self.app = FrontDoor(self.host, settings)
        self.sent: list[Any] = []

    def post(self, path: str, connection: Connection) -> asyncio.Task[None]:
        async def send(message: Any) -> None:
            self.sent.append(message)

        headers = [(b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": path, "headers": headers}
        return asyncio.create_task(self.app(scope, connection.receive, send))

    def is_empty(self) -> bool:
        return not (self.app._serving.callers._new or self.app._serving.callers._older)


@pytest.mark.parametrize("path", ["/serve/ours", "/serve/other"])
async def test_who_works_for_a_caller_that_left_hears_of_it(path: str) -> None:
    """By the short way and through the host's app; the host's count is what it was."""
    door, connection = Door(), Connection()
    running = door.post(path, connection)
    await until(lambda: connection.asked > 0)
    assert door.processor._request_processing_state.value == 1
    connection.closed.set()
    await asyncio.wait_for(running, 20)
    assert door.processor.left == 1
    assert door.processor._request_processing_state.value == 0
    assert door.is_empty()


async def test_nothing_is_sent_to_one_who_left() -> None:
    door, connection = Door(), Connection()
    running = door.post("/serve/ours", connection)
    await until(lambda: connection.asked > 0)
    connection.closed.set()
    await asyncio.wait_for(running, 20)
    assert door.sent == []


async def test_a_quick_answer_asks_nobody_for_the_end_of_its_connection() -> None:
    door, connection = Door(), Connection()
    door.processor.let.set()
    for _ in range(50):
        connection.body = [{"type": "http.request", "body": b"{}", "more_body": False}]
        await door.post("/serve/ours", connection)
    assert connection.asked == 0
    assert len(door.sent) == 100
    assert door.is_empty()


async def test_an_answer_ends_the_watch() -> None:
    door, connection = Door(), Connection()
    running = door.post("/serve/ours", connection)
    await until(lambda: connection.asked > 0)
    door.processor.let.set()
    await running
    assert door.sent[0]["status"] == 200
    await until(lambda: not any("Caller" in name for name in _running()))
    assert door.processor.left == 0


def _running() -> list[str]:
    return [getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks()]


async def test_an_app_that_asks_for_the_end_gets_it_too() -> None:
    connection = Connection()
    connection.body = []
    caller = Caller(connection.receive)
    caller.watch()
    asked = [asyncio.create_task(caller.receive()) for _ in range(2)]
    await until(lambda: connection.asked > 0)
    connection.closed.set()
    assert [(await one)["type"] for one in asked] == ["http.disconnect"] * 2
    assert connection.asked == 1
    assert caller.left.done()


def answered(code: str | None) -> Response:
    response = Response(b"{}")
    if code is not None:
        response.code = code  # type: ignore[attr-defined]
    return response


async def test_a_worker_that_leaves_is_no_caller_that_left() -> None:
    connection = Connection()
    connection.body = []
    caller = Caller(connection.receive)
    assert not caller.has_left
    assert not caller.is_missed_by(answered("left"))
    caller.give_up()
    assert await caller.receive_end() == {"type": "http.disconnect"}
    assert not caller.has_left
    # Only of an answer that says otherwise.
    said = [caller.is_missed_by(answered(code)) for code in ("left", "timeout", None)]
    assert said == [True, False, False]
    caller.stop()


async def test_a_caller_that_left_is_missed_by_no_answer() -> None:
    # Its connection brings one more message before its end.
    connection = Connection()
    caller = Caller(connection.receive)
    connection.closed.set()
    assert await caller.receive_end() == {"type": "http.disconnect"}
    assert caller.has_left
    # It is not told again, by a worker that leaves later.
    caller.give_up()
    assert caller.has_left
    assert not caller.is_missed_by(answered("left"))


async def test_a_worker_that_leaves_gives_up_whoever_is_there_and_whoever_comes() -> None:
    callers = Callers()
    callers._going = True
    inside = []
    for _ in range(3):
        inside.append(Inside(callers))
        callers._round()
    inside.append(Inside(callers))
    assert callers._watched
    assert callers._older
    assert callers._new
    callers.give_up()
    inside.append(Inside(callers))
    for one in inside:
        with pytest.raises(ConnectionAbortedError):
            await one.caller.left
        callers.leave(one.caller)
    assert not callers._watched


async def test_of_a_worker_that_leaves_nobody_needs_to_hear() -> None:
    said: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))
    callers = Callers()
    caller = callers.enter(Connection().receive)
    callers.give_up()
    callers.leave(caller)
    del caller
    gc.collect()
    assert said == []


def test_rounds_are_turned_one_after_the_other_while_somebody_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    due: list[Callable[[], None]] = []
    monkeypatch.setattr(asyncio.BaseEventLoop, "call_later", lambda _, __, what: due.append(what))

    async def play() -> None:
        callers = Callers()
        for _ in range(2):
            one, other = Inside(callers), Inside(callers)
            assert len(due) == 1
            due.pop()()
            assert len(due) == 1
            callers.leave(one.caller)
            callers.leave(other.caller)
            due.pop()()
            assert due == []

    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        runner.run(play())


class Inside:
    """A caller whose request runs, and how many rounds it has seen."""

    def __init__(self, callers: Callers) -> None:
        self.connection = Connection()
        self.connection.body = []
        self.caller = callers.enter(self.connection.receive)
        self.rounds = 0

    def check(self) -> None:
        watched = self.rounds >= 2
        assert (self.connection.asked > 0) == watched
        assert self.caller.left.done() == (watched and self.connection.closed.is_set())


def step(what: str, callers: Callers, inside: list[Inside]) -> None:
    if what == "enter":
        inside.append(Inside(callers))
    elif what == "round":
        callers._round()
        for one in inside:
            one.rounds += 1
    elif inside and what == "leave":
        callers.leave(inside.pop(0).caller)
    elif inside:
        inside[-1].connection.closed.set()


@settings(max_examples=30)
@given(st.lists(st.sampled_from(["enter", "leave", "round", "close"]), max_size=60))
def test_whoever_is_inside_is_watched_after_two_rounds(steps: list[str]) -> None:
    async def play() -> None:
        callers, inside = Callers(), list[Inside]()
        for what in steps:
            # The test turns the rounds.
            callers._going = True
            step(what, callers, inside)
            for _ in range(4):
                await asyncio.sleep(0)
            assert len(callers._new) + len(callers._older) <= len(inside)
            for one in inside:
                one.check()
        for one in inside:
            callers.leave(one.caller)
        assert (callers._new, callers._older) == ({}, {})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(callers_module, "EVERY_S", 3600)
        asyncio.run(play())
