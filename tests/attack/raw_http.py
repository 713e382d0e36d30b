"""Requests as bytes: each is sent over a connection of its own with a good one behind it, and what
comes back must be answers to those two, in their order, and nothing else.
"""

from __future__ import annotations

import asyncio
import http.client
import io
import json
import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from tests.attack.ground import GOOD, Ground, is_right
from tests.attack.seen import Seen

# A word of the good text: no refusal may repeat it.
SECRET = b"kettle"
GOOD_BODY = json.dumps(GOOD).encode()
CLOSED = 0
# Above every time of the server's own: for a head, for a body, for a stalled one.
_PATIENCE_S = 120.0
_AT_ONCE = 16
_PROBE = (
    b"POST /serve/ours HTTP/1.1\r\nhost: a\r\nx-request-id: probe\r\nconnection: close\r\n"
    b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(GOOD_BODY)
) + GOOD_BODY
_IDS = re.compile(rb"x-request-id: ([\w-]+)\r\n")


@dataclass(frozen=True)
class Raw:
    """One attack: its bytes and the statuses that it may get; CLOSED where no answer is one.

    `requests` is how many requests the bytes are. `good` says that the text in them is the good
    one, so that a 200 must have its answer. `followed` is False where more bytes would become a
    part of it.
    """

    name: str
    raw: bytes
    allowed: Collection[int]
    requests: int = 1
    good: bool = True
    followed: bool = True


@dataclass(frozen=True)
class Answer:
    status: int
    id: str
    body: bytes

    def json(self) -> Any:
        try:
            return json.loads(self.body)
        except ValueError:
            return None


class _Kept(io.BytesIO):
    """As a socket to http.client, whose answers close what they read from."""

    def makefile(self, *_: object) -> _Kept:
        return self

    def close(self) -> None:
        pass


def answers_in(received: bytes, method: str) -> list[Answer]:
    """Every answer that came; `method` is the first request's. Raises ValueError for no HTTP."""
    rest, found = _Kept(received), list[Answer]()
    while rest.tell() < len(received):
        answer = http.client.HTTPResponse(rest, method=method)  # type: ignore[arg-type]
        try:
            answer.begin()
            body = answer.read()
        except http.client.HTTPException as error:
            raise ValueError(f"{type(error).__name__} after {len(found)} answers") from error
        found.append(Answer(answer.status, answer.headers.get("x-request-id", ""), body))
        method = "POST"
    return found


async def exchanged(port: int, raw: bytes) -> bytes:
    """Everything that comes until the server closes. Raises TimeoutError where it does not."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**24)
    received = b""
    try:
        writer.write(raw)
        async with asyncio.timeout(_PATIENCE_S):
            while piece := await reader.read(65_536):
                received += piece
    except ConnectionError:
        pass
    finally:
        writer.close()
    return received


def fault_of(case: Raw, answers: Sequence[Answer]) -> str | None:
    """Why these are not the answers that the case may get."""
    own = [answer for answer in answers if answer.id != "probe"]
    statuses = [answer.status for answer in own] or [CLOSED]
    order = [answer.id for answer in answers]
    sent = [name.decode() for name in _IDS.findall(case.raw)] + ["probe"]
    faults = {
        "an answer too many": len(own) > case.requests,
        "an answer to what was no request": "smuggled" in order,
        "answers in another order": [name for name in order if name in sent]
        != [name for name in sent if name in order],
        f"statuses {statuses}": not set(statuses) <= set(case.allowed),
        "a request's data is repeated": any(
            SECRET in answer.body for answer in answers if answer.status >= 400
        ),
        "a wrong answer": any(
            answer.status == 200 and not is_right(answer.json())
            for answer in answers
            if case.good or answer.id == "probe"
        ),
        "the next request is refused": any(
            answer.status != 200 for answer in answers if answer.id == "probe"
        ),
    }
    return next((name for name, found in faults.items() if found), None)


async def tried(port: int, case: Raw) -> tuple[list[int], str | None]:
    """The statuses of its own answers, and the fault."""
    try:
        received = await exchanged(port, case.raw + (_PROBE if case.followed else b""))
        answers = answers_in(received, case.raw.lstrip().split(b" ")[0].decode("latin-1"))
        fault = fault_of(case, answers)
        after = answers_in(await exchanged(port, _PROBE), "POST")
        if fault is None and (len(after) != 1 or not is_right(after[0].json())):
            fault = "the next caller is not answered"
        own = [answer.status for answer in answers if answer.id != "probe"]
    except TimeoutError:
        return [], "the connection hangs"
    except ValueError as error:
        return [], f"no HTTP came back: {error}"
    return own or [CLOSED], fault


async def all_tried(port: int, cases: Sequence[Raw]) -> dict[str, tuple[list[int], str | None]]:
    """By name; a few at once, since those that are never whole take the server's patience."""
    turns = asyncio.Semaphore(_AT_ONCE)

    async def one(case: Raw) -> tuple[list[int], str | None]:
        async with turns:
            return await tried(port, case)

    found = await asyncio.gather(*map(one, cases))
    return {case.name: row for case, row in zip(cases, found, strict=True)}


def raw_requests(ground: Ground, cases: Sequence[Raw]) -> Seen:
    before = ground.process()
    found = asyncio.run(all_tried(ground.port, cases))
    faults = [f"{name}: {fault}" for name, (_, fault) in found.items() if fault]
    if not before.is_running():
        faults.append("the worker ended")
    statuses = Counter(status for own, _ in found.values() for status in own)
    words = [f"{count} x {status or 'closed'}" for status, count in sorted(statuses.items())]
    told = "; ".join(faults) or "no 5xx, no desync"
    return Seen(f"{len(cases)} cases: {', '.join(words)}; {told}", not faults)
