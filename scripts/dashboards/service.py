"""The whole service: objectives first, then requests, work, workers and callers."""

from __future__ import annotations

from scripts.dashboards.expressions import REQUESTS, P, age, quantile, rate, ratio, share, total
from scripts.dashboards.panel import Dashboard, Kind, Needs, Panel, Query, Row, Step
from scripts.dashboards.traffic import answers, work
from transformer_serving.desk.monitoring.alerts import LEAST_BAD
from transformer_serving.desk.monitoring.objectives import OBJECTIVES, Objective
from transformer_serving.desk.monitoring.times import (
    BUDGET_DAYS,
    BURN_RATES,
    PAGE,
    TimeScale,
)

_TIMES = TimeScale()
_RED, _GREEN = "red", "green"
_AT = "{{endpoint}}"
# Every container counts its processes from 1.
_WORKER = "{{instance}} {{pid}}"
# By the alert of an objective: what is promised, what that needs, and how the bad ones' share is
# made. No answer of 500 may have come yet; of times there are bad ones, be they none, wherever the
# promise is made.
_PROMISES = {
    "RequestErrorBudgetBurn": ("Answered without a fault", Needs.NOTHING, share),
    "LatencyBudgetBurn": ("Answered within 1 s", Needs.NOTHING, ratio),
    "FirstTokenBudgetBurn": ("First token within 2.5 s", Needs.TEXT_GENERATION, ratio),
}
# Whose windows are drawn; those of tickets are of days.
_PAGES = tuple(rate for rate in BURN_RATES if rate.severity == PAGE)
# The highest is the colour of a fire.
_BURNS = (
    Step(None, _GREEN),
    *(
        Step(rate.factor, "orange" if rate.factor < _PAGES[0].factor else _RED)
        for rate in reversed(_PAGES)
    ),
)


def _bad_share(objective: Objective, over: str) -> str:
    divided = _PROMISES[objective.alert][2]
    return divided(objective.bad.replace("$over", over), objective.eligible.replace("$over", over))


def _kept(objective: Objective) -> Panel:
    title, needs, _ = _PROMISES[objective.alert]
    bad = _bad_share(objective, f"{BUDGET_DAYS}d")
    return Panel(
        title,
        Kind.STAT,
        "percentunit",
        8,
        f"In {BUDGET_DAYS} days, or as long as there are figures; promised are "
        f"{100 * objective.target:g} %.",
        (Query(f"1 - ({bad})", _AT),),
        needs,
        (Step(None, _RED), Step(objective.target, _GREEN)),
        decimals=3,
    )


def _burn(objective: Objective) -> Panel:
    title, needs, _ = _PROMISES[objective.alert]
    budget = f"{1 - objective.target:.6g}"
    windows = [(rate.factor, _TIMES.text(rate.pace.window_s)) for rate in _PAGES]
    still = " or ".join(_TIMES.text(rate.pace.short_s) for rate in _PAGES)
    return Panel(
        f"Budget burnt: {title[0].lower()}{title[1:]}",
        Kind.LINES,
        "short",
        8,
        f"How many times as fast as it may the error budget is spent. A window over its own line "
        f"pages by {objective.alert}, where the last {still} are over it, too, and {LEAST_BAD} bad "
        "answers came at least. Tickets look at days, which are not drawn.",
        tuple(
            Query(
                f"({_bad_share(objective, window)}) / {budget}",
                f"{_AT}, {window}, line {factor:g}",
            )
            for factor, window in windows
        ),
        needs,
        _BURNS,
    )


def _ends(counter: str, part: str) -> Query:
    return Query(
        f"sum by (instance) (increase({P}{counter}_total[1h]))", f"{{{{instance}}}} {part}"
    )


def _starts(side: str, part: str) -> Query:
    since = f"max by (instance) ({P}{side}_start_time_seconds)"
    return Query(f"changes({since}[1h:])", f"{{{{instance}}}} {part}")


_REQUESTS = (
    *answers(""),
    Panel(
        "Latency of each endpoint, p99",
        Kind.LINES,
        "s",
        12,
        "Answers without an error.",
        (
            Query(
                quantile(0.99, REQUESTS, 'endpoint!="",code="ok"', by="endpoint, le"),
                _AT,
            ),
        ),
    ),
    Panel(
        "Refused by the gateway itself",
        Kind.LINES,
        "reqps",
        12,
        "Before an endpoint saw them, by code.",
        (Query(rate(f"{P}gateway_refused_total", "code"), "{{code}}"),),
    ),
)

_WORK = (
    Panel(
        "Waiting tokens",
        Kind.LINES,
        "short",
        24,
        "Tokens that wait or are being computed, of all workers, and how many they may be. One "
        "busy endpoint's requests are refused as overloaded from half of it on, large ones from a "
        "third.",
        (
            Query(total(f"{P}waiting_tokens"), "waiting"),
            Query(total(f"{P}waiting_tokens_limit"), "limit"),
        ),
    ),
    *work(""),
)

_WORKERS = (
    Panel(
        "Workers",
        Kind.STAT,
        "short",
        6,
        "Worker processes by container. One that hangs counts too: see golden rounds.",
        (
            Query(
                f"count by (instance) ({P}gateway_golden_round_timestamp_seconds)",
                "{{instance}}",
            ),
        ),
    ),
    Panel(
        "Containers that give figures",
        Kind.STAT,
        "short",
        6,
        "Of the gateway and of Triton's controller.",
        (Query('sum by (job) (up{job=~".*transformer-serving.*"})', "{{job}}"),),
    ),
    Panel(
        "Since the last golden round",
        Kind.STAT,
        "s",
        6,
        "Of the worker that is behind most. A round is every 15 s.",
        (Query(age(f"{P}gateway_golden_round_timestamp_seconds"), "{{instance}}"),),
        steps=(Step(None, _GREEN), Step(60, _RED)),
    ),
    Panel(
        "Since the last sync",
        Kind.STAT,
        "s",
        6,
        "With the control plane, of the worker that is behind most. With polls over six minutes "
        "red may be normal; the alert SyncStale knows yours.",
        (Query(age(f"{P}gateway_last_sync_timestamp_seconds"), "{{instance}}"),),
        steps=(Step(None, _GREEN), Step(900, _RED)),
    ),
    Panel(
        "Processor time of each worker",
        Kind.LINES,
        "short",
        6,
        "Cores that it keeps busy.",
        (Query(rate('process_cpu_seconds_total{pid!=""}', "instance, pid"), _WORKER),),
    ),
    Panel(
        "Memory of each worker",
        Kind.LINES,
        "bytes",
        6,
        "Resident.",
        (Query(total('process_resident_memory_bytes{pid!=""}', "instance, pid"), _WORKER),),
    ),
    Panel(
        "Files and connections of each worker",
        Kind.LINES,
        "short",
        6,
        "That it has open.",
        (Query(total('process_open_fds{pid!=""}', "instance, pid"), _WORKER),),
    ),
    Panel(
        "Restarts in an hour",
        Kind.LINES,
        "short",
        6,
        "Of workers, of Triton, and of the gateway or controller that gives the figures.",
        (
            _ends("gateway_worker_restarts", "workers"),
            _ends("engine_triton_starts", "Triton"),
            _starts("gateway", "gateway"),
            _starts("engine", "controller"),
        ),
    ),
)

_CALLERS = (
    Panel(
        "Requests by key",
        Kind.BARS,
        "short",
        12,
        "The ten keys that asked most in the time that is shown, refused requests included.",
        (
            Query(
                f"topk(10, sum by (key) (increase({P}gateway_requests_total[$__range])))",
                "{{key}}",
            ),
        ),
        Needs.KEYS,
    ),
    Panel(
        "Requests by endpoint",
        Kind.BARS,
        "short",
        12,
        "The ten that were asked most in the time that is shown.",
        (
            Query(
                f'topk(10, sum by (endpoint) (increase({REQUESTS}_count{{endpoint!=""}}'
                "[$__range])))",
                _AT,
            ),
        ),
    ),
)

SERVICE = Dashboard(
    "service",
    "Transformer serving: service",
    "Is it well, how full is it, who asks.",
    (
        Row("Objectives", (*map(_kept, OBJECTIVES), *map(_burn, OBJECTIVES))),
        Row("Requests", _REQUESTS),
        Row("Work", _WORK),
        Row("Workers", _WORKERS),
        Row("Callers", _CALLERS),
    ),
)
