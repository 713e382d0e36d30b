"""The serving services of the embedded control plane: what leads to what in the one that is served,
and the endpoints of others, which nobody serves.

Tested by tests/doctor/test_services.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from transformer_serving.desk.clearml_tools.api import ClearmlApi
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.local.record import StackRecord, clearml_environment

# By this system tag clearml-serving knows its services; it gives it right after the creation.
SERVING_TAG = "serving-control-plane"
# The states in which its commands take one.
_TAKEN = ("created", "in_progress")
_PAGE = 500
# As the other questions to a part: who looks is not to hang with one that does.
_TIMEOUT_S = 3.0
# The engine of what the controller has to do with.
_TRITON = "triton"
# Of a section that holds nothing.
_EMPTY = ("", "{}")


@dataclass(frozen=True)
class Arm:
    """An endpoint that a route leads to; `weight` as it was given, not of 1."""

    endpoint: str
    weight: float
    is_there: bool


@dataclass(frozen=True)
class Route:
    """A canary route; `prefix` is of the endpoints that it chooses by itself, else None.

    A route that names endpoints and a prefix, or whose weights are not as many as its endpoints or
    no numbers, has no arms: clearml-serving does not take it.
    """

    endpoint: str
    prefix: str | None
    arms: tuple[Arm, ...]

    @property
    def leads_somewhere(self) -> bool:
        """Whether those that are there have a weight; else no worker serves it."""
        return sum(arm.weight for arm in self.arms if arm.is_there) > 0

    def stored(self) -> dict[str, Any]:
        return {**asdict(self), "leads_somewhere": self.leads_somewhere}


@dataclass(frozen=True)
class Unserved:
    """Another serving service, whose endpoints answer nobody."""

    id: str
    name: str
    endpoints: tuple[str, ...]


@dataclass(frozen=True)
class Services:
    """The serving task that is served and the others, as the API has them. What clearml-serving
    could not read has nothing to tell: the controller says that it cannot.
    """

    own: Mapping[str, Any]
    others: tuple[Mapping[str, Any], ...]

    @cached_property
    def endpoints(self) -> tuple[str, ...]:
        """With their versions; also those that are updated by themselves."""
        return _names(self.own)

    @cached_property
    def without_triton(self) -> tuple[str, ...]:
        """Those of them that workers serve by themselves: their engine is another one."""
        rows = {**_section(self.own, "endpoints"), **_section(self.own, "model_monitoring_eps")}
        return tuple(n for n, row in rows.items() if row.get("engine_type") not in (None, _TRITON))

    @cached_property
    def routes(self) -> tuple[Route, ...]:
        canary = _section(self.own, "canary")
        return tuple(_routes(canary, self.endpoints)) if canary else ()

    @cached_property
    def unserved(self) -> tuple[Unserved, ...]:
        found = ((task, _names(task)) for task in self.others if task.get("status") in _TAKEN)
        return tuple(
            Unserved(str(task["id"]), str(task.get("name")), names)
            for task, names in found
            if names
        )


def read_services(record: StackRecord) -> Services | None:
    """None where the control plane does not answer, or has not the task that is served."""
    api = ClearmlApi(clearml_environment(record), _TIMEOUT_S)
    try:
        tasks: list[dict[str, Any]] = api.call(
            "tasks.get_all",
            type=["service"],
            system_tags=[SERVING_TAG],
            only_fields=["id", "name", "status", "configuration"],
            search_hidden=True,
            page=0,
            page_size=_PAGE,
        )["tasks"]
    except (Failure, LookupError):
        return None
    others = {task["id"]: task for task in tasks}
    own = others.pop(record.serving_id, None)
    return None if own is None else Services(own, tuple(others.values()))


def _names(task: Mapping[str, Any]) -> tuple[str, ...]:
    return (*_section(task, "endpoints"), *_section(task, "model_monitoring_eps"))


def _section(task: Mapping[str, Any], name: str) -> dict[str, dict[str, Any]]:
    text = str(((task.get("configuration") or {}).get(name) or {}).get("value") or "").strip()
    if text in _EMPTY:
        return {}
    # ClearML's parser takes a second to import.
    from transformer_serving.contract.worker.parsed_sections import SectionFault, parsed_section

    try:
        found = parsed_section(text)
    except SectionFault:
        return {}
    rows = found.items() if isinstance(found, dict) else ()
    return {name: row for name, row in rows if isinstance(row, dict)}


def _routes(canary: Mapping[str, Mapping[str, Any]], endpoints: Collection[str]) -> Iterator[Route]:
    """By the rules of clearml-serving (_update_canary_lookup in 1.3.5)."""
    for name, row in canary.items():
        weights = _weights(row)
        listed = row.get("load_endpoints")
        named = [str(one) for one in listed] if isinstance(listed, list) else []
        prefix = str(row.get("load_endpoint_prefix") or "") or None
        if prefix and named:
            yield Route(name, None, ())
            continue
        if prefix:
            begun = [one for one in endpoints if one.startswith(prefix)]
            named = sorted(begun, key=_by_version, reverse=True)[: len(weights)]
            weights = weights[: len(named)]
        arms = zip(named, weights, strict=True) if len(named) == len(weights) else ()
        yield Route(name, prefix, tuple(Arm(one, of, one in endpoints) for one, of in arms))


def _weights(row: Mapping[str, Any]) -> list[float]:
    try:
        return [float(weight) for weight in row.get("weights") or ()]
    except (TypeError, ValueError):
        return []


def _by_version(endpoint: str) -> str:
    name, slash, version = endpoint.rpartition("/")
    return f"{name}/{version:0>9}" if slash else endpoint
