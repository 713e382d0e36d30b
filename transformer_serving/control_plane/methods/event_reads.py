"""events.* that give back what tasks reported: as lists, as curves, as last values.

Tested by tests/control_plane/test_events.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import cast

from transformer_serving.control_plane.call import Call, Handler
from transformer_serving.control_plane.errors import ApiError, ApiFailure
from transformer_serving.control_plane.store import Document, Kind, Transaction, parsed

_SCALAR = "training_stats_scalar"
_MAX_BATCH = 10_000
_DEFAULT_BATCH = 500
_DEFAULT_SAMPLES = 6000
# Single values are scalars that belong to no iteration; the SDK marks them with this one.
_NO_ITERATION = -(2**31)
_AXES = frozenset({"iter", "timestamp", "iso_time"})


def get_task_events(call: Call) -> Document:
    kind = call.optional_text("event_type")
    newest_first = call.optional_text("order", "asc") == "desc"
    rows = _numbers(call, call.text("task"), kind, newest_first)
    size = {"batch_size": _batch_size(call), "scroll_id": call.data.get("scroll_id")}
    part, scroll = call.services.scrolls.advance(rows, size, "batch_size")
    return {
        "events": _events(call, part),
        "returned": len(part),
        "total": len(rows),
        "scroll_id": scroll,
    }


def get_task_log(call: Call) -> Document:
    """Log lines; from the tail unless a start or a direction says otherwise."""
    task, size = call.text("task"), _batch_size(call)
    newest_first = call.optional_text("order", "desc") == "desc"
    earlier = call.flag("navigate_earlier", default=True)
    start = call.data.get("from_timestamp")
    with call.store.reading() as transaction:
        _require_owner(transaction, task)
        condition, values = "owner = ? AND type = 'log'", [cast(object, task)]
        if isinstance(start, (int, float)):
            condition += f" AND timestamp {'<' if earlier else '>'} ?"
            values.append(start)
        direction = "DESC" if earlier else "ASC"
        rows = transaction.rows(
            f"SELECT doc FROM event WHERE {condition} "
            f"ORDER BY timestamp {direction}, number {direction} LIMIT ?",
            [*values, size],
        )
        total = transaction.rows(
            "SELECT count(*) FROM event WHERE owner = ? AND type = 'log'", (task,)
        )[0][0]
    lines = [parsed(row[0]) for row in (rows if earlier == newest_first else reversed(rows))]
    return {"events": lines, "returned": len(lines), "total": total}


def get_task_plots(call: Call) -> Document:
    last = max(1, call.number("iters", 1))
    rows = _last_iterations(call, [call.text("task")], "plot", last)
    plots = [parsed(row) for row in rows]
    return {"plots": plots, "returned": len(plots), "total": len(plots), "scroll_id": None}


def debug_images(call: Call) -> Document:
    """Reported images by task and iteration, newest first; everything in the first answer."""
    wanted = {str(item.get("task")): item for item in call.objects("metrics")}
    last = max(1, call.number("iters", 1))
    metrics: list[Document] = []
    for task, selection in wanted.items():
        rows = [] if call.data.get("scroll_id") else _image_rows(call, task, selection, last)
        iterations: dict[object, list[Document]] = {}
        for event in rows:
            iterations.setdefault(event["iter"], []).append(event)
        parts = [{"iter": number, "events": events} for number, events in iterations.items()]
        metrics.append({"task": task, "iterations": parts})
    return {"metrics": metrics, "scroll_id": "end"}


def scalar_metrics_iter_histogram(call: Call) -> Document:
    axis = call.optional_text("key", "iter")
    if axis not in _AXES:
        raise ApiError(ApiFailure.FIELD_VALUE, f"key must be one of {', '.join(sorted(_AXES))}")
    samples = max(1, min(call.number("samples", _DEFAULT_SAMPLES), _DEFAULT_SAMPLES))
    curves: dict[str, dict[str, list[tuple[object, float]]]] = {}
    for event in _scalars(call, call.text("task")):
        if event["iter"] == _NO_ITERATION:
            continue
        points = curves.setdefault(str(event["metric"]), {}).setdefault(str(event["variant"]), [])
        points.append((_x(event, axis), cast(float, event["value"])))
    return {
        metric: {name: _curve(name, points, samples) for name, points in variants.items()}
        for metric, variants in curves.items()
    }


def get_task_single_value_metrics(call: Call) -> Document:
    tasks: list[Document] = []
    for task in call.texts("tasks"):
        values = [
            {name: event.get(name) for name in ("metric", "variant", "value", "timestamp")}
            for event in _scalars(call, task)
            if event["iter"] == _NO_ITERATION
        ]
        if values:
            tasks.append({"task": task, "values": values})
    return {"tasks": tasks}


def _scalars(call: Call, task: str) -> list[Document]:
    """A task's scalars with a value, in the order of their iterations."""
    with call.store.reading() as transaction:
        _require_owner(transaction, task)
        rows = transaction.rows(
            "SELECT doc FROM event WHERE owner = ? AND type = ? ORDER BY iter, number",
            (task, _SCALAR),
        )
    events = [parsed(row[0]) for row in rows]
    return [event for event in events if isinstance(event.get("value"), (int, float))]


def _curve(name: str, points: list[tuple[object, float]], samples: int) -> Document:
    """At most `samples` points: of each equal run of neighbours the first x and the mean y."""
    width = -(-len(points) // samples)
    runs = [points[at : at + width] for at in range(0, len(points), width)]
    return {
        "name": name,
        "x": [run[0][0] for run in runs],
        "y": [sum(value for _, value in run) / len(run) for run in runs],
    }


def _x(event: Mapping[str, object], axis: str) -> object:
    if axis != "iso_time":
        return event[axis]
    moment = datetime.fromtimestamp(cast(int, event["timestamp"]) / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _image_rows(
    call: Call, task: str, selection: Mapping[str, object], last: int
) -> list[Document]:
    rows = [parsed(row) for row in _last_iterations(call, [task], "training_debug_image", last)]
    metric, variants = selection.get("metric"), selection.get("variants")
    return [
        event
        for event in sorted(rows, key=lambda e: cast(int, e["iter"]), reverse=True)
        if (not metric or event["metric"] == metric)
        and (not isinstance(variants, list) or not variants or event["variant"] in variants)
    ]


def _last_iterations(call: Call, owners: Iterable[str], kind: str, last: int) -> list[object]:
    """Events of each metric's and variant's newest iterations."""
    found: list[object] = []
    with call.store.reading() as transaction:
        for owner in owners:
            _require_owner(transaction, owner)
            rows = transaction.rows(
                "SELECT doc FROM (SELECT doc, metric, variant, iter, number, dense_rank() OVER "
                "(PARTITION BY metric, variant ORDER BY iter DESC) AS age FROM event "
                "WHERE owner = ? AND type = ?) WHERE age <= ? "
                "ORDER BY metric, variant, iter, number",
                (owner, kind, last),
            )
            found.extend(row[0] for row in rows)
    return found


def _numbers(call: Call, owner: str, kind: str, newest_first: bool) -> list[int]:
    direction = "DESC" if newest_first else "ASC"
    condition, values = "owner = ?", [owner]
    if kind:
        condition, values = "owner = ? AND type = ?", [owner, kind]
    with call.store.reading() as transaction:
        _require_owner(transaction, owner)
        rows = transaction.rows(
            f"SELECT number FROM event WHERE {condition} "
            f"ORDER BY timestamp {direction}, number {direction}",
            values,
        )
    return [cast(int, row[0]) for row in rows]


def _events(call: Call, numbers: Iterable[int]) -> list[Document]:
    wanted = list(numbers)
    found: dict[object, Document] = {}
    with call.store.reading() as transaction:
        for start in range(0, len(wanted), _DEFAULT_BATCH):
            some = wanted[start : start + _DEFAULT_BATCH]
            rows = transaction.rows(
                f"SELECT number, doc FROM event WHERE number IN ({','.join('?' * len(some))})",
                some,
            )
            found |= {row[0]: parsed(row[1]) for row in rows}
    return [found[number] for number in wanted if number in found]


def _batch_size(call: Call) -> int:
    return min(max(1, call.number("batch_size", _DEFAULT_BATCH)), _MAX_BATCH)


def _require_owner(transaction: Transaction, owner: str) -> None:
    if all(transaction.get(kind, owner) is None for kind in (Kind.TASK, Kind.MODEL)):
        raise ApiError(ApiFailure.TASK_ID, f"id={owner[:64]}", {"id": owner[:64]})


METHODS: Mapping[str, Handler] = {
    "events.get_task_events": get_task_events,
    "events.get_task_log": get_task_log,
    "events.get_task_plots": get_task_plots,
    "events.debug_images": debug_images,
    "events.scalar_metrics_iter_histogram": scalar_metrics_iter_histogram,
    "events.get_task_single_value_metrics": get_task_single_value_metrics,
}
