"""The values for an autoscaler, against a server whose tokens and time are known.

The real gateway's figures: tests/gateway/test_counted_tokens.py.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from tests.bench.served import served
from tests.free_ports import free_port
from tests.kubernetes.chart import CLEARML, one, rendered
from transformer_serving.contract.worker.deferred import WITHIN_S
from transformer_serving.desk.bench import load, measure
from transformer_serving.desk.bench.measure import Bench
from transformer_serving.desk.bench.scaling import metrics_address, scaling
from transformer_serving.desk.cli import main
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.http import METRICS_KEY_VARIABLE

TOKENS, TAKES_S = 7, 0.02
PAYLOAD = load.Payload("one", b'{"text": "a"}')


class Counting:
    """It answers after a while, and counts as late as a gateway's worker may; `strangers` more for
    each answer."""

    def __init__(self) -> None:
        self.answered_at: list[float] = []
        self.strangers = 0
        self.key = b""
        self.page: str | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        status, body = 200, b"{}"
        if scope["path"] == "/metrics":
            given = dict(scope["headers"]).get(b"x-api-key", b"")
            status = 200 if given == self.key else 401
            body = (self.page if self.page is not None else self.figures()).encode()
        else:
            while (await receive()).get("more_body"):
                pass
            await asyncio.sleep(TAKES_S)
            self.answered_at += [time.monotonic()] * (1 + self.strangers)
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": body})

    def figures(self) -> str:
        counted = time.monotonic() - WITHIN_S
        answers = sum(moment <= counted for moment in self.answered_at)
        return (
            "# TYPE transformer_serving_requests_total counter\n"
            'transformer_serving_requests_total{endpoint="a",status="503"} 1e6\n'
            f'transformer_serving_requests_total{{endpoint="a",status="200"}} {answers}\n'
            "# TYPE transformer_serving_tokens_total counter\n"
            'transformer_serving_tokens_total{endpoint="other"} 40\n'
            f'transformer_serving_tokens_total{{endpoint="a"}} {TOKENS * answers}\n'
        )


@pytest.fixture
def app() -> Counting:
    return Counting()


@pytest.fixture
def url(app: Counting) -> Iterator[str]:
    with served(app) as port:
        yield f"http://127.0.0.1:{port}/serve/a"


def bench(url: str, *options: str) -> Result:
    given = ["bench", url, "--for-scaling", "-c", "1", "-c", "4", "--seconds", "0.3", *options]
    return CliRunner().invoke(main, given)


def test_the_threshold_is_tokens_a_second_times_the_time_allowed(url: str) -> None:
    done = bench(url, "--within", "0.25", "--json")
    assert done.exit_code == 0, done.output
    *rows, advice = json.loads(done.stdout)
    assert len(rows) == 3
    rate = advice["tokens_per_second"]
    # Four clients of whom each waits for 20 ms at least.
    assert 0 < rate <= TOKENS * 4 / TAKES_S * 1.05
    assert advice["clients"] == 4
    assert advice["tokens_per_answer"] == TOKENS
    assert advice["alone_s"] >= TAKES_S
    assert advice["waiting_tokens"] == round(rate * 0.25)
    assert advice["wanted_per_second"] == round(rate * 0.7)
    assert advice["answers_per_second"] == pytest.approx(rate / TOKENS)


def test_what_is_printed_are_values_of_the_chart(url: str) -> None:
    printed = bench(url).output
    values = yaml.safe_load(printed[printed.index("# ") :])
    wanted = values["triton"]["autoscaling"]
    keda = {"triton": {"autoscaling": {"enabled": True, "prometheus": "http://p"}}}
    scaled = one(rendered(CLEARML, keda, values), "ScaledObject", "demo-triton")
    thresholds = [int(each["metadata"]["threshold"]) for each in scaled["spec"]["triggers"]]
    assert thresholds[:2] == [wanted["waitingTokens"], wanted["tokensPerSecond"]]


@pytest.mark.parametrize(("most", "is_noted"), [(0, True), (1 << 20, False)])
def test_where_the_worker_may_be_the_limit_the_values_say_so(
    url: str, most: int, is_noted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformer_serving.desk.bench.scaling.MAY_BE_THE_WORKER", most)
    printed = bench(url).output
    assert ("the one worker of the pod may have been the limit" in printed) == is_noted
    values = yaml.safe_load(printed[printed.index("# ") :])
    assert values["triton"]["autoscaling"]["waitingTokens"] > 0


def test_a_time_that_no_triton_answers_in_is_refused(url: str) -> None:
    done = bench(url, "--within", "0.01")
    assert done.exit_code == 2
    assert "no number of Tritons answers sooner" in done.output


def test_others_who_ask_meanwhile_are_noticed(app: Counting, url: str) -> None:
    app.strangers = 1
    done = bench(url)
    assert done.exit_code == 1
    assert "let nobody else ask meanwhile" in done.output


@pytest.mark.parametrize(
    ("page", "said"),
    [("", "has no transformer_serving_tokens_total"), ("<html>", "is no page of figures")],
)
def test_an_address_without_figures_is_refused(
    app: Counting, url: str, page: str, said: str
) -> None:
    app.page = page
    done = bench(url)
    assert done.exit_code == 1
    assert said in done.output


def test_an_endpoint_that_is_gone_is_named(url: str) -> None:
    gone = Bench(measure.address(f"http://127.0.0.1:{free_port()}/", ()), payloads=(PAYLOAD,))
    asked = Bench(measure.address(url, ()), (PAYLOAD,), concurrency=(1,), seconds=0.1)
    with pytest.raises(Failure, match=f"nothing answers at 127.0.0.1:{gone.address.port}: "):
        scaling(gone, list(measure.measure(asked)), metrics_address(url), None, 0.5)


@pytest.mark.slow
def test_a_key_for_figures_comes_from_the_environment(
    app: Counting, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.key = b"figures"
    refused = bench(url)
    assert refused.exit_code == 2
    assert METRICS_KEY_VARIABLE in refused.output
    monkeypatch.setenv(METRICS_KEY_VARIABLE, "figures")
    assert bench(url).exit_code == 0
