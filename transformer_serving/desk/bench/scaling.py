"""What an autoscaler is told: how many tokens may wait for each Triton, and how many it answers.

By Little's law a number of tokens that wait or are computed is a time: the tokens that are answered
in a second, times the seconds that each of them is there. So it is measured and not guessed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families

from transformer_serving.contract.worker.deferred import WITHIN_S
from transformer_serving.desk import http
from transformer_serving.desk.bench import contact, load
from transformer_serving.desk.bench.figures import figures
from transformer_serving.desk.bench.measure import Bench, Measured
from transformer_serving.desk.command_line import command_line
from transformer_serving.desk.failure import Failure

_TOKENS = "transformer_serving_tokens_total"
_REQUESTS = "transformer_serving_requests_total"
# The share of what a Triton can do that it shall do: waits grow without bounds towards all of it.
BUSY = 0.7
# Half of the requests a second that a worker of the gateway answers (docs/growth.md).
MAY_BE_THE_WORKER = 1000
_TIMEOUT_S = 10.0
# Until every worker has told its figures, which it does by then where its loop has a moment.
_SETTLE_S = 2 * WITHIN_S
# Of answers that somebody else got, or that another pod counted.
_STRANGERS = 0.02


@dataclass(frozen=True)
class Scaling:
    """`waiting_tokens` is for each Triton; `alone_s` is what a text takes with none before it.

    `wanted_per_second` is the share of `tokens_per_second` that a Triton shall have to do.
    """

    clients: int
    tokens_per_answer: float
    tokens_per_second: float
    alone_s: float
    within_s: float
    waiting_tokens: int
    wanted_per_second: int
    answers_per_second: float

    def values(self) -> str:
        """The lines for the chart's values."""
        return (
            f"{self._note()}"
            f"# {self.tokens_per_second:.0f} tokens a second with {self.clients} clients and "
            f"{self.tokens_per_answer:.0f} an answer; {self.within_s:g} s to wait and be computed\n"
            f"triton: {{autoscaling: {{waitingTokens: {self.waiting_tokens}, "
            f"tokensPerSecond: {self.wanted_per_second}}}}}"
        )

    def _note(self) -> str:
        if self.answers_per_second <= MAY_BE_THE_WORKER:
            return ""
        return (
            f"# At {self.answers_per_second:.0f} requests a second the one worker of the pod may "
            "have been the limit, and not the Triton:\n"
            "# see with --texts 32 whether there are more tokens a second, and take those values.\n"
        )


@dataclass(frozen=True)
class Counted:
    """What a gateway's figures say at one moment, of all its endpoints."""

    tokens: float
    answers: float


def scaling(
    bench: Bench, measured: Sequence[Measured], metrics: str, key: str | None, within_s: float
) -> Scaling:
    """Load the endpoint once more, with the best number of clients, and count its tokens.

    `metrics` is the address of /metrics, `key` one for it. Raises Failure where nothing is counted
    there, where others were answered too, where the endpoint is gone, and for a time that no text
    can be answered in.
    """
    closed = [row for row in measured if row.clients is not None]
    alone_s = _alone_s(closed)
    if within_s <= alone_s:
        raise Failure(
            f"--within {within_s:g} is no longer than the {alone_s:.2g} s that a text takes with "
            "the fewest clients: no number of Tritons answers sooner; give more",
            exit_code=2,
        )
    clients = max(closed, key=lambda row: row.figures.goodput).clients or 1
    # What workers counted a moment ago may not be on the page yet, of the load before too.
    time.sleep(_SETTLE_S)
    before = counted(metrics, key)
    run = contact.run(bench.address, bench.payloads, load.Closed(clients, bench.seconds))
    time.sleep(_SETTLE_S)
    after = counted(metrics, key)
    answers = figures(run).statuses.get("200", 0)
    _alone(after.answers - before.answers, answers)
    tokens = after.tokens - before.tokens
    rate = tokens / run.elapsed_s
    return Scaling(
        clients,
        tokens / answers,
        rate,
        alone_s,
        within_s,
        max(1, round(rate * within_s)),
        max(1, round(rate * BUSY)),
        answers / run.elapsed_s,
    )


def metrics_address(url: str) -> str:
    """Where the gateway at a URL serves its figures."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}/metrics"


def counted(metrics: str, key: str | None) -> Counted:
    """Raises Failure for a page without our figures."""
    try:
        answer = http.ask(metrics, headers=http.key_header(key), timeout_s=_TIMEOUT_S)
    except http.NoAnswer as error:
        raise Failure(f"{metrics} does not answer: {error.cause}") from error
    if answer.status in (http.UNAUTHORIZED, http.FORBIDDEN):
        raise Failure(
            f"{metrics} takes a key for figures alone, made by "
            f"'{command_line('keys add NAME --metrics')}': give it in {http.METRICS_KEY_VARIABLE}",
            exit_code=2,
        )
    try:
        found = _sums(answer.body.decode("utf-8"))
    except ValueError as error:
        raise Failure(f"{metrics} is no page of figures: status {answer.status}") from error
    if _TOKENS not in found:
        raise Failure(f"{metrics} has no {_TOKENS}: status {answer.status}; ask the gateway's own")
    return Counted(found[_TOKENS], found.get(_REQUESTS, 0.0))


def _sums(page: str) -> Mapping[str, float]:
    """Of every counter of ours over its endpoints; of requests, those answered with 200."""
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            counts = sample.name == _TOKENS or (
                sample.name == _REQUESTS and sample.labels.get("status") == "200"
            )
            if counts:
                sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    return sums


def _alone_s(closed: Sequence[Measured]) -> float:
    fewest = min(closed, key=lambda row: row.clients or 0).figures.latency
    return fewest.p50 / 1e3 if fewest is not None else 0.0


def _alone(counted_answers: float, answers: int) -> None:
    """Raises Failure where the page counted for others as well, or for another pod."""
    if answers == 0 or abs(counted_answers - answers) > _STRANGERS * answers + 1:
        raise Failure(
            f"the page of figures counted {counted_answers:.0f} answers where {answers} came: let "
            "nobody else ask meanwhile, and ask one pod (kubectl port-forward)"
        )
