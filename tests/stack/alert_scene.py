"""A whole stack that is watched by its own Prometheus, on rules whose times are divided.

`up --monitoring` starts it; then the rules are written again, scaled, and Prometheus reads them.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
from tokenizers import Tokenizer

from tests.engine.triton_server import wait_until
from tests.language_models import POSITIONS, save_language_model
from tests.stack.conftest import Stack
from tests.stack.faults import is_engine, runs
from tests.stack.small_bundles import Parts, write_small
from transformer_serving.contract.endpoint import Limits
from transformer_serving.desk.conversion.language_model import convert_language_model
from transformer_serving.desk.local import monitoring
from transformer_serving.desk.local.record import require_record
from transformer_serving.desk.monitoring.alerts import Alert
from transformer_serving.desk.monitoring.rules import all_alerts
from transformer_serving.desk.monitoring.times import TimeScale
from transformer_serving.desk.source.language_model import open_language_model
from transformer_serving.engine.orphans import model_of

# Three days pass in twelve minutes; pages are asked five times a second.
SCALE = TimeScale(360)
# Far above what any alert takes at that scale, on a machine that is short of processor time.
PATIENCE_S = 150.0
# A word that the small bundle's tokenizer may have and its model's table has no row for.
STRANGE = "thunder"
# In the worker, and in the engine's cache, where others wait for the first that ends.
STREAMS, SEQUENCES = 36, 34
# Of the engine's positions this many are a prompt, so that a sequence fills its place in the cache
# from its first step on.
PROMPT_TOKENS, NEW_TOKENS = 460, 50
TEXTS, SLOW, STORY = "texts", "slow", "story"
SETTINGS = {
    "TRANSFORMER_SERVING_MAX_WAITING_TOKENS": "2000",
    "TRANSFORMER_SERVING_MAX_STREAMS": str(STREAMS),
    "TRANSFORMER_SERVING_MAX_BODY_BYTES": "200000",
    "TRANSFORMER_SERVING_BODY_MEMORY_BYTES": "200000",
}


@dataclass(frozen=True)
class Scene:
    """The stack, where its Prometheus is, and a prompt of PROMPT_TOKENS."""

    stack: Stack
    prometheus: str
    prompt: str
    clock: Path

    def fired(self, seconds: float) -> set[Alert]:
        """The alerts that fired at any time of the last seconds."""
        window = f"[{max(1, int(1000 * seconds))}ms]"
        return self._alerts(f'last_over_time(ALERTS{{alertstate="firing"}}{window})')

    def firing(self) -> set[Alert]:
        return self._alerts('ALERTS{alertstate="firing"}')

    def _alerts(self, query: str) -> set[Alert]:
        url = f"{self.prometheus}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            rows = [row["metric"] for row in json.load(answer)["data"]["result"]]
        return {alert for alert in all_alerts() for labels in rows if is_of(alert, labels)}

    def until_fired(self, alerts: Iterable[Alert], began: float) -> dict[Alert, float]:
        """Seconds from `began`, on time.monotonic's clock, until each was first seen to fire."""
        wanted, found = set(alerts), dict[Alert, float]()

        def all_fired() -> bool:
            now = time.monotonic() - began
            for alert in self.fired(now) & wanted - found.keys():
                found[alert] = now
            return found.keys() == wanted

        wait_until(all_fired, PATIENCE_S, lambda: f"{named(wanted - found.keys())} did not fire")
        return found

    def until_silent(self, alerts: Iterable[Alert]) -> None:
        wanted = set(alerts)
        wait_until(
            lambda: not self.firing() & wanted, PATIENCE_S,
            lambda: f"{named(self.firing() & wanted)} go on",
        )  # fmt: skip

    def running(self) -> int:
        """Sequences in the engine, by Triton's page; the gateway's has those that wait for it
        too."""
        port = require_record(self.stack.state).ports.triton_metrics
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            page = answer.read().decode()
        rows = re.findall(
            r"^transformer_serving_generation_running\{.*\} (.+)$", page, re.MULTILINE
        )
        return sum(int(float(row)) for row in rows)

    def pid(self, part: str) -> int:
        return int(self.stack.parts()[part]["pid"])

    def engine(self, endpoint: str) -> psutil.Process:
        """The process of the endpoint's model inside Triton."""
        repository = self.stack.state / "triton" / "models"
        return next(
            one
            for one in psutil.Process(self.pid("triton")).children(recursive=True)
            if is_engine(one) and runs(one.pid) and model_of(one, repository) == endpoint
        )

    def move_clock(self, seconds: int) -> None:
        """Of every Python part of the stack, and not of Prometheus."""
        with self.clock.open("r+b") as file:
            file.write(seconds.to_bytes(8, "little", signed=True))


def is_of(alert: Alert, labels: dict[str, str]) -> bool:
    own = {**alert.labels, "alertname": alert.name, "severity": alert.severity}
    return own.items() <= labels.items()


def named(alerts: Iterable[Alert]) -> str:
    return ", ".join(
        sorted(f"{one.name} {' '.join(one.labels.values())}".strip() for one in alerts)
    )


def deploy_all(stack: Stack, folder: Path) -> str:
    """Two classifiers and a language model; a prompt for it."""
    strange = write_small(folder / "strange", Parts(strange=STRANGE))
    # With it, as `convert` writes it, the worker would refuse the word before any engine fails.
    assert strange.endpoint.tokens.known_ids is None
    plain = write_small(folder / "plain", Parts())
    source = open_language_model(str(save_language_model("llama", folder / "llama")))
    # Room for so many whole sequences, of which each takes a step for its prompt.
    blocks = {
        "num_kv_blocks": str(SEQUENCES * POSITIONS // 32),
        "max_num_batched_tokens": str(4 * POSITIONS),
    }
    limits = Limits(8, 10_000, 10_000, 8)
    story = convert_language_model(
        source, ("fp32",), limits, folder / "story", lambda step, line: None, blocks
    ).bundle
    for bundle, endpoint in ((strange, TEXTS), (plain, SLOW), (story, STORY)):
        stack.run("deploy", str(bundle.folder), "--endpoint", endpoint)
    return prompt_of(Tokenizer.from_str((story.folder / "tokenizer.json").read_text("utf-8")))


def prompt_of(tokenizer: Tokenizer) -> str:
    text = "rain and tea and fog"
    while len(tokenizer.encode(text).ids) < PROMPT_TOKENS:
        text += " and rain"
    return text


def hasten(stack: Stack) -> str:
    """Have its Prometheus read rules with divided times; its address."""
    record = require_record(stack.state)
    monitoring.write_files(stack.state, record, SETTINGS, SCALE)
    pid = int(stack.parts()["prometheus"]["pid"])
    os.kill(pid, signal.SIGHUP)
    address = f"http://127.0.0.1:{record.ports.prometheus}"
    every = SCALE.interval(15)

    def read_again() -> bool:
        with urllib.request.urlopen(f"{address}/api/v1/status/config", timeout=30) as answer:
            return f"scrape_interval: {every}" in json.load(answer)["data"]["yaml"]

    wait_until(read_again, 60)
    return address


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)
