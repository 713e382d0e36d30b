"""The paths of other protocols than ours: which operation each of them asks for, and of whom.

Tested by tests/gateway/test_routes.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from transformer_serving.contract.errors import ServingError
from transformer_serving.contract.fields import kind_of
from transformer_serving.gateway.asgi import Scope, path_of
from transformer_serving.gateway.requested_endpoint import FIRST, RequestedEndpoint, target_of

# Characters of a path with its query that is kept.
_SHORT = 256


@dataclass(frozen=True)
class Route:
    """One method and path. GET, and with it HEAD, asks for a description of that name, POST for an
    operation of an endpoint. `{name}` and `{version}` in the path are the endpoint's; where it has
    none, the name stands in field `named_in` of the body.

    `binary` says that bytes may follow the JSON, whose length `inference-header-content-length`
    then gives, in the answer too. `summary`, `media_type`, that of its answer, and `streams`, that
    generated text comes in events where `stream` is true, are for the OpenAPI document.
    """

    method: str
    path: str
    operation: str
    named_in: str | None = None
    binary: bool = False
    summary: str = ""
    media_type: str = "application/json"
    streams: bool = False

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Of whole paths; what stands in braces is one part of them, with what may follow it."""
        escaped = re.escape(self.path).replace(r"\{", "{").replace(r"\}", "}")
        return re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", escaped))


def _tei(base: str) -> tuple[Route, ...]:
    """Those of a server of one model, below the address that stands for it."""
    plain = "text/plain"
    return (
        Route("POST", base, "tei.root"),
        Route("POST", f"{base}/", "tei.root"),
        Route("POST", f"{base}/embed", "tei.embed"),
        Route("POST", f"{base}/embed_all", "tei.embed_all"),
        Route("POST", f"{base}/embed_sparse", "tei.embed_sparse"),
        Route("POST", f"{base}/predict", "tei.predict"),
        Route("POST", f"{base}/rerank", "tei.rerank"),
        Route("POST", f"{base}/similarity", "tei.similarity"),
        Route("POST", f"{base}/tokenize", "tei.tokenize"),
        Route("POST", f"{base}/embeddings", "tei_openai.embeddings"),
        Route("POST", f"{base}/v1/embeddings", "tei_openai.embeddings"),
        Route("GET", f"{base}/info", "tei.info"),
        Route("GET", f"{base}/health", "tei.health", media_type=plain),
        Route("GET", f"{base}/ping", "tei.health", media_type=plain),
        Route("GET", base, "tei.health", media_type=plain),
        Route("GET", f"{base}/", "tei.health", media_type=plain),
        Route("GET", f"{base}/metrics", "tei.metrics", media_type=plain),
    )


def _tgi(base: str) -> tuple[Route, ...]:
    """Those of text-generation-inference's server, which has OpenAI's chat beside its own."""
    events, plain = "text/event-stream", "text/plain"
    return (
        Route("POST", base, "tgi.root", streams=True),
        Route("POST", f"{base}/", "tgi.root", streams=True),
        Route("POST", f"{base}/generate", "tgi.generate"),
        Route("POST", f"{base}/generate_stream", "tgi.generate_stream", media_type=events),
        Route("POST", f"{base}/tokenize", "tgi.tokenize"),
        Route("POST", f"{base}/v1/completions", "openai.tgi_completions", streams=True),
        Route("POST", f"{base}/v1/chat/completions", "openai.tgi_chat", streams=True),
        Route("GET", f"{base}/health", "tgi.health", media_type=plain),
        Route("GET", f"{base}/ping", "tgi.health", media_type=plain),
        Route("GET", base, "tgi.health", media_type=plain),
        Route("GET", f"{base}/", "tgi.health", media_type=plain),
        Route("GET", f"{base}/info", "tgi.info"),
        Route("GET", f"{base}/v1/models", "tgi.models"),
    )


def _hf(base: str) -> tuple[Route, ...]:
    """Those of an Inference Endpoint, below the address that its client has for a model."""
    return (
        Route("POST", base, "hf.inference", streams=True),
        Route("POST", f"{base}/", "hf.inference", streams=True),
        Route("POST", f"{base}/v1/completions", "openai.tgi_completions", streams=True),
        Route("POST", f"{base}/v1/chat/completions", "openai.tgi_chat", streams=True),
        Route("GET", f"{base}/health", "hf.health", media_type="text/plain"),
        Route("GET", f"{base}/info", "hf.info"),
    )


def _generate(base: str) -> tuple[Route, ...]:
    """Triton's extension of the protocol for text."""
    events = "text/event-stream"
    return (
        Route("POST", f"{base}/generate", "v2.generate"),
        Route("POST", f"{base}/generate_stream", "v2.generate_stream", media_type=events),
    )


ROUTES = (
    Route("GET", "/openapi.json", "ours.openapi", summary="This document"),
    Route("GET", "/page/endpoints", "ours.endpoints", summary="What the page at / shows"),
    Route("POST", "/v1/embeddings", "openai.embeddings", named_in="model"),
    Route("POST", "/v1/completions", "openai.completions", named_in="model", streams=True),
    Route("POST", "/v1/chat/completions", "openai.chat", named_in="model", streams=True),
    Route("GET", "/v1/models", "openai.models"),
    Route("GET", "/v2", "v2.server"),
    Route("GET", "/v2/health/live", "v2.live"),
    Route("GET", "/v2/health/ready", "v2.ready"),
    Route("GET", "/v2/models/{name}", "v2.model"),
    Route("GET", "/v2/models/{name}/ready", "v2.model_ready"),
    Route("GET", "/v2/models/{name}/config", "v2.config"),
    Route("POST", "/v2/models/{name}/infer", "v2.infer", binary=True),
    Route("GET", "/v2/models/{name}/versions/{version}", "v2.model"),
    Route("GET", "/v2/models/{name}/versions/{version}/ready", "v2.model_ready"),
    Route("GET", "/v2/models/{name}/versions/{version}/config", "v2.config"),
    Route("POST", "/v2/models/{name}/versions/{version}/infer", "v2.infer", binary=True),
    Route("GET", "/v1/models/{name}", "openai.model"),
    Route("GET", "/v1/models/{name}/{version}", "openai.model"),
    Route("POST", "/v1/models/{name}:predict", "v1.predict"),
    Route("POST", "/v1/models/{name}/{version}:predict", "v1.predict"),
    Route("POST", "/v1/rerank", "cohere.rerank_v1", named_in="model"),
    Route("POST", "/v2/rerank", "cohere.rerank_v2", named_in="model"),
    *_hf("/hf/{name}"),
    *_hf("/hf/{name}/{version}"),
    *_generate("/v2/models/{name}"),
    *_generate("/v2/models/{name}/versions/{version}"),
    *_tgi("/tgi/{name}"),
    *_tgi("/tgi/{name}/versions/{version}"),
    *_tei("/tei/{name}"),
    *_tei("/tei/{name}/versions/{version}"),
)  # fmt: skip


def _place(method: str, path: str) -> tuple[str, str, int]:
    """What a request is looked up by: few routes have it in common."""
    return method, path.split("/", 2)[1], path.count("/")


_AT: dict[tuple[str, str, int], list[Route]] = {}
for _route in ROUTES:
    _AT.setdefault(_place(_route.method, _route.path), []).append(_route)


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

    @property
    def may_mean_itself(self) -> bool:
        """Whether a version of it may be none: V2's, where every model has one."""
        is_v2 = self.route is not None and self.route.operation.startswith("v2.")
        return is_v2 and self.target is not None and self.target.version == FIRST

    @property
    def wants_figures(self) -> bool:
        """Whether a key of /metrics is what opens it."""
        return self.operation == "tei.metrics"


# Nothing of the host is below these; the first that fits counts.
_NEAR = tuple(
    (prefix, Call(None, Route("GET", prefix, f"{dialect}.nothing")))
    for prefix, dialect in (
        ("/v1/rerank/", "cohere"),
        ("/v2/rerank/", "cohere"),
        ("/v1/", "openai"),
        ("/v2/", "v2"),
        ("/tei/", "tei"),
        ("/tgi/", "tgi"),
        ("/hf/", "hf"),
    )
)


def call_of(scope: Scope) -> Call | None:
    """None where no endpoint is asked."""
    path = path_of(scope)
    query = scope.get("query_string") or b""
    # The same few are asked again and again; what is long is nobody's usual.
    find = _call if len(path) + len(query) <= _SHORT else _call.__wrapped__
    return find(scope["method"], path, query)


@lru_cache(maxsize=1024)
def _call(method: str, path: str, query: bytes) -> Call | None:
    target = target_of(method, path, query)
    return (_routed(method, path) or _near(path)) if target is None else Call(target, None)


def _routed(method: str, path: str) -> Call | None:
    if not path.startswith("/"):
        return None
    # HEAD is GET without the answer's body, which exchange.py leaves out.
    asked = "GET" if method == "HEAD" else method
    for route in _AT.get(_place(asked, path), ()):
        found = route.pattern.fullmatch(path)
        if found is not None:
            named = found.groupdict()
            name = named.get("name")
            target = None if name is None else RequestedEndpoint(name, named.get("version"))
            return Call(target, route)
    return None


def _near(path: str) -> Call | None:
    """Where nothing else is: the refusal, by any method, in the dialect that is spoken near it."""
    path += "/"
    return next((call for prefix, call in _NEAR if path.startswith(prefix)), None)


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
    end = int(length) if length.isdigit() and len(length) <= 18 else len(raw) + 1
    if end > len(raw):
        raise ServingError(
            "malformed_body",
            "header 'inference-header-content-length' must be the bytes of JSON in the body",
            limit=len(raw),
        )
    if end == 0 and raw:
        raise ServingError(
            "malformed_body",
            "header 'inference-header-content-length' is 0, and nothing says what the bytes are; "
            "send the JSON with the tensor's name, shape and datatype before them",
        )
    return raw[:end], raw[end:]
