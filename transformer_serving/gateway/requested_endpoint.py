"""What a serving URL names: an endpoint or a canary route, as the host's own routes read it.

Tested by tests/gateway/test_short_way.py.
"""

from __future__ import annotations

from typing import NamedTuple

from starlette.datastructures import QueryParams

# What V2's clients call the version of what has none.
FIRST = "1"


class RequestedEndpoint(NamedTuple):
    """What a serving URL names, as the host's three routes read it."""

    model: str
    version: str | None

    @classmethod
    def of(cls, url: str) -> RequestedEndpoint:
        """From `name` or `name/version`, as clearml-serving names endpoints."""
        model, _, version = url.rstrip("/").partition("/")
        return cls(model, version or None)

    @property
    def name(self) -> str:
        """As figures and logs have it."""
        return f"{self.model}/{self.version}" if self.version else self.model


def target_of(method: str, path: str, query: bytes = b"") -> RequestedEndpoint | None:
    """The endpoint that `POST /serve/{model}[/{version}]` asks for; None for anything else."""
    if method != "POST":
        return None
    match path.split("/"):
        case ["", "serve", model] | ["", "serve", model, ""] if model:
            return RequestedEndpoint(model, QueryParams(query).get("version") if query else None)
        case ["", "serve", model, version] if model:
            return RequestedEndpoint(model, version)
    return None
