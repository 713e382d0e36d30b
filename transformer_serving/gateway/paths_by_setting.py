"""Paths of recipes that serve one model, each of the endpoint that a setting names.

Tested by tests/gateway/test_front_door.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

from transformer_serving.contract.errors import UNKNOWN_ENDPOINT, ServingError
from transformer_serving.gateway.asgi import Scope, path_of
from transformer_serving.gateway.descriptions.description import nothing_there
from transformer_serving.gateway.requested_endpoint import RequestedEndpoint
from transformer_serving.gateway.routes import Call
from transformer_serving.gateway.settings import (
    GENERATE,
    GENERATE_ENDPOINT,
    ROOT,
    ROOT_ENDPOINT,
    GatewaySettings,
)

# As they are asked, and as figures and the document have them: FastAPI's take a slash more, too.
_ASKED = {GENERATE: GENERATE, f"{GENERATE}/": GENERATE, ROOT: ROOT}

_SETTINGS = {GENERATE: GENERATE_ENDPOINT, ROOT: ROOT_ENDPOINT}


def named_path(path: str) -> str | None:
    """The one of them that `path` is; None of all others."""
    return _ASKED.get(path)


class PathsBySetting:
    """Those of them whose endpoint is named; the others are nobody's."""

    def __init__(self, settings: GatewaySettings) -> None:
        named = {GENERATE: settings.generate_endpoint, ROOT: settings.root_endpoint}
        self.endpoints: Mapping[str, RequestedEndpoint] = {
            path: RequestedEndpoint.of(name) for path, name in named.items() if name
        }
        self._calls = {path: Call(target, None) for path, target in self.endpoints.items()}

    def call_of(self, scope: Scope) -> Call | None:
        """What is asked by POST there, in our own form, as at /serve/NAME."""
        if not self._calls or scope["method"] != "POST":
            return None
        return self._calls.get(named_path(path_of(scope)) or "")


def at_its_own_path(scope: Scope, target: RequestedEndpoint) -> Scope:
    """What is asked at one of these paths as the host has it, which knows none of them; of another
    path as it is.

    A query could name a version other than the one that was looked at.
    """
    if named_path(path_of(scope)) is None:
        return scope
    path = f"{scope.get('root_path') or ''}/serve/{target.name}"
    return {**scope, "path": path, "raw_path": quote(path).encode(), "query_string": b""}


def nobody_there(scope: Scope) -> ServingError:
    """What is asked there where nobody answers; of one of these paths with the name of what opens
    it."""
    path = named_path(path_of(scope)) if scope["method"] == "POST" else None
    if path is None:
        return nothing_there()
    return ServingError(
        UNKNOWN_ENDPOINT,
        f"POST {path} asks the endpoint that {_SETTINGS[path].name} names, and it names none; set "
        "it where the gateway is started",
    )
