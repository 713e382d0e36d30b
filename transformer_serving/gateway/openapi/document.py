"""/openapi.json: the host's document, and every path of ours that whoever asks may take.

Tested by tests/gateway/test_openapi.py.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

from transformer_serving.contract.dialects import OURS, Dialect, dialect_of
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
_JSON, _EVENTS, _BYTES = "application/json", "text/event-stream", "application/octet-stream"
# What no canary route has, behind which there may be several.
_OF_ONE = ("v2.model", "v2.config", "tei.info", "tgi.info", "hf.info")
_HEALTH = (
    ("/health/live", "Whether the worker runs", (200,)),
    ("/health/ready", "Whether requests should be sent to the worker", (200, 503)),
    ("/health", "The same as /health/ready", (200, 503)),
    ("/health/endpoints", "The golden request of every endpoint", (200,)),
    ("/health/endpoints/{name}", "Whether this endpoint can answer", (200, 503)),
)
_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}


def document(
    host: Mapping[str, Any],
    cards: Cards,
    key: Key | None,
    by_setting: Mapping[str, str] = MappingProxyType({}),
    routed: Mapping[str, Card] = MappingProxyType({}),
) -> dict[str, Any]:
    """`cards` by the name of the endpoint, None of those that have none; `key` is the one that
    asked, None where the gateway has none. `host` is clearml-serving's own document, `by_setting`
    has the endpoint that POST asks at each path of a setting. `routed` has operations and task of
    what is behind the canary routes.
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
    paths = {
        **_endpoints(cards), **_by_setting(cards, by_setting),
        **_routes({**cards, **routed}, routed), **_health(cards, is_bound=is_bound),
    }  # fmt: skip
    if key is None:
        paths["/metrics"] = {"get": _metrics()}
    made["paths"] = paths if is_bound else paths | _host_paths(general)
    return made


def _endpoints(cards: Cards) -> Paths:
    return {f"/serve/{quote(name)}": {"post": _serve(name, card)} for name, card in cards.items()}


def _by_setting(cards: Cards, named: Mapping[str, str]) -> Paths:
    """The paths of the endpoints that settings name, for those who may ask these."""
    return {
        path: {"post": {**_serve(name, cards[name]), "operationId": path}}
        for path, name in named.items()
        if name in cards
    }


def _serve(name: str, card: Card | None) -> dict[str, Any]:
    return _of_the_host(name) if card is None else _own(name, card)


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
        found["200"]["content"][_EVENTS] = {}
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


def _routes(cards: Cards, canaries: Collection[str]) -> Paths:
    """The paths of other protocols, each with the endpoints and `canaries` that can be asked
    there.
    """
    paths: Paths = {}
    for route in ROUTES:
        names = _names(route, cards)
        if route.operation in _OF_ONE:
            names = [name for name in names if name not in canaries]
        if names or (route.method == "GET" and "{" not in route.path):
            streams = route.streams and GENERATION in (_task(cards[name]) for name in names)
            operation = _routed(route, names, streams=streams)
            paths.setdefault(route.path, {})[route.method.lower()] = operation
    return paths


def _names(route: Route, cards: Cards) -> list[str]:
    with_version = "{version}" in route.path
    return [
        name
        for name, card in sorted(cards.items())
        if card is not None
        and (route.method == "GET" or route.operation in card["operations"])
        and (route.named_in is not None or ("/" in name) == with_version)
    ]


def _task(card: Card | None) -> str:
    return "" if card is None else card["task"]


def _routed(route: Route, names: list[str], *, streams: bool) -> dict[str, Any]:
    dialect = dialect_of(route.operation)
    made: dict[str, Any] = {
        "operationId": f"{route.operation} {route.method} {route.path}",
        "tags": ["gateway" if dialect is OURS else dialect.name],
        "summary": route.summary or route.operation.replace(".", ": "),
        "responses": _told(route, dialect, streams=streams),
    }
    if route.path in WITHOUT_KEY:
        made["security"] = []
    values = zip(*(name.split("/") for name in names), strict=True) if "{" in route.path else ()
    found = [
        _in_path(named, sorted(set(one)))
        for named, one in zip(("name", "version"), values, strict=False)
    ]
    if found:
        made["parameters"] = found
    if route.method == "POST":
        made["requestBody"] = _taken(route, names)
    return made


def _told(route: Route, dialect: Dialect, *, streams: bool) -> dict[str, Any]:
    """The answers by their status; of what is no JSON the type alone."""
    found = responses(_ANYTHING, dialect)
    if (no := not_ready(route.operation)) is not None:
        found["503"] = no
    if route.path in WITHOUT_KEY:
        for status in ("401", "403"):
            found.pop(status, None)
    types = [route.media_type, *[_EVENTS] * streams, *[_BYTES] * route.binary]
    content = found["200"]["content"]
    found["200"]["content"] = {name: content.get(name, {}) for name in types}
    return found


def _taken(route: Route, names: list[str]) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    if route.named_in is not None:
        schema["required"] = [route.named_in]
        schema["properties"] = {route.named_in: {"type": "string", "enum": names}}
    content: dict[str, Any] = {_JSON: {"schema": schema}}
    if route.binary:
        content[_BYTES] = {"schema": {"type": "string", "format": "binary"}}
    return {"required": True, "content": content}


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
