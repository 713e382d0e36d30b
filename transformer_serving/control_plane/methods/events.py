"""events.*: taking in the logs, scalars and plots of tasks; `event_reads.py` gives them back."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import orjson

from transformer_serving.control_plane.call import Call, Handler
from transformer_serving.control_plane.errors import ApiError, ApiFailure
from transformer_serving.control_plane.methods import event_reads
from transformer_serving.control_plane.methods.task_record import advance_iteration, save, section
from transformer_serving.control_plane.schema import new_id
from transformer_serving.control_plane.store import Document, Kind, Transaction

_TYPES = frozenset(
    {"log", "plot", "training_stats_scalar", "training_stats_vector", "training_debug_image"}
)
_LOG = "log"
_SCALAR = "training_stats_scalar"
_LIMIT = 2**63 - 1
# These metrics count seconds, not iterations, and must not move the task's last iteration.
_MACHINE_METRICS = frozenset({":monitor:machine", ":monitor:gpu"})
# Series, of which each version of a bundle is one; a task's document holds the last value of each.
_LAST_VALUES = 1_000


@dataclass(frozen=True, slots=True)
class _Event:
    owner: str
    type: str
    metric: str
    variant: str
    iteration: int
    timestamp: int
    fields: Document

    @property
    def identity(self) -> str:
        """Equal for events that replace one another; every log line stands for itself."""
        if self.type == _LOG:
            return new_id()
        parts = [self.owner, self.type, self.metric, self.variant, str(self.iteration)]
        # An image's is its file: of one series and iteration there may be several.
        if self.fields.get("key"):
            parts.append(str(self.fields["key"]))
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def add_batch(call: Call) -> Document:
    return _add(call, call.batch)


def add(call: Call) -> Document:
    return _add(call, [call.data])


def _add(call: Call, sent: list[Document]) -> Document:
    if not sent:
        raise ApiError(ApiFailure.BATCH_EMPTY, "events")
    refused: Counter[str] = Counter()
    with call.store.writing() as transaction:
        events = _accepted(transaction, call, sent, refused)
        if not events:
            raise ApiError(ApiFailure.EVENTS_NOT_ADDED, "; ".join(refused), dict(refused))
        for event in events:
            _insert(transaction, event)
        for owner in dict.fromkeys(event.owner for event in events):
            _note(transaction, call, [e for e in events if e.owner == owner])
    return {"added": len(events), "errors": refused.total(), "errors_info": dict(refused)}


def _accepted(
    transaction: Transaction, call: Call, sent: list[Document], refused: Counter[str]
) -> list[_Event]:
    known: dict[str, bool] = {}
    events: list[_Event] = []
    for fields in sent:
        try:
            event = _read(fields, call.worker)
        except ApiError as error:
            refused[error.detail] += 1
            continue
        kind = Kind.MODEL if fields.get("model_event") else Kind.TASK
        if event.owner not in known:
            known[event.owner] = transaction.get(kind, event.owner) is not None
        if known[event.owner]:
            events.append(event)
        else:
            refused[f"Invalid {kind.table} id"] += 1
    return events


def _read(sent: Document, worker: str) -> _Event:
    fields = {name: value for name, value in sent.items() if name not in ("method", "allow_locked")}
    owner = fields.get("task")
    if fields.get("model_event"):
        # ClearML's SDK writes the model's id into the field of the task.
        owner = fields.get("model") or owner
    if not isinstance(owner, str):
        raise ApiError(ApiFailure.MISSING_FIELDS, "Event must have a 'task' field")
    if not isinstance(fields.get("type"), str):
        raise ApiError(ApiFailure.MISSING_FIELDS, "Event must have a 'type' field")
    fields["type"] = kind = str(fields["type"]).replace(" ", "_")
    if kind not in _TYPES:
        raise ApiError(ApiFailure.FIELD_VALUE, "Invalid event type")
    fields["task"] = owner
    fields["iter"] = iteration = _whole(fields.get("iter"), 0, "iter")
    sent_at = fields.pop("ts", fields.get("timestamp"))
    fields["timestamp"] = moment = _whole(sent_at, _now(), "timestamp")
    if "values" in fields:
        fields["value"] = fields.pop("values")
    for name in ("metric", "variant"):
        fields[name] = str(fields.get(name) or "")
    fields.setdefault("worker", worker)
    return _Event(
        owner, kind, str(fields["metric"]), str(fields["variant"]), iteration, moment, fields
    )


def _now() -> int:
    """In milliseconds since the epoch."""
    return int(time.time() * 1000)


def _whole(value: object, default: int, name: str) -> int:
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float)) or abs(value) > _LIMIT:
        raise ApiError(ApiFailure.FIELD_VALUE, f"{name} must be a number within 64 bits")
    return int(value)


def _insert(transaction: Transaction, event: _Event) -> None:
    # One that is replaced gets a new number, by which retention tells what came first.
    transaction.execute(
        "INSERT OR REPLACE INTO event (owner, type, identity, metric, variant, iter, timestamp, "
        "doc) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            event.owner,
            event.type,
            event.identity,
            event.metric,
            event.variant,
            event.iteration,
            event.timestamp,
            orjson.dumps(event.fields).decode(),
        ),
    )


def _note(transaction: Transaction, call: Call, events: list[_Event]) -> None:
    """Keeps the task's last iteration and last metrics in step with its newest events, or a model's
    last iteration."""
    task = transaction.get(Kind.TASK, events[0].owner)
    if task is None:
        _note_in_model(transaction, events)
        return
    moment = _now()
    # What comes in one batch has no other order; what comes later is later.
    for event in sorted(events, key=lambda one: (one.iteration, one.timestamp)):
        if event.metric not in _MACHINE_METRICS:
            advance_iteration(task, event.iteration)
        if event.type == _SCALAR:
            _note_scalar(task, event, moment)
    _forget_oldest(task, moment)
    save(transaction, task, worker=call.worker)


def _note_in_model(transaction: Transaction, events: list[_Event]) -> None:
    """Its last iteration alone: what serves a model reads off its times whether it is another."""
    model = transaction.get(Kind.MODEL, events[0].owner)
    if model is None:
        return
    for event in events:
        if event.metric not in _MACHINE_METRICS:
            advance_iteration(model, event.iteration)
    transaction.put(Kind.MODEL, model)


def _note_scalar(task: Document, event: _Event, moment: int) -> None:
    value = event.fields.get("value")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return
    # Metric names may hold any character, so the schema keys them by their hash.
    variants = section(section(task, "last_metrics"), _name_hash(event.metric))
    last = section(variants, _name_hash(event.variant))
    if not last:
        last |= {"metric": event.metric, "variant": event.variant, "count": 0}
    least, most = last.get("min_value"), last.get("max_value")
    if not isinstance(least, (int, float)) or value < least:
        last |= {"min_value": value, "min_value_iteration": event.iteration}
    if not isinstance(most, (int, float)) or value > most:
        last |= {"max_value": value, "max_value_iteration": event.iteration}
    last["count"] = cast(int, last["count"]) + 1
    # No later than now: a caller's clock may be ahead.
    timestamp = min(event.timestamp, moment)
    last |= {"value": value, "iter": event.iteration, "timestamp": timestamp}


def _forget_oldest(task: Document, moment: int) -> None:
    """Leaves the last values of those series that were heard last.

    What was heard after `moment`, which is now, was heard before this clock was set back, so before
    all others.
    """
    metrics = section(task, "last_metrics")
    found = [
        (heard <= moment, heard, metric, variant)
        for metric, variants in metrics.items()
        for variant, last in cast(dict[str, Document], variants).items()
        for heard in (cast(int, last.get("timestamp", 0)),)
    ]
    found.sort(reverse=True)
    for *_, metric, variant in found[_LAST_VALUES:]:
        variants = section(metrics, metric)
        del variants[variant]
        if not variants:
            del metrics[metric]


def _name_hash(name: str) -> str:
    return hashlib.md5(name.encode(), usedforsecurity=False).hexdigest()


METHODS: Mapping[str, Handler] = {
    "events.add": add,
    "events.add_batch": add_batch,
    **event_reads.METHODS,
}
