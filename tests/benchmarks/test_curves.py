"""Points of a curve, by a real server that is slow at one path and refuses at another."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from benchmarks.runs.loads import shares
from benchmarks.studies import curves
from tests.bench.served import served
from transformer_serving.desk.bench.load import Payload

SLOW_S = 0.5
PAYLOAD = (Payload("text", b"{}"),)


class Several:
    """It knows how many of a path are inside at the same time."""

    def __init__(self) -> None:
        self.inside: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.refused = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        path = scope["path"]
        self.inside[path] += 1
        self.most[path] = max(self.most[path], self.inside[path])
        while (await receive()).get("more_body"):
            pass
        await asyncio.sleep(SLOW_S if path == "/slow" else 0.01)
        refuses = path == "/once" and not self.refused
        self.refused += refuses
        self.inside[path] -= 1
        await send({"type": "http.response.start", "status": 503 if refuses else 200})
        await send({"type": "http.response.body", "body": b"{}"})


@pytest.fixture
def served_app() -> Iterator[tuple[Several, str]]:
    app = Several()
    with served(app) as port:
        yield app, f"http://127.0.0.1:{port}"


def own() -> list[psutil.Process]:
    return [psutil.Process()]


def test_every_client_is_at_one_of_the_paths() -> None:
    assert shares(64, 50) == [2] * 14 + [1] * 36
    assert [sum(shares(64, paths)) for paths in (1, 2, 5, 10, 20, 50)] == [64] * 6


def test_percentiles_are_of_the_requests_of_all_paths(served_app: tuple[Several, str]) -> None:
    app, base = served_app
    point = curves.Point(3, ("/a", "/b", "/slow"), PAYLOAD, 7)
    found = curves._point(point, base, own, SLOW_S)
    assert app.most == {"/a": 3, "/b": 2, "/slow": 2}
    # Of the slow path alone it is longer; a timer may end a little early.
    assert 0 < found["p50"] < 900 * SLOW_S
    assert (found["not_200"], found["texts"] > 0) == (0, True)


def test_a_refusal_in_one_round_is_not_lost(served_app: tuple[Several, str]) -> None:
    _, base = served_app
    curve = curves.Curve("a", "a", "a", (curves.Point(1, ("/once",), PAYLOAD, 2),))
    [point] = curves._measured(curve, base, own, 0.1, lambda line: None)["points"]
    assert point["not_200"] == 1
    # Two clients in three rounds.
    assert point["requests"] >= 6
