"""Every figure after a known load, in both set-ups; log lines, and the workers' files."""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

from tests.engine.triton_server import stopped, wait_until
from tests.free_ports import free_port
from tests.gateway.conftest import Server
from tests.gateway.figures import PREFIX, Samples, durations, of, read
from tests.gateway.text_serving import TextServing
from transformer_serving.contract.errors import FAULTS, KINDS
from transformer_serving.contract.worker.durations import BOUNDS
from transformer_serving.gateway.figures.metrics import tell_syncs


@pytest.fixture(scope="module", params=["gateway", "stock"])
def way(
    request: pytest.FixtureRequest, text_serving: TextServing, tmp_path_factory: Any
) -> Iterator[tuple[Server, Any]]:
    """A fresh server, and how its figures are read."""
    if request.param == "gateway":
        server = text_serving.gateway("--workers=2").start()
        server.wait_for("/health/ready")
        url = f"http://127.0.0.1:{server.port}/metrics"
    else:
        port = free_port()
        server = text_serving.stock(TRANSFORMER_SERVING_METRICS_PORT=str(port)).start()
        server.wait_for("/docs")
        url = f"http://127.0.0.1:{port}/metrics"

    def figures() -> Samples:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return read(answer.read().decode())

    try:
        yield server, figures
    finally:
        server.stop()


def test_a_test_counts(way: tuple[Server, Any]) -> None:
    server, figures = way
    load = [
        *[({"text": "tea"}, 200)] * 20,
        *[({"text": ["tea and cups"] * 3}, 200)] * 5,
        *[({"text": 1}, 400)] * 4,
        *[({"text": "[FAIL]"}, 502)] * 3,
        # Another one behind it would be refused, or late without a call.
        ({"text": "[SLOW]", "timeout_ms": 500}, 504),
    ]
    for at, (body, code) in enumerate(load):
        answer = server.post("texts", body)
        assert answer.status == code, (at, answer)
    server.post("vectors", {"text": "tea"})
    texts, tokens = 20 + 15, 20 * 3 + 15 * 5
    answers = {"200": 25, "400": 4, "502": 3, "504": 1}

    def counted() -> dict[str, float]:
        seen = figures()
        return {
            status: of(seen, "requests_total", endpoint="texts", status=status)
            for status in answers
        }

    # Told a moment after the answer, and each worker of its own.
    wait_until(lambda: counted() == answers, 20)
    wait_until(lambda: of(figures(), "requests_total", endpoint="vectors", status="200") == 1, 20)
    seen = figures()
    assert of(seen, "texts_total", endpoint="texts") == texts
    assert of(seen, "tokens_total", endpoint="texts") == tokens
    for stage in ("tokenize", "queue", "infer", "post"):
        assert of(seen, "stage_seconds_count", endpoint="texts", stage=stage) == 25
        assert of(seen, "stage_seconds_sum", endpoint="texts", stage=stage) > 0
    # Of each worker that was asked: of the gateway's two both are, by their golden requests.
    assert of(seen, "waiting_tokens_limit") in {400_000, 800_000}
    calls = of(seen, "call_texts_count", endpoint="texts")
    # One call at least for each of 25 + 3 + 1 requests: they came one after the other.
    assert calls == 29
    assert of(seen, "call_texts_sum", endpoint="texts") == texts + 3 + 1
    sent = of(seen, "call_tokens_total", endpoint="texts")
    assert sent == tokens + 4 * 3
    assert of(seen, "call_padding_tokens_total", endpoint="texts") == (texts + 4) * 16 - sent
    assert of(seen, "abandoned_requests_total", endpoint="texts", reason="deadline") == 1
    assert of(seen, "abandoned_texts_total", endpoint="texts", reason="deadline") == 1
    wait_until(lambda: of(figures(), "waiting_tokens") == 0, 60)
    assert of(seen, "waiting_tokens_limit") > 0
    timed = {
        ("200", "ok"): 25, ("400", "invalid_field"): 4, ("502", "engine_failed"): 3,
        ("504", "deadline"): 1,
    }  # fmt: skip
    wait_until(lambda: durations(figures(), "texts") == timed, 20)


@pytest.fixture(scope="module")
def two_workers(text_serving: TextServing) -> Iterator[Server]:
    server = text_serving.gateway("--workers=2").start()
    try:
        yield server.wait_for("/health/ready")
    finally:
        server.stop()


def page_of(server: Server) -> str:
    return server.ask("GET", "/metrics").raw.decode()


def test_what_the_gateway_answers_itself_is_timed_too(two_workers: Server) -> None:
    server = two_workers
    ours = {"content-type": "application/json"}
    for _ in range(2):
        assert server.post("texts", b"{").status == 400
        assert server.post("secret-kettle", {"text": "tea"}).status == 404
        assert server.ask("POST", "/serve/texts/7", b"{}", ours).status == 404
        assert server.ask("POST", "/tei/texts/predict", b'{"inputs": 7}', ours).status == 422
        assert server.ask("POST", "/v1/embeddings", b'{"input": "tea"}', ours).status == 400

    def timed(endpoint: str) -> dict[tuple[str, str], float]:
        return durations(read(page_of(server)), endpoint)

    # The dialect's 422 is our 400.
    wait_until(
        lambda: timed("texts") == {("400", "malformed_body"): 2, ("400", "invalid_field"): 2}, 20
    )
    wait_until(
        lambda: timed("") == {("404", "unknown_endpoint"): 4, ("400", "invalid_field"): 2}, 20
    )
    seen = read(page_of(server))
    assert of(seen, "gateway_refused_total", endpoint="texts", code="malformed_body") == 2
    assert of(seen, "gateway_refused_total", endpoint="", code="unknown_endpoint") == 4
    wait_until(
        lambda: of(read(page_of(server)), "gateway_requests_in_flight", endpoint="texts") == 0, 20
    )
    assert "kettle" not in page_of(server)


def test_what_has_not_happened_yet_is_zero(text_serving: TextServing) -> None:
    """Of each fault of ours, before anybody asks; the first of them is then a growth."""
    server = text_serving.gateway("--workers=2").start()
    try:
        server.wait_for("/health/ready")
        names = "texts", "vectors"
        faults = {(str(KINDS[code].status), code) for code in FAULTS}
        codes = {("200", "ok"), *faults}
        first = read(page_of(server))

        def rows(name: str, endpoint: str) -> dict[str, float]:
            return {
                dict(labels).get("status", "") + dict(labels).get("code", ""): value
                for (row, labels), value in first.items()
                if row == name and dict(labels).get("endpoint") == endpoint
            }

        for name in names:
            assert rows("request_duration_seconds_count", name) == {
                status + code: 0 for status, code in codes
            }
            assert rows("request_duration_seconds_sum", name).keys() == {
                status + code for status, code in codes
            }
            assert rows("gateway_refused_total", name) == {"overloaded": 0, "unavailable": 0}
            assert rows("requests_total", name) == dict.fromkeys(
                ("200", *(status for status, _ in faults)), 0
            )
        assert rows("gateway_refused_total", "") == {"overloaded": 0, "unavailable": 0}
        buckets = [
            dict(labels)["le"]
            for name, labels in first
            if name == "request_duration_seconds_bucket" and ("endpoint", "texts") in labels
        ]
        every = (*map(str, map(float, BOUNDS)), "+Inf")
        assert Counter(buckets) == dict.fromkeys(every, len(codes))
        assert server.post("texts", {"text": "[FAIL]"}).status == 502
        wait_until(
            lambda: durations(read(page_of(server)), "texts") == {("502", "engine_failed"): 1}, 20
        )
        again = read(page_of(server))
        assert first.keys() <= again.keys()
        assert of(again, "requests_total", endpoint="texts", status="502") == 1
    finally:
        server.stop()


def test_what_runs_is_in_flight(two_workers: Server, text_serving: TextServing) -> None:
    def running() -> float:
        return of(read(page_of(two_workers)), "gateway_requests_in_flight", endpoint="texts")

    with ThreadPoolExecutor(3) as pool:
        with stopped(text_serving.triton):
            body = {"text": "tea", "timeout_ms": 60_000}
            asked = [pool.submit(two_workers.post, "texts", body) for _ in range(3)]
            wait_until(lambda: running() > 0, 60)
        for one in asked:
            one.result()
    wait_until(lambda: running() == 0, 20)


def test_each_worker_tells_of_itself(two_workers: Server) -> None:
    """Its process, its syncs, the bundles that it serves, and its first call of an engine."""
    pids = {str(worker.pid) for worker in two_workers.workers()}
    assert len(pids) == 2

    def rows(name: str) -> dict[str, float]:
        """By worker; of endpoint texts where the figure has endpoints."""
        return {
            sample.labels["pid"]: sample.value
            for family in text_string_to_metric_families(page_of(two_workers))
            for sample in family.samples
            if sample.name == name and sample.labels.get("endpoint", "texts") == "texts"
        }

    wait_until(lambda: rows(f"{PREFIX}gateway_bundle_info") == dict.fromkeys(pids, 1.0), 60)
    for name in ("cpu_seconds_total", "resident_memory_bytes", "open_fds", "start_time_seconds"):
        seen = rows(f"process_{name}")
        assert seen.keys() == pids
        assert all(seen.values())
    first = rows(f"{PREFIX}first_engine_call_seconds")
    assert first.keys() == pids
    assert all(0 < seconds < 600 for seconds in first.values())
    synced = rows(f"{PREFIX}gateway_last_sync_timestamp_seconds")
    assert synced.keys() == pids
    now = time.time()
    assert all(now - 600 < at <= now for at in synced.values())
    wait_until(
        lambda: all(
            at > synced[pid]
            for pid, at in rows(f"{PREFIX}gateway_last_sync_timestamp_seconds").items()
        ),
        60,
    )


def test_a_sync_counts_where_the_task_was_read_again() -> None:
    """The SDK logs what it could not read, and the host takes the old configuration again."""

    class Host:
        def deserialize(self, task: Any, prefetch_artifacts: bool = False) -> bool:
            return prefetch_artifacts

    tell_syncs(Host)
    name = f"{PREFIX}gateway_last_sync_timestamp_seconds"
    began = time.time()
    task = SimpleNamespace(_data=object())
    assert Host().deserialize(task, prefetch_artifacts=True)
    first = REGISTRY.get_sample_value(name)
    assert first is not None
    assert began <= first <= time.time()
    assert not Host().deserialize(task)
    assert REGISTRY.get_sample_value(name) == first
    task._data = object()
    assert not Host().deserialize(task)
    again = REGISTRY.get_sample_value(name)
    assert again is not None
    assert again > first


def test_times_are_on_the_answer(way: tuple[Server, Any]) -> None:
    server, _ = way
    timing = server.post("texts", {"text": "tea"}).headers["server-timing"]
    stages = [part.split(";dur=") for part in timing.split(", ")]
    assert [name for name, _ in stages] == ["tokenize", "queue", "infer", "post"]
    assert all(float(value) >= 0 for _, value in stages)


def test_dead_workers_count_on_and_refusals_count(
    text_serving: TextServing, tmp_path: Path
) -> None:
    """A worker that is killed leaves its counts, not its files."""
    server = text_serving.gateway("--workers=2", PROMETHEUS_MULTIPROC_DIR=str(tmp_path)).start()
    try:
        server.wait_for("/health/ready")

        def requests() -> float:
            reply = server.ask("GET", "/metrics")
            assert reply.status == 200, server.log.read_text()
            figures = read(reply.raw.decode())
            return of(figures, "requests_total", endpoint="texts", status="200")

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda _: server.post("texts", {"text": "tea"}), range(40)))
        # What was not told yet goes with a worker that is killed.
        wait_until(lambda: requests() == 40, 20)
        workers = {int(path.stem.split("_")[-1]) for path in tmp_path.glob("counter_*.db")}
        for worker in workers:
            os.kill(worker, signal.SIGKILL)

        dead = {str(worker) for worker in workers}

        def folded() -> bool:
            """Asking for the figures folds those of workers whose end is known by then."""
            try:
                counted = requests()
            except OSError:
                return False
            left = {path.stem.split("_")[-1] for path in tmp_path.glob("*.db")}
            return counted == 40 and "ended" in left and not left & dead

        wait_until(folded, 300)
        server.post("texts", {"text": "tea"})
        wait_until(lambda: requests() == 41, 20)
        for _ in range(3):
            assert server.post("texts", b"{").status == 400
        seen = read(server.ask("GET", "/metrics").raw.decode())
        refused = of(seen, "gateway_refused_total", endpoint="texts", code="malformed_body")
        assert refused == 3
    finally:
        server.stop()


def test_faults_are_logged_once_a_second_without_the_request(text_serving: TextServing) -> None:
    """A line stands for those that came since the one before it, too."""
    server = text_serving.gateway().start()
    asked = 0

    def faults() -> list[Any]:
        lines = server.log.read_text().splitlines()
        told = [json.loads(line) for line in lines if line[:1] + line[-1:] == "{}"]
        return [line for line in told if line.get("code") == "engine_failed"]

    def ask(_: int) -> int:
        body = {"text": "[FAIL] secret"}
        return server.post("texts", body, {"x-request-id": "mine"}).status

    def several_in_a_line() -> bool:
        nonlocal asked
        # At once: on a slow machine one after the other might take a second each.
        assert set(pool.map(ask, range(8))) == {502}
        asked += 8
        return any(line["count"] > 1 for line in faults())

    try:
        server.wait_for("/health/ready")
        with ThreadPoolExecutor(8) as pool:
            wait_until(several_in_a_line, 60)
    finally:
        server.stop()
    assert "secret" not in server.log.read_text()
    assert len(faults()) < asked
    assert sum(line["count"] for line in faults()) <= asked
    # One that tells what came after the last line is of no one request.
    assert {line.get("request_id") for line in faults()} - {None} == {"mine"}
    first = faults()[0]
    assert (first["endpoint"], first["status"], first["level"]) == ("texts", 502, "warning")
