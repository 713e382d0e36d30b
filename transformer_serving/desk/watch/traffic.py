"""What is shown of the figures: of each endpoint its rates and times, and what waits.

Tested by tests/watch/test_traffic.py.
"""

from __future__ import annotations

from collections import deque
from dataclasses import asdict, dataclass, field
from typing import Any

from transformer_serving.desk.watch.counters import Page, Risen, Window
from transformer_serving.desk.watch.quantiles import histogram_quantile

SPAN_S = 15.0
# As many looks as a sparkline may show.
_REMEMBERED = 60
# Every answer, whoever gave it, as the caller had it: what dashboards show.
_TIMES = "request_duration_seconds"
_ANSWERS = f"{_TIMES}_count"
# What an endpoint's own code tells: all that there is of a rollout's candidate, which callers reach
# under another name.
_OWN_ANSWERS = "requests_total"
_FIRST_TOKEN = "first_token_seconds"
_TOKENS = "generated_tokens_total"


@dataclass(frozen=True, slots=True)
class TextTraffic:
    """Of text-generation. Tokens count as they come, those of answers that are not whole too."""

    tokens_per_s: float
    first_token_p50_s: float | None
    first_token_p99_s: float | None
    running: int


@dataclass(frozen=True, slots=True)
class EndpointTraffic:
    """Rates are a second. `p50_s` and `p99_s` are of answers with 200, None where none came.

    `refused_per_s` counts the statuses 400 to 499, `errors_per_s` 500 and above.
    """

    requests_per_s: float
    refused_per_s: float
    errors_per_s: float
    p50_s: float | None
    p99_s: float | None
    text: TextTraffic | None


@dataclass(frozen=True, slots=True)
class Traffic:
    """`seconds` is how long was looked at: rates and times are of that while.

    A limit is None where no worker has said it; `refused_per_s` are the gateway's own refusals, by
    their code; `failing` the endpoints whose golden request some worker answers wrongly.
    """

    seconds: float
    endpoints: dict[str, EndpointTraffic]
    waiting_tokens: int
    waiting_tokens_limit: int | None
    running_streams: int
    running_streams_limit: int | None
    refused_per_s: dict[str, float]
    failing: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class History:
    """The looks so far: a window for rates, and what sparklines are drawn from.

    `requests` and `tokens` are by endpoint the rate from each look to the next, oldest first, None
    where no page was to be had; `waiting` the tokens that waited at each.
    """

    window: Window = field(default_factory=lambda: Window(SPAN_S))
    requests: dict[str, deque[float | None]] = field(default_factory=dict)
    tokens: dict[str, deque[float | None]] = field(default_factory=dict)
    waiting: deque[float | None] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))

    def add(self, page: Page | None) -> Traffic | None:
        """One look; what is known now, None where there is no page."""
        if page is None:
            for line in (*self.requests.values(), *self.tokens.values(), self.waiting):
                line.append(None)
            return None
        self.window.add(page)
        traffic = traffic_of(self.window.all(), page)
        last = traffic_of(self.window.last(), page)
        for name, row in last.endpoints.items():
            _line(self.requests, name).append(row.requests_per_s if last.seconds else None)
            if row.text is not None:
                _line(self.tokens, name).append(row.text.tokens_per_s if last.seconds else None)
        # Of one that no page has any more a line of the same name may begin some time.
        for lines in (self.requests, self.tokens):
            for name in lines.keys() - traffic.endpoints.keys():
                del lines[name]
        self.waiting.append(traffic.waiting_tokens)
        return traffic


def _line(lines: dict[str, deque[float | None]], name: str) -> deque[float | None]:
    return lines.setdefault(name, deque(maxlen=_REMEMBERED))


def traffic_of(risen: Risen, page: Page) -> Traffic:
    """Of the while that ends with that page."""
    names = {series.label("endpoint") for series in page.counters} - {None}
    asked = {
        series.label("endpoint")
        for series, value in page.counters.items()
        if value and series.name == _ANSWERS
    }
    refused: dict[str, float] = {}
    for series, value in risen.of("gateway_refused_total"):
        if value:
            code = series.label("code") or ""
            refused[code] = refused.get(code, 0.0) + value / risen.seconds
    wrong = {
        series.label("endpoint") or ""
        for series, value in page.select("gateway_golden_ok")
        if value == 0
    }
    return Traffic(
        seconds=risen.seconds,
        endpoints={
            name: _endpoint(risen, page, name, _ANSWERS if name in asked else _OWN_ANSWERS)
            for name in sorted(filter(None, names))
        },
        waiting_tokens=_whole(page.gauge("waiting_tokens")) or 0,
        waiting_tokens_limit=_whole(page.gauge("waiting_tokens_limit")),
        running_streams=_whole(page.gauge("running_streams")) or 0,
        running_streams_limit=_whole(page.gauge("running_streams_limit")),
        refused_per_s=refused,
        failing=tuple(sorted(wrong)),
    )


def _endpoint(risen: Risen, page: Page, name: str, answers: str) -> EndpointTraffic:
    """`answers` is the figure whose statuses are counted."""
    by_hundred: dict[str, float] = {}
    for series, value in risen.of(answers, endpoint=name):
        hundred = (series.label("status") or "")[:1]
        by_hundred[hundred] = by_hundred.get(hundred, 0.0) + value
    seconds = risen.seconds or 1.0
    times = risen.buckets(_TIMES, endpoint=name, code="ok")
    return EndpointTraffic(
        requests_per_s=sum(by_hundred.values()) / seconds,
        refused_per_s=by_hundred.get("4", 0.0) / seconds,
        errors_per_s=by_hundred.get("5", 0.0) / seconds,
        p50_s=histogram_quantile(0.5, times),
        p99_s=histogram_quantile(0.99, times),
        text=_text(risen, page, name),
    )


def _text(risen: Risen, page: Page, name: str) -> TextTraffic | None:
    """None where the endpoint generates no text."""
    if not any(
        series.name == f"{_FIRST_TOKEN}_count" and series.has({"endpoint": name})
        for series in page.counters
    ):
        return None
    first = risen.buckets(_FIRST_TOKEN, endpoint=name)
    return TextTraffic(
        tokens_per_s=risen.rate(_TOKENS, endpoint=name),
        first_token_p50_s=histogram_quantile(0.5, first),
        first_token_p99_s=histogram_quantile(0.99, first),
        running=_whole(page.gauge("running_streams", endpoint=name)) or 0,
    )


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
