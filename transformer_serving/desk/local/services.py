"""The serving services of the embedded control plane: what leads to what in the one that is served,
and the endpoints of others, which nobody serves.

Tested by tests/doctor/test_services.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from transformer_serving.desk.clearml_tools.api import ClearmlApi
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.local.record import StackRecord, clearml_environment

# clearml-serving's own marks of a serving service, and the states in which its commands take one.
_TAG, _TAKEN = "serving-control-plane", ("created", "in_progress")
_PAGE = 500
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

    A route whose weights are not as many as its endpoints has no arms: clearml-serving passes it
    over.
    """

    endpoint: str
    prefix: str | None
    arms: tuple[Arm, ...]


@dataclass(frozen=True)
class Unserved:
    """Another serving service, whose endpoints answer nobody."""

    id: str
    name: str
    endpoints: tuple[str, ...]


@dataclass(frozen=True)
class Services:
    """The serving task that is served, empty where there is none, and the others, as the API has
    them. What cannot be parsed has nothing to tell: the controller says that it cannot.
    """

    own: Mapping[str, Any]
    others: tuple[Mapping[str, Any], ...]

    @cached_property
    def endpoints(self) -> tuple[str, ...]:
        """With their versions; also those that are updated by themselves."""
        return _names(self.own)

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
    """None where the control plane does not answer."""
    api = ClearmlApi(clearml_environment(record))
    try:
        tasks: list[dict[str, Any]] = api.call(
            "tasks.get_all",
            type=["service"],
            system_tags=[_TAG],
            only_fields=["id", "name", "status", "configuration"],
            search_hidden=True,
            page=0,
            page_size=_PAGE,
        )["tasks"]
    except (Failure, LookupError):
        return None
    own = next((task for task in tasks if task["id"] == record.serving_id), {})
    return Services(own, tuple(task for task in tasks if task is not own))


def _names(task: Mapping[str, Any]) -> tuple[str, ...]:
    return (*_section(task, "endpoints"), *_section(task, "model_monitoring_eps"))


def _section(task: Mapping[str, Any], name: str) -> dict[str, Any]:
    text = str(((task.get("configuration") or {}).get(name) or {}).get("value") or "").strip()
    if text in _EMPTY:
        return {}
    # ClearML's parser takes a second to import.
    from transformer_serving.contract.worker.parsed_sections import SectionFault, parsed_section

    try:
        return dict(parsed_section(text))
    except SectionFault:
        return {}


def _routes(canary: Mapping[str, Any], endpoints: Collection[str]) -> Iterator[Route]:
    """By the rules of clearml-serving (_update_canary_lookup in 1.3.5)."""
    for name, row in canary.items():
        weights = [float(weight) for weight in row.get("weights") or ()]
        named = [str(one) for one in row.get("load_endpoints") or ()]
        prefix = row.get("load_endpoint_prefix") or None
        if prefix:
            begun = [one for one in endpoints if one.startswith(prefix)]
            named = sorted(begun, key=_by_version, reverse=True)[: len(weights)]
            weights = weights[: len(named)]
        arms = zip(named, weights, strict=True) if len(named) == len(weights) else ()
        yield Route(name, prefix, tuple(Arm(one, of, one in endpoints) for one, of in arms))


def _by_version(endpoint: str) -> str:
    name, slash, version = endpoint.rpartition("/")
    return f"{name}/{version:0>9}" if slash else endpoint
