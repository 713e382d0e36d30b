"""/openapi.json: the host's document, and every path of ours that whoever asks may take.

Tested by tests/gateway/test_openapi.py.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from transformer_serving.contract.dialects import OURS, dialect_of
from transformer_serving.contract.heads import GENERATION
from transformer_serving.contract.keys import Key
from transformer_serving.gateway.keys import WITHOUT_KEY
from transformer_serving.gateway.openapi.answers import answer_schema
from transformer_serving.gateway.openapi.bodies import request_body
from transformer_serving.gateway.openapi.responses import (
    SCHEMAS,
    add_errors,
    described,
    not_ready,
    responses,
)
from transformer_serving.gateway.routes import ROUTES, Route

Card = Mapping[str, Any]
Cards = Mapping[str, Card | None]
Paths = dict[str, dict[str, Any]]

_TITLE = "transformer-serving"
_ANYTHING: dict[str, Any] = {}
_OF_THE_HOST = "clearml-serving"
_HEALTH = (
    ("/health/live", "Whether the worker runs", (200,)),
    ("/health/ready", "Whether requests should be sent to the worker", (200, 503)),
    ("/health/endpoints", "The golden request of every endpoint", (200,)),
    ("/health/endpoints/{name}", "Whether this endpoint can answer", (200, 503)),
)
_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}


def document(host: Mapping[str, Any], cards: Cards, key: Key | None) -> dict[str, Any]:
    """`cards` by the name of the endpoint, None of those that have none; `key` is the one that
    asked, None where the gateway has none. `host` is clearml-serving's own document.
    """
    is_bound = key is not None and key.endpoints is not None
    made = copy.deepcopy(dict(host))
    general = made.pop("paths", {})
    components = made.setdefault("components", {})
    components.setdefault("schemas", {}).update(SCHEMAS)
    made.setdefault("openapi", "3.1.0")
    made["info"] = {**made.get("info", {"version": "1"}), "title": _TITLE}
    if key is not None:
        components["securitySchemes"] = _SCHEMES
        made["security"] = [{name: []} for name in _SCHEMES]
    paths = {**_endpoints(cards), **_routes(cards), **_health(cards, is_bound=is_bound)}
    if key is None:
        paths["/metrics"] = {"get": _metrics()}
    made["paths"] = paths if is_bound else paths | _host_paths(general)
    return made


def _endpoints(cards: Cards) -> Paths:
    return {
        f"/serve/{quote(name)}": {"post": _of_the_host(name) if card is None else _own(name, card)}
        for name, card in cards.items()
    }


def _own(name: str, card: Card) -> dict[str, Any]:
    return {
        "operationId": f"serve {name}",
        "tags": ["endpoints"],
        "summary": f"Ask {name}",
        "description": f"{card['task']}, bundle {card['bundle_version']}",
        "requestBody": request_body(card),
        "responses": _answers(card["task"]),
    }


def _answers(task: str) -> dict[str, Any]:
    found = responses(answer_schema(task))
    if task == GENERATION:
        found["200"]["content"]["text/event-stream"] = {}
    return found


def _of_the_host(name: str) -> dict[str, Any]:
    """An endpoint that says nothing of itself."""
    found = {"200": described("the answer", _ANYTHING)}
    for status in ("404", "422", "500"):
        found[status] = described("the host's own error", _ANYTHING)
    add_errors(found)
    return {
        "operationId": f"serve {name}",
        "tags": ["endpoints"],
        "summary": f"Ask {name}, whose code is not of this kit",
        "requestBody": {"content": {"application/json": {"schema": _ANYTHING}}},
        "responses": found,
    }


def _routes(cards: Cards) -> Paths:
    """The paths of other protocols, each with the endpoints that can be asked there."""
    paths: Paths = {}
    for route in ROUTES:
        names = _names(route, cards)
        if names or (route.method == "GET" and "{" not in route.path):
            paths.setdefault(route.path, {})[route.method.lower()] = _routed(route, names)
    return paths


def _names(route: Route, cards: Cards) -> list[str]:
    with_version = "{version}" in route.path
    return [
        name
        for name, card in cards.items()
        if card is not None
        and (route.method == "GET" or route.operation in card["operations"])
        and (route.named_in is not None or ("/" in name) == with_version)
    ]


def _routed(route: Route, names: list[str]) -> dict[str, Any]:
    dialect = dialect_of(route.operation)
    made: dict[str, Any] = {
        "operationId": f"{route.operation} {route.method} {route.path}",
        "tags": ["gateway" if dialect is OURS else dialect.name],
        "summary": route.summary or route.operation.replace(".", ": "),
        "responses": responses(_ANYTHING, dialect),
    }
    if (no := not_ready(route.operation)) is not None:
        made["responses"]["503"] = no
    if route.path in WITHOUT_KEY:
        made["security"] = []
        for status in ("401", "403"):
            made["responses"].pop(status, None)
    if route.media_type != "application/json":
        made["responses"]["200"]["content"] = {route.media_type: {}}
    values = zip(*(name.split("/") for name in names), strict=True) if "{" in route.path else ()
    found = [
        _in_path(named, sorted(set(one)))
        for named, one in zip(("name", "version"), values, strict=False)
    ]
    if found:
        made["parameters"] = found
    if route.method == "POST":
        schema: dict[str, Any] = {"type": "object"}
        if route.named_in is not None:
            schema["required"] = [route.named_in]
            schema["properties"] = {route.named_in: {"type": "string", "enum": names}}
        made["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schema}},
        }
    return made


def _in_path(name: str, values: list[str]) -> dict[str, Any]:
    return {
        "name": name, "in": "path", "required": True, "schema": {"type": "string", "enum": values}
    }  # fmt: skip


def _health(cards: Cards, *, is_bound: bool) -> Paths:
    paths: Paths = {}
    for path, summary, statuses in _HEALTH:
        is_open = path in WITHOUT_KEY
        of_one = "{name}" in path
        if (of_one and not cards) or (is_bound and not of_one and not is_open):
            continue
        found = {str(status): described("", {"type": "object"}) for status in statuses}
        found["200"]["description"] = "yes"
        if "503" in found:
            found["503"]["description"] = "no; `reason` says why"
        operation: dict[str, Any] = {"tags": ["health"], "summary": summary, "responses": found}
        if is_open:
            operation["security"] = []
        else:
            ours = responses(_ANYTHING)
            found.update({status: ours[status] for status in ("401", "403")})
        if of_one:
            found["404"] = responses(_ANYTHING)["404"]
            operation["parameters"] = [_in_path("name", sorted(cards))]
        paths[path] = {"get": operation}
    return paths


def _metrics() -> dict[str, Any]:
    return {
        "tags": ["health"],
        "summary": "The worker's figures for Prometheus",
        "responses": {"200": {"description": "the figures", "content": {"text/plain": {}}}},
    }


def _host_paths(paths: Paths) -> Paths:
    """The host's own, which name no endpoint, with the errors of ours."""
    for path, operations in paths.items():
        for operation in operations.values():
            operation["tags"] = [_OF_THE_HOST]
            if path.startswith("/serve/"):
                add_errors(operation.setdefault("responses", {}))
    return paths
