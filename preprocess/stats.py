"""What was served: counts and times for Prometheus, by endpoint.

Without prometheus_client installed there are none. With PROMETHEUS_MULTIPROC_DIR set, the figures
of all workers are in files below it, and every worker can show them all together.

Tested by tests/preprocess/test_coalesce.py and tests/gateway/test_metrics.py.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

from transformer_serving.contract.errors import FAULTS, KINDS
from transformer_serving.contract.worker.deferred import Deferred
from transformer_serving.contract.worker.durations import Durations
from transformer_serving.contract.worker.process_wide import process_wide
from transformer_serving.contract.worker.tallies import CounterTally, HistogramTally

try:
    import prometheus_client as prometheus
except ImportError:  # an inference container without it serves all the same
    prometheus = None  # type: ignore[assignment]

# Of answers that no gateway measures.
durations = Durations(prometheus)

log = logging.getLogger("transformer_serving.preprocess")

STAGES = ("tokenize", "queue", "infer", "post")
_SECONDS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5,
    10, 20, 30, 60
)  # fmt: skip
_CALL_TEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
# Why a request in the queue is given up.
DISCONNECT, DEADLINE = "disconnect", "deadline"
# The same by the code of the error that ends it; another error, or a worker that leaves, gives up
# nothing.
GIVEN_UP = {"left": DISCONNECT, "deadline": DEADLINE}
_WHY = ("reason",)
# Prometheus takes a counter's first value for no growth: what begins at 0 loses no first fault.
_FROM_ZERO = (200, *sorted({KINDS[code].status for code in FAULTS}))


class EndpointFigures:
    """One endpoint's figures; looked up once, because a look-up costs as much as a count.

    What is counted for every request is told a moment later.
    """

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._requests = {status: self._answers_of(status) for status in _FROM_ZERO}
        self._abandoned = {reason: self._given_up_by(reason) for reason in (DISCONNECT, DEADLINE)}
        self._texts = self._tally("texts", "Texts of requests answered with 200.")
        self._tokens = self._tally("tokens", "Their tokens, special ones included.")
        seconds = histogram(
            "stage_seconds", "Seconds a request spent in a stage.", ("stage",), _SECONDS
        )
        self._stages = [
            (HistogramTally(_SECONDS), labelled(seconds, endpoint, stage)) for stage in STAGES
        ]
        call_texts = histogram(
            "call_texts", "Rows of texts that went to the engine in one call.", (), _CALL_TEXTS
        )
        self._call_texts = HistogramTally(_CALL_TEXTS), labelled(call_texts, endpoint)
        self._call_tokens = self._tally("call_tokens", "Tokens sent to the engine.")
        self._padding = self._tally(
            "call_padding_tokens", "Padding sent to the engine beside the tokens."
        )
        self._soon = Deferred(self.tell).soon

    def request(
        self, status: int, texts: int, tokens: int, stages: Mapping[str, float], times: int = 1
    ) -> None:
        """One answer, or so many like it; `stages` in seconds, in the order of STAGES, as far as it
        came: an answer of tokens alone has no others.
        """
        if status not in self._requests:
            self._requests[status] = self._answers_of(status)
        self._requests[status].value += times
        if status == 200:
            self._texts.value += texts
            self._tokens.value += tokens
            for (tally, _), seconds in zip(self._stages, stages.values(), strict=False):
                tally.observe(seconds)
        self._soon()

    def abandoned(self, reason: str, texts: int) -> None:
        """A request that nobody waits for any more, and how many texts it brought."""
        for figure, count in zip(self._abandoned[reason], (1, texts), strict=True):
            figure.inc(count)

    def call(self, texts: int, tokens: int, padding: int) -> None:
        """One call of the engine; `texts` are rows, of which a caller's text may make many."""
        self._call_texts[0].observe(texts)
        self._call_tokens.value += tokens
        self._padding.value += padding
        self._soon()

    def tell(self) -> None:
        """What was counted and Prometheus does not know yet."""
        for counted in (
            *self._requests.values(), self._texts, self._tokens, self._call_tokens, self._padding
        ):  # fmt: skip
            counted.tell()
        for tally, told in (*self._stages, self._call_texts):
            if not isinstance(told, _Nothing):
                tally.tell(told)

    def _tally(self, name: str, text: str) -> CounterTally:
        return CounterTally(labelled(counter(name, text), self._endpoint))

    def _answers_of(self, status: int) -> CounterTally:
        requests = counter("requests", "Answers by their status.", ("status",))
        return CounterTally(labelled(requests, self._endpoint, str(status)))

    def _given_up_by(self, reason: str) -> tuple[Any, Any]:
        requests = counter(
            "abandoned_requests", "Requests given up before they had an answer.", _WHY
        )
        texts = counter("abandoned_texts", "Their texts.", _WHY)
        return (
            labelled(requests, self._endpoint, reason),
            labelled(texts, self._endpoint, reason),
        )


def waiting_tokens() -> Any:
    """The worker's gauge of tokens that wait or are being computed."""
    return _of_the_worker("waiting_tokens", "Tokens that wait or are being computed.")


def tell_limit(name: str, text: str, most: int) -> None:
    """What the worker lets in at most; the limits of several workers add up as what they count."""
    _of_the_worker(name, text).set(most)


def _of_the_worker(name: str, text: str) -> Any:
    return _metric("Gauge", name, text, (), multiprocess_mode="livesum")


def first_engine_call() -> Any:
    """The worker's gauge of its first answer from an engine."""
    text = "From the worker's start to its first answer from an engine."
    return _metric("Gauge", "first_engine_call_seconds", text, (), multiprocess_mode="liveall")


def counter(name: str, text: str, labels: tuple[str, ...] = ()) -> Any:
    return _metric("Counter", name, text, ("endpoint", *labels))


def gauge(name: str, text: str) -> Any:
    """Of one endpoint, the workers' values added up."""
    return _metric("Gauge", name, text, ("endpoint",), multiprocess_mode="livesum")


def histogram(name: str, text: str, labels: tuple[str, ...], buckets: tuple[float, ...]) -> Any:
    return _metric("Histogram", name, text, ("endpoint", *labels), buckets=buckets)


class _Nothing:
    """Stands for every figure where prometheus_client is not installed."""

    def __getattr__(self, name: str) -> Callable[..., _Nothing]:
        return lambda *values: self


def _metric(kind: str, name: str, text: str, labels: tuple[str, ...], **options: Any) -> Any:
    """The process's one metric of that name, also for other versions of this code."""
    if prometheus is None:
        return _Nothing()
    known: dict[Any, Any] = process_wide("metrics", dict)
    key = (name, labels, tuple(options.items()))
    if key not in known:
        # A version of the code that had it otherwise keeps its place in the process's registry.
        taken = any(other[0] == name for other in known)
        registry = None if taken else prometheus.REGISTRY
        make = getattr(prometheus, kind)
        full = f"transformer_serving_{name}"
        known[key] = _made(lambda: make(full, text, labels, registry=registry, **options))
    return known[key]


def labelled(metric: Any, *labels: str) -> Any:
    return _made(lambda: metric.labels(*labels))


def _made(make: Callable[[], Any]) -> Any:
    """What `make` makes, after making the figures' folder again where it has gone.

    A cleaner of temporary files may take it while the worker runs. A request matters more than its
    count: where the folder cannot be made, there are no figures.
    """
    try:
        return make()
    except OSError:
        try:
            os.makedirs(os.environ.get("PROMETHEUS_MULTIPROC_DIR", ""), mode=0o700, exist_ok=True)
            return make()
        except OSError:
            log.warning("figures cannot be kept: their folder has gone and cannot be made again")
            return _Nothing()
