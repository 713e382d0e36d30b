"""A stack under load that a Prometheus asks every second: what dashboards are tried and drawn on.

Its gateway has keys, it generates text, its callers make every kind of mistake, and one endpoint's
bundle is replaced meanwhile, so that every panel has something to show.
"""

from __future__ import annotations

import http.client
import json
import math
import random
import re
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.dashboards.panel import Variable
from tests.monitoring.test_scrapes import prometheus
from tests.stack.conftest import ROOT, Stack, started
from tests.stack.load import HANG_S, Client
from tests.stack.small_bundles import WORDS, Parts, write_small
from transformer_serving.desk.demo import GENERATOR, build_generation_demo
from transformer_serving.desk.demo.generation import PROMPT
from transformer_serving.desk.keys import add_key
from transformer_serving.desk.local.record import require_record
from transformer_serving.desk.monitoring.alerts import ENGINE_JOB, INFERENCE_JOB

REVIEWS, TICKETS = "reviews", "tickets"
# Grafana would take the step between two points into account; here a second is one.
RATE_INTERVAL = "8s"


@dataclass(frozen=True)
class Watched:
    """The stack, the address of its Prometheus, and when the load began."""

    stack: Stack
    address: str
    begun: float

    def asked(self, path: str, **values: str) -> Any:
        """The data that Prometheus answers with."""
        url = f"{self.address}/api/v1/{path}?{urllib.parse.urlencode(values)}"
        with urllib.request.urlopen(url, timeout=60) as answer:
            return json.load(answer)["data"]

    def filled(self, expression: str, variables: dict[str, str]) -> str:
        """The expression as Grafana would send it."""
        known = {
            "__rate_interval": RATE_INTERVAL,
            "__range": f"{math.ceil(time.time() - self.begun)}s",
            **variables,
        }
        return re.sub(r"\$([a-z_]\w*)", lambda found: known[found[1]], expression)

    def last(self, expression: str, **variables: str) -> list[dict[str, Any]]:
        """What an instant query has: rows of `metric` and `value`."""
        query = self.filled(expression, variables)
        rows: list[dict[str, Any]] = self.asked("query", query=query)["result"]
        return rows

    def since_begun(self, expression: str, step_s: float, **variables: str) -> list[dict[str, Any]]:
        """What a range query has since the load began: rows of `metric` and `values`."""
        rows: list[dict[str, Any]] = self.asked(
            "query_range",
            query=self.filled(expression, variables),
            start=f"{self.begun:.3f}",
            end=f"{time.time():.3f}",
            step=f"{step_s:g}",
        )["result"]
        return rows

    def choices(self, variable: Variable, **chosen: str) -> list[str]:
        """What Grafana would offer for a variable."""
        if found := re.fullmatch(r"label_values\((.+), (\w+)\)", variable.query):
            values: list[str] = self.asked(f"label/{found[2]}/values", **{"match[]": found[1]})
            return values
        found = re.fullmatch(r"query_result\((.+)\)", variable.query)
        assert found
        part = re.compile(variable.pattern.strip("/"))
        answers = [shown(row["metric"]) for row in self.last(found[1], **chosen)]
        return [hit[1] for answer in answers if (hit := part.search(answer))]


def shown(metric: dict[str, str]) -> str:
    """As Grafana writes an answer of query_result, without its value."""
    labels = ",".join(f'{name}="{value}"' for name, value in metric.items() if name != "__name__")
    return f"{metric.get('__name__', '')}{{{labels}}}"


@contextmanager
def watched(folder: Path) -> Iterator[Watched]:
    keys = folder / "keys.json"
    given = {name: add_key(keys, name, (), metrics=False) for name in (SHOP, ARCHIVE, "desk")}
    metrics = add_key(keys, "prometheus", (), metrics=True)
    settings = {
        "TRANSFORMER_SERVING_KEYS_FILE": str(keys),
        "TRANSFORMER_SERVING_KEY": given["desk"],
        # Where others have the processors an endpoint of no deadline fails nobody all the same.
        "TRANSFORMER_SERVING_MAX_WAIT_S": "20",
    }
    with started(folder / "state", **settings) as stack:
        for name, scale in ((REVIEWS, 1.0), (TICKETS, 2.0)):
            deploy(stack, folder, name, scale)
        stack.run("deploy", str(language_model()), "--endpoint", GENERATOR)
        ports = require_record(stack.state).ports
        targets = {
            INFERENCE_JOB: [f"127.0.0.1:{ports.inference}"],
            ENGINE_JOB: [f"127.0.0.1:{ports.controller_metrics}"],
        }
        place = folder / "prometheus"
        place.mkdir()
        with prometheus(place, targets, metrics) as address, load(stack, given) as begun:
            yield Watched(stack, address, begun)


def language_model() -> Path:
    """The demo's bundle, where `up --demo generation` would build or find it."""
    folder = ROOT / "build" / "demo-generation"
    (bundle,) = build_generation_demo(folder, report=lambda line: None)
    return bundle.path


def deploy(stack: Stack, folder: Path, endpoint: str, scale: float) -> None:
    """With a parity set, so that Triton's controller proves it."""
    bundle = write_small(folder / f"{endpoint} of {scale}", Parts(scale=scale, parity=True))
    stack.run("deploy", str(bundle.folder), "--endpoint", endpoint)


@dataclass(frozen=True)
class Caller:
    """One that asks again and again, with the key of that name."""

    port: int
    key: str
    chance: random.Random
    client: Client

    def texts(self) -> None:
        chance = self.chance
        lines = [" ".join(chance.choices(WORDS, k=chance.randint(1, 20))) for _ in range(12)]
        some = lines[: chance.choice((1, 1, 1, 2, 4, 12))]
        self.client.post(chance.choice((REVIEWS, REVIEWS, REVIEWS, TICKETS)), {"text": some})

    def mistakes(self) -> None:
        """Of callers, and deadlines that cannot be kept."""
        self.client.post(*self.chance.choice(MISTAKES))
        time.sleep(0.3)

    def streams(self) -> None:
        """Some are left before their end."""
        some = {"ignore_eos": True, "max_new_tokens": self.chance.randint(10, 60)}
        body = {"text": PROMPT, "stream": True, "parameters": some}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=HANG_S)
        head = {"Content-Type": "application/json", "Authorization": f"Bearer {self.key}"}
        try:
            connection.request("POST", f"/serve/{GENERATOR}", json.dumps(body), head)
            answer = connection.getresponse()
            answer.read(60 if self.chance.random() < 0.2 else None)
        except (OSError, http.client.HTTPException):
            time.sleep(0.3)
        finally:
            connection.close()


@contextmanager
def load(stack: Stack, keys: dict[str, str]) -> Iterator[float]:
    """More and less of it in turns; when it began, in Unix time."""
    ended, begun = threading.Event(), time.time()

    def ask(name: str, what: Callable[[Caller], None], seed: int) -> None:
        client = Client(stack.base, keys[name])
        caller = Caller(stack.base, keys[name], random.Random(seed), client)
        while not ended.wait(pause(time.time() - begun, caller.chance)):
            what(caller)
        client.close()

    threads = [
        threading.Thread(target=ask, args=(*row, seed), daemon=True)
        for seed, row in enumerate(CALLERS)
    ]
    for thread in threads:
        thread.start()
    try:
        yield begun
    finally:
        ended.set()
        for thread in threads:
            thread.join(120)


def pause(passed_s: float, chance: random.Random) -> float:
    """Between two requests of a caller: a wave of a minute and a half."""
    return chance.uniform(0.02, 0.06) * (1.6 - math.sin(passed_s / 90 * 2 * math.pi))


SHOP, ARCHIVE = "shop", "archive"
# By the name of a key what its callers do.
CALLERS: tuple[tuple[str, Callable[[Caller], None]], ...] = (
    *[(SHOP, Caller.texts)] * 3,
    *[(SHOP, Caller.streams)] * 3,
    *[(ARCHIVE, Caller.texts)] * 2,
    (ARCHIVE, Caller.mistakes),
)
MISTAKES: tuple[tuple[str, dict[str, Any]], ...] = (
    (REVIEWS, {"text": 1}),
    (TICKETS, {"txt": "tea"}),
    ("nobody", {"text": "tea"}),
    (REVIEWS, {"text": ["rain tea fog"] * 100, "timeout_ms": 1}),
)
