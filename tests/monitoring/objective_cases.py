"""What alerts of objectives are shown: above their budget, below it, few answers, and an end."""

from __future__ import annotations

from collections.abc import Iterator

from tests.monitoring.case import ENDPOINT, Case, P, Series
from transformer_serving.desk.monitoring.objectives import OBJECTIVES
from transformer_serving.desk.monitoring.times import BURN_RATES


def requests(bad: float, good: float) -> list[Series]:
    name = f"{P}request_duration_seconds_count"
    return [
        (f'{name}{{endpoint="texts",status="200",code="ok"}}', 0, good),
        (f'{name}{{endpoint="texts",status="503",code="overloaded"}}', 0, bad),
        # What the caller did wrong neither fails nor thins out what fails.
        (f'{name}{{endpoint="texts",status="400",code="invalid_field"}}', 0, 10 * good),
    ]


def durations(bad: float, good: float) -> list[Series]:
    name, labels = f"{P}request_duration_seconds", 'status="200",code="ok"'
    return [
        (f'{name}_count{{endpoint="texts",{labels}}}', 0, bad + good),
        (f'{name}_bucket{{endpoint="texts",{labels},le="1.0"}}', 0, good),
        # What the name once did, with another bundle: the row stays until the gateway ends.
        (f'{P}first_token_seconds_count{{endpoint="texts"}}', 70, 0),
        # Generated text: as slow as it is long.
        (f'{name}_count{{endpoint="stories",{labels}}}', 0, 100),
        (f'{name}_bucket{{endpoint="stories",{labels},le="1.0"}}', 0, 0),
        (f'{P}first_token_seconds_count{{endpoint="stories"}}', 0, 100),
        # A canary route to such ones, whose first tokens are under their own names.
        (f'{name}_count{{endpoint="chat",{labels}}}', 0, 100),
        (f'{name}_bucket{{endpoint="chat",{labels},le="1.0"}}', 0, 0),
        (f'{P}first_token_seconds_count{{endpoint="chat/1"}}', 0, 100),
        (f'{P}gateway_generates_text{{endpoint="chat",pid="11"}}', 1, 0),
    ]


def first_tokens(bad: float, good: float) -> list[Series]:
    return [
        (f'{P}first_token_seconds_count{{endpoint="texts"}}', 0, bad + good),
        (f'{P}first_token_seconds_bucket{{endpoint="texts",le="2.5"}}', 0, good),
    ]


_OBJECTIVE_SERIES = {
    "RequestErrorBudgetBurn": requests,
    "LatencyBudgetBurn": durations,
    "FirstTokenBudgetBurn": first_tokens,
}


def objective_cases() -> Iterator[Case]:
    """For each burn rate: above it, below it, above it with few answers, and when it is over."""
    for one in OBJECTIVES:
        series = _OBJECTIVE_SERIES[one.alert]
        for alert, rate in zip(one.alerts(), BURN_RATES, strict=True):
            step_s = rate.pace.short_s / 5
            most = rate.factor * (1 - one.target)
            above, below = min(1.2 * most, 0.95), 0.8 * most
            few = 6 / (rate.pace.window_s / step_s)
            for name, rows, fires in (
                ("above", series(1e5 * above, 1e5 * (1 - above)), ENDPOINT),
                ("below", series(1e5 * below, 1e5 * (1 - below)), None),
                ("few", series(few, 0), None),
            ):
                yield Case(alert, name, rows, fires, step_s, value=above)
            # The long window still sees it; the short one does not.
            bad = min(2 * most, 0.95)
            then = [step for _, _, step in series(0, 1e5)]
            yield Case(alert, "over", series(1e5 * bad, 1e5 * (1 - bad)), None, step_s, then)
