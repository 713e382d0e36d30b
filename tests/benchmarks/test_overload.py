"""Who comes when a load has ended, before a real server that refuses for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.report import gpu_page
from benchmarks.servers import encoders
from benchmarks.servers.running import Running
from benchmarks.studies import overload
from benchmarks.studies.gpu import needs, stacks
from tests.bench.served import served
from transformer_serving.desk.bench.exchange import Exchange, Run


class Refusing:
    """It refuses so many requests, and then answers."""

    def __init__(self) -> None:
        self.refusals = 0
        self.asked = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        self.asked += 1
        await send(
            {
                "type": "http.response.start",
                "status": 503 if self.asked <= self.refusals else 200,
                "headers": [],
            }
        )
        await send({"type": "http.response.body", "body": b"{}"})


@pytest.fixture
def app() -> Refusing:
    return Refusing()


@pytest.fixture
def server(app: Refusing) -> Iterator[Running]:
    with served(app) as port:
        yield Running(f"http://127.0.0.1:{port}", ())


def test_the_next_caller_waits_for_an_answer_and_not_for_a_refusal(
    app: Refusing, server: Running
) -> None:
    app.refusals = 3
    waited = overload._served_s(server)
    assert waited is not None
    assert waited >= 3 * overload._PAUSE_S
    assert app.asked == 4


def test_a_caller_who_is_refused_all_the_time_has_no_time(app: Refusing, server: Running) -> None:
    app.refusals = 10**6
    assert overload._served_s(server, limit_s=0.2) is None
    assert app.asked > 1
    assert overload._alone_ms(server) is None


def test_a_refusals_99th_percentile_is_that_of_other_figures() -> None:
    exchanges = tuple(Exchange("text", 1, 0.0, 0.0, number / 1e3, 503) for number in range(1, 151))
    assert overload._refused_p99(Run(exchanges, 1.0, 0.1)) == 149.0
    assert overload._refused_p99(Run((), 1.0, 0.1)) is None


def test_one_alone_is_timed_by_its_answers(app: Refusing, server: Running) -> None:
    app.refusals = 2
    alone = overload._alone_ms(server)
    assert alone is not None
    assert alone > 0
    assert app.asked == 3


@pytest.mark.parametrize("lack", [None, "an NVIDIA GPU"], ids=["gpu", "none"])
def test_an_engine_is_overloaded_by_several_workers_with_texts_that_keep_it_busy(
    lack: str | None, server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    models: list[Any] = []
    workers: list[int] = []

    def gateway(count: int = 1, **_: Any) -> Any:
        workers.append(count)
        return lambda site, report: SimpleNamespace(
            base=server.base, processes=server.processes, stop=int
        )

    def opened(report: Any, encoder: Any = encoders.MINILM) -> Any:
        models.append(encoder)
        runner = SimpleNamespace(text=lambda load: "a " * (load.tokens or 1))
        return nullcontext(SimpleNamespace(site=None, runner=runner, time_loop=lambda: None))

    monkeypatch.setattr(needs, "gpu", lambda: lack)
    monkeypatch.setattr(stacks, "opened", opened)
    monkeypatch.setattr(stacks, "cores", lambda: 6)
    monkeypatch.setattr(stacks, "_OVERLOAD_S", 0.1)
    monkeypatch.setattr(stacks, "FULL_SENDER", 0.0)
    monkeypatch.setattr(overload, "gateway", gateway)
    monkeypatch.setattr(overload, "_WARM_S", 0.1)
    found = stacks.overload(lambda line: None)
    large = lack is None
    assert (models, workers) == ([encoders.LARGE if large else encoders.MINILM], [3])
    page = gpu_page._overload(found)
    tokens = "a text of 256 tokens" if large else "one text"
    assert f"before {models[0].title}, {tokens} a request, 3 gateway workers" in page
    assert "overload: deadline none: what sends used more than 0% of a core" in page
    assert "| sender at capacity, of a core | in overload |" in page
