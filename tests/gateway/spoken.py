"""Endpoints of every task behind a gateway without an engine or a host, asked what they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import orjson
from starlette.responses import Response

from preprocess.card import card_of
from preprocess.dialects import OPERATIONS
from tests.gateway.played_host import Ours, Processor, host_of
from tests.preprocess.speaking import Speaker, speaker
from transformer_serving.contract.heads import TASKS
from transformer_serving.gateway.front_door import FrontDoor
from transformer_serving.gateway.keys import Keys
from transformer_serving.gateway.settings import read_settings

# One of older code says nothing of itself; "other" is no endpoint of ours.
OLDER, OTHER = "older", "other"


class Spoken(Ours):
    """As much of a Successor as the gateway looks at."""

    operations = frozenset(OPERATIONS)

    def __init__(self, own: Speaker | SimpleNamespace) -> None:
        self._own = own

    def card(self) -> dict[str, Any]:
        return card_of(self._own.endpoint, self._own.task)


class Told(NamedTuple):
    status: int
    headers: Mapping[bytes, bytes]
    raw: bytes

    @property
    def json(self) -> Any:
        return orjson.loads(self.raw)


class SpokenDoor:
    """`cards` are found under their tasks' names and, of one, under a version of it."""

    def __init__(self, keys: Keys | None = None) -> None:
        answers = dict.fromkeys([*TASKS, "rerank/2", OLDER, OTHER], Response(b"{}"))
        self.processor = Processor(answers)
        self.processor.engines[OTHER] = "sklearn"
        self.processor.changed()
        for task in TASKS:
            self.processor.built(task, Spoken(speaker(task)))
        self.processor.built("rerank/2", Spoken(speaker("rerank")))
        self.processor.built(OLDER, Ours())
        settings = replace(
            read_settings({}), max_body_bytes=1000, max_body_elements=1000, body_memory_bytes=1000,
            body_seconds=0.05, body_stall_seconds=60, drain_seconds=0,
        )  # fmt: skip
        self.app = FrontDoor(host_of(self.processor), settings, keys)

    async def ask(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> Told:
        left = [{"type": "http.request", "body": body, "more_body": False}]
        sent: list[Any] = []

        async def receive() -> Any:
            return left.pop() if left else {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        raw = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
        scope = {"type": "http", "method": method, "path": path, "headers": raw}
        await self.app(scope, receive, send)
        whole = b"".join(message.get("body", b"") for message in sent[1:])
        return Told(sent[0]["status"], dict(sent[0]["headers"]), whole)
