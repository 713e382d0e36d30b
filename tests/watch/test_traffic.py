"""What is made of pages: endpoints that come and go, outages, limits of several workers."""

from __future__ import annotations

import json

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from transformer_serving.desk.watch.counters import read_page
from transformer_serving.desk.watch.traffic import History, Traffic

_OF_ONE = ("endpoint",)


class Gateway:
    """The figures of one gateway's life."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "transformer_serving_requests", "x", ("endpoint", "status"), registry=self.registry
        )
        self.seconds = Histogram(
            "transformer_serving_request_duration_seconds", "x", ("endpoint", "status", "code"),
            registry=self.registry, buckets=(0.1, 1.0),
        )  # fmt: skip
        self.first = Histogram(
            "transformer_serving_first_token_seconds", "x", _OF_ONE, registry=self.registry,
            buckets=(0.1, 1.0),
        )  # fmt: skip
        self.tokens = Counter(
            "transformer_serving_generated_tokens", "x", _OF_ONE, registry=self.registry
        )

    def gauge(self, name: str, *labels: str) -> Gauge:
        return Gauge(f"transformer_serving_{name}", "x", labels, registry=self.registry)

    def answer(self, endpoint: str, status: int = 200, seconds: float = 0.05) -> None:
        """Of an endpoint of ours, by its own code and by the gateway."""
        self.requests.labels(endpoint, str(status)).inc()
        self.took(endpoint, status, seconds)

    def took(self, endpoint: str, status: int, seconds: float = 0.05) -> None:
        """As the gateway alone tells of it."""
        code = "ok" if status == 200 else f"of {status}"
        self.seconds.labels(endpoint, str(status), code).observe(seconds)

    def look(self, history: History, at: float) -> Traffic:
        traffic = history.add(read_page(generate_latest(self.registry).decode(), at))
        assert traffic is not None
        return traffic


def test_rates_and_times_of_each_endpoint() -> None:
    gateway, history = Gateway(), History()
    gateway.answer("a")
    first = gateway.look(history, 0.0)
    assert (first.seconds, first.endpoints["a"].requests_per_s) == (0, 0)
    assert list(history.requests["a"]) == [None]
    for status in (200, 200, 200, 200, 404, 429, 503, 502):
        gateway.answer("a", status)
    gateway.answer("b", seconds=0.5)
    traffic = gateway.look(history, 2.0)
    a, b = traffic.endpoints["a"], traffic.endpoints["b"]
    assert (a.requests_per_s, a.refused_per_s, a.errors_per_s) == (4.0, 1.0, 1.0)
    assert a.p50_s == 0.05
    assert a.p99_s == pytest.approx(0.099)
    # The second bucket goes from 0.1 to 1 s.
    assert b.p50_s == pytest.approx(0.55)
    assert list(history.requests["a"]) == [None, 4.0]
    assert list(history.requests["b"]) == [0.5]
    assert json.loads(json.dumps(traffic.as_json()))["endpoints"]["b"]["text"] is None


def test_an_answer_is_what_the_caller_had_as_dashboards_have_it() -> None:
    """Whoever gave it: of a stream that broke the endpoint's code says 200, of another's code and
    of code that is missing it says nothing.
    """
    gateway, history = Gateway(), History()
    gateway.look(history, 0.0)
    for status in (200, 502, 499):
        gateway.requests.labels("text", "200").inc()
        gateway.took("text", status)
    for status in (200, 500):
        gateway.took("other", status)
    gateway.took("missing", 503)
    found = gateway.look(history, 1.0).endpoints
    shown = {
        name: (row.requests_per_s, row.refused_per_s, row.errors_per_s)
        for name, row in found.items()
    }
    assert shown == {"text": (3, 1, 1), "other": (2, 0, 1), "missing": (1, 0, 1)}


def test_a_candidate_that_is_asked_under_its_routes_name_has_its_part_of_the_answers() -> None:
    """Its rows of the gateway's are there, and stay 0."""
    gateway, history = Gateway(), History()
    gateway.seconds.labels("a/7", "200", "ok")
    gateway.seconds.labels("a/7", "502", "engine_failed")
    gateway.look(history, 0.0)
    for by, status in (("a", 200), ("a/7", 200), ("a/7", 502)):
        gateway.requests.labels(by, str(status)).inc()
        gateway.took("a", status)
    found = gateway.look(history, 1.0).endpoints
    assert (found["a"].requests_per_s, found["a"].errors_per_s) == (3, 1)
    assert (found["a/7"].requests_per_s, found["a/7"].errors_per_s) == (2, 1)


def test_a_gateway_that_began_again_knows_other_endpoints() -> None:
    before, history = Gateway(), History()
    for _ in range(100):
        before.answer("a")
        before.answer("gone")
    before.look(history, 0.0)
    before.look(history, 2.0)
    assert history.add(None) is None
    assert list(history.requests["a"]) == [None, 0.0, None]
    after = Gateway()
    after.answer("a")
    after.answer("new")
    traffic = after.look(history, 6.0)
    assert traffic.endpoints.keys() == {"a", "new"}
    # One answer in the six seconds since the window began.
    assert traffic.endpoints["a"].requests_per_s == pytest.approx(1 / 6)
    assert list(history.requests["a"]) == [None, 0.0, None, 0.25]
    assert history.requests.keys() == {"a", "new"}


def test_an_endpoint_that_goes_leaves_the_rates_of_others() -> None:
    """The gateway's page has its rows no more, and again when it is back."""
    gateway, history = Gateway(), History()
    for _ in range(100):
        gateway.answer("a")
    gateway.answer("gone")
    gateway.look(history, 0.0)
    held = [
        (metric, labels, metric._metrics[labels])
        for metric in (gateway.requests, gateway.seconds)
        for labels in list(metric._metrics)
        if labels[0] == "gone"
    ]
    for metric, labels, _ in held:
        metric.remove(*labels)
    gateway.answer("a")
    gateway.look(history, 2.0)
    for metric, labels, row in held:
        metric._metrics[labels] = row
    gateway.answer("gone")
    traffic = gateway.look(history, 4.0)
    assert list(history.requests["a"]) == [None, 0.5, 0.0]
    assert list(history.requests["gone"]) == [0.5]
    assert traffic.endpoints["gone"].requests_per_s == 0.25


def test_what_waits_runs_and_fails() -> None:
    gateway, history = Gateway(), History()
    for name, value in (
        ("waiting_tokens", 120),
        ("waiting_tokens_limit", 800),
        ("running_streams_limit", 256),
    ):
        gateway.gauge(name).set(value)
    running = gateway.gauge("running_streams", "endpoint")
    running.labels("text").set(3)
    running.labels("other").set(1)
    golden = gateway.gauge("gateway_golden_ok", "endpoint", "pid")
    for endpoint, pid, value in (("text", "1", 1), ("text", "2", 0), ("other", "1", 1)):
        golden.labels(endpoint, pid).set(value)
    refused = Counter(
        "transformer_serving_gateway_refused", "x", ("endpoint", "code"), registry=gateway.registry
    )
    refused.labels("", "unauthorized").inc(5)
    gateway.look(history, 0.0)
    for endpoint, times in (("", 1), ("text", 2), ("other", 1)):
        refused.labels(endpoint, "unauthorized").inc(times)
    refused.labels("", "too_large").inc(0)
    # Of several sequences one request has the first tokens.
    for _ in range(2):
        gateway.first.labels("text").observe(0.05)
    gateway.tokens.labels("text").inc(40)
    traffic = gateway.look(history, 2.0)
    assert (traffic.waiting_tokens, traffic.waiting_tokens_limit) == (120, 800)
    assert (traffic.running_streams, traffic.running_streams_limit) == (4, 256)
    assert traffic.failing == ("text",)
    assert traffic.refused_per_s == {"unauthorized": 2.0}
    text = traffic.endpoints["text"].text
    assert text is not None
    assert (text.tokens_per_s, text.first_token_p50_s, text.running) == (20.0, 0.05, 3)
    assert list(history.waiting) == [120, 120]


def test_a_gateway_of_an_older_kit_has_no_limits_and_no_times() -> None:
    registry = CollectorRegistry()
    requests = Counter(
        "transformer_serving_requests", "x", ("endpoint", "status"), registry=registry
    )
    history = History()
    for at in (0.0, 2.0):
        requests.labels("a", "200").inc(4)
        traffic = history.add(read_page(generate_latest(registry).decode(), at))
    assert traffic is not None
    assert traffic.waiting_tokens_limit is None
    row = traffic.endpoints["a"]
    assert (row.requests_per_s, row.p50_s, row.p99_s) == (2.0, None, None)
