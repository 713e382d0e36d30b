"""What a row of the table of descriptions is given, and gives.

Tested by tests/gateway/test_descriptions.py.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from transformer_serving.contract.keys import Key
from transformer_serving.gateway.cards import Cards
from transformer_serving.gateway.health import Health
from transformer_serving.gateway.short_way import RequestedEndpoint


class Question(NamedTuple):
    """A GET of another protocol: `target` is None where it names no endpoint, `key` where the
    gateway has none, `host` the host's module.
    """

    target: RequestedEndpoint | None
    key: Key | None
    cards: Cards
    health: Health
    host: Any = None

    @property
    def endpoint(self) -> RequestedEndpoint:
        assert self.target is not None, "the route's path has the endpoint's name"
        return self.target


# The status and the JSON of the answer, None for no body. Raises ServingError.
Description = Callable[[Question], Awaitable[tuple[int, Any]]]
