"""What a row of the table of descriptions is given, and gives.

Tested by tests/gateway/test_descriptions.py.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from types import MappingProxyType
from typing import Any, NamedTuple

from transformer_serving.contract.errors import UNKNOWN_ENDPOINT, ServingError
from transformer_serving.contract.keys import Key
from transformer_serving.gateway.asgi import Headers, Send, send_json
from transformer_serving.gateway.cards import Cards
from transformer_serving.gateway.figures.metrics import Metrics
from transformer_serving.gateway.health import Health
from transformer_serving.gateway.requested_endpoint import RequestedEndpoint

KIT = "transformer-serving"


class Question(NamedTuple):
    """A GET of another protocol: `target` is None where it names no endpoint, `key` where the
    gateway has none, `host` the host's module, `by_setting` the endpoints that POST asks at the
    paths of settings.
    """

    target: RequestedEndpoint | None
    key: Key | None
    cards: Cards
    health: Health
    metrics: Metrics
    host: Any = None
    by_setting: Mapping[str, RequestedEndpoint] = MappingProxyType({})

    @property
    def endpoint(self) -> RequestedEndpoint:
        assert self.target is not None, "the route's path has the endpoint's name"
        return self.target

    async def is_ready(self) -> bool:
        """Whether its last golden request was answered; of a canary's name, all it stands for.

        Raises ServingError (404).
        """
        urls = await self.cards.urls_of(self.endpoint)
        return all(self.health.of(url)[0] == 200 for url in urls)


def kit_version() -> str:
    """Not known, and empty, in an image, which has the code without its package."""
    try:
        return version(KIT)
    except PackageNotFoundError:
        return ""


class Plain(NamedTuple):
    """A body that is not JSON."""

    body: bytes
    media_type: str


# The status and the answer: JSON, Plain, or None for no body. Raises ServingError.
Description = Callable[[Question], Awaitable[tuple[int, Any]]]


def nothing_there() -> ServingError:
    return ServingError(
        UNKNOWN_ENDPOINT,
        "nothing is answered at this path by this method; /openapi.json has what is",
    )


async def nothing(question: Question) -> tuple[int, Any]:
    raise nothing_there()


async def tell(send: Send, status: int, answer: Any, headers: Headers) -> None:
    """Send what a description gave."""
    if answer is None:
        answer = Plain(b"", "text/plain")
    if not isinstance(answer, Plain):
        await send_json(send, status, answer, headers)
        return
    own = [
        (b"content-type", answer.media_type.encode()),
        (b"content-length", str(len(answer.body)).encode()),
        *headers,
    ]
    await send({"type": "http.response.start", "status": status, "headers": own})
    await send({"type": "http.response.body", "body": answer.body})
