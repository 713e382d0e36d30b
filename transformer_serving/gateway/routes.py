"""The paths of other protocols than ours: which operation each of them asks for, and of whom.

Tested by tests/gateway/test_routes.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from transformer_serving.contract.errors import ServingError
from transformer_serving.contract.fields import kind_of
from transformer_serving.gateway.asgi import Scope
from transformer_serving.gateway.short_way import RequestedEndpoint, target_of

_NAME, _VERSION = "{name}", "{version}"


@dataclass(frozen=True)
class Route:
    """One method and path. GET asks for a description of that name, POST for an operation of an
    endpoint. `{name}` and `{version}` in the path are the endpoint's; where it has none, the name
    stands in field `named_in` of the body.

    `binary` says that bytes may follow the JSON, whose length `inference-header-content-length`
    then gives. `summary` and `media_type`, that of its answer, are for the OpenAPI document.
    """

    method: str
    path: str
    operation: str
    named_in: str | None = None
    binary: bool = False
    summary: str = ""
    media_type: str = "application/json"

    @cached_property
    def parts(self) -> list[str]:
        return self.path.split("/")

    def match(self, parts: list[str]) -> dict[str, str] | None:
        """The values of what stands in braces, of a path of as many parts; None of another."""
        found: dict[str, str] = {}
        for wanted, part in zip(self.parts, parts, strict=True):
            if not wanted.startswith("{"):
                if wanted != part:
                    return None
                continue
            name, _, rest = wanted.partition("}")
            value = part.removesuffix(rest)
            if not value or (rest and value == part):
                return None
            found[name + "}"] = value
        return found


ROUTES = (
    Route("GET", "/openapi.json", "ours.openapi", summary="This document"),
    Route("GET", "/page/endpoints", "ours.endpoints", summary="What the page at / shows"),
    Route("POST", "/v1/embeddings", "openai.embeddings", named_in="model"),
    Route("GET", "/v1/models", "openai.models"),
    Route("GET", "/v2", "v2.server"),
    Route("GET", "/v2/health/live", "v2.live"),
    Route("GET", "/v2/health/ready", "v2.ready"),
    Route("GET", "/v2/models/{name}", "v2.model"),
    Route("GET", "/v2/models/{name}/ready", "v2.model_ready"),
    Route("POST", "/v2/models/{name}/infer", "v2.infer", binary=True),
    Route("GET", "/v2/models/{name}/versions/{version}", "v2.model"),
    Route("GET", "/v2/models/{name}/versions/{version}/ready", "v2.model_ready"),
    Route("POST", "/v2/models/{name}/versions/{version}/infer", "v2.infer", binary=True),
    Route("GET", "/v1/models/{name}", "openai.model"),
    Route("GET", "/v1/models/{name}/{version}", "openai.model"),
    Route("POST", "/v1/models/{name}:predict", "v1.predict"),
    Route("POST", "/v1/models/{name}/{version}:predict", "v1.predict"),
    Route("POST", "/v1/rerank", "cohere.rerank_v1", named_in="model"),
    Route("POST", "/v2/rerank", "cohere.rerank_v2", named_in="model"),
    Route("POST", "/hf/{name}", "hf.inference"),
    Route("POST", "/hf/{name}/{version}", "hf.inference"),
    Route("POST", "/tei/{name}", "tei.root"),
    Route("POST", "/tei/{name}/", "tei.root"),
    Route("POST", "/tei/{name}/embed", "tei.embed"),
    Route("POST", "/tei/{name}/embed_all", "tei.embed_all"),
    Route("POST", "/tei/{name}/embed_sparse", "tei.embed_sparse"),
    Route("POST", "/tei/{name}/predict", "tei.predict"),
    Route("POST", "/tei/{name}/rerank", "tei.rerank"),
    Route("POST", "/tei/{name}/similarity", "tei.similarity"),
    Route("POST", "/tei/{name}/tokenize", "tei.tokenize"),
    Route("POST", "/tei/{name}/embeddings", "tei_openai.embeddings"),
    Route("POST", "/tei/{name}/v1/embeddings", "tei_openai.embeddings"),
    Route("GET", "/tei/{name}/info", "tei.info"),
    Route("GET", "/tei/{name}/health", "tei.health", media_type="text/plain"),
    Route("GET", "/tei/{name}/ping", "tei.health", media_type="text/plain"),
    Route("GET", "/tei/{name}", "tei.health", media_type="text/plain"),
    Route("GET", "/tei/{name}/metrics", "tei.metrics", media_type="text/plain"),
)  # fmt: skip


def _place(method: str, parts: list[str]) -> tuple[str, str, int]:
    """What a request is looked up by: few routes have it in common."""
    return method, parts[1], len(parts)


_AT: dict[tuple[str, str, int], list[Route]] = {}
for _route in ROUTES:
    _AT.setdefault(_place(_route.method, _route.parts), []).append(_route)


class Call(NamedTuple):
    """What a request asks for. `route` None: an answer in our own form, at /serve/NAME.

    `target` is None where the body names the endpoint.
    """

    target: RequestedEndpoint | None
    route: Route | None

    @property
    def operation(self) -> str | None:
        return None if self.route is None else self.route.operation

    @property
    def is_question(self) -> bool:
        """Whether it is about endpoints rather than for one of them."""
        return self.route is not None and self.route.method == "GET"


def call_of(scope: Scope) -> Call | None:
    """None where no endpoint is asked."""
    target = target_of(scope)
    return _routed(scope) if target is None else Call(target, None)


def _routed(scope: Scope) -> Call | None:
    path: str = scope["path"]
    if root := scope.get("root_path"):
        path = path.removeprefix(root)
    parts = path.split("/")
    if len(parts) < 2:
        return None
    for route in _AT.get(_place(scope["method"], parts), ()):
        found = route.match(parts)
        if found is not None:
            name = found.get(_NAME)
            target = None if name is None else RequestedEndpoint(name, found.get(_VERSION))
            return Call(target, route)
    return None


def named_in(body: Mapping[str, Any], route: Route) -> RequestedEndpoint:
    """The endpoint that a body names, with its version after a slash. Raises ServingError (400)."""
    field = route.named_in or ""
    name = body.get(field)
    if not isinstance(name, str) or not name:
        raise ServingError(
            "invalid_field", f"field '{field}' must be the name of an endpoint", field=field,
            got=kind_of(name),
        )  # fmt: skip
    return RequestedEndpoint.of(name)


def json_and_binary(
    raw: bytes, route: Route, headers: Mapping[bytes, bytes]
) -> tuple[bytes, bytes]:
    """The JSON of a body and the bytes after it. Raises ServingError (400)."""
    length = headers.get(b"inference-header-content-length") if route.binary else None
    if length is None:
        return raw, b""
    if not length.isdigit() or len(length) > 18 or int(length) > len(raw):
        raise ServingError(
            "malformed_body",
            "header 'inference-header-content-length' must be the bytes of JSON in the body",
            limit=len(raw),
        )
    return raw[: int(length)], raw[int(length) :]
