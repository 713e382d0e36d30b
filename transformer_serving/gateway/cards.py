"""What the endpoints of this worker say of themselves (preprocess/card.py), for whoever may ask.

Tested by tests/gateway/test_cards.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from typing import Any

from transformer_serving.contract.errors import ServingError, unknown_endpoint
from transformer_serving.contract.keys import Key
from transformer_serving.gateway.host.building import preprocess_of
from transformer_serving.gateway.host.code_files import CodeMissingError
from transformer_serving.gateway.keys import endpoint_url
from transformer_serving.gateway.requested_endpoint import FIRST, RequestedEndpoint
from transformer_serving.gateway.short_way import Kind, ShortWay

Card = dict[str, Any]


class Cards:
    """Asked of the endpoints each time: they change while the worker runs."""

    def __init__(self, host: Any, short_way: ShortWay) -> None:
        self._host = host
        self._short_way = short_way

    async def of(self, target: RequestedEndpoint) -> Card:
        """Raises ServingError (404, 422, 503)."""
        kind = await self._short_way.kind_of(target)
        if kind is Kind.UNKNOWN:
            raise unknown_endpoint()
        urls = self._short_way.urls_of(target)
        if urls and list(urls) != [endpoint_url(target)]:
            raise ServingError(
                "impossible",
                "the name is a canary's and has nothing to say of itself; ask the endpoints behind "
                "it, by their own names",
            )
        card = self._card(endpoint_url(target)) if kind is Kind.OURS else None
        if card is None:
            raise ServingError(
                "impossible",
                "the endpoint says nothing of itself: its code is not of this kit; "
                "convert its model again",
            )
        return card

    async def urls_of(self, target: RequestedEndpoint) -> Sequence[str]:
        """The endpoints that the name stands for, several for a canary's. Raises ServingError."""
        # One that waits for its code is known all the same.
        with contextlib.suppress(CodeMissingError):
            if await self._short_way.kind_of(target) is Kind.UNKNOWN:
                raise unknown_endpoint()
        return self._short_way.urls_of(target)

    def versions_of(self, target: RequestedEndpoint) -> list[str]:
        """By which V2's clients may ask it: its own, or of one without any the first."""
        if target.version is not None:
            return [target.version]
        first = target._replace(version=FIRST)
        return [FIRST] if self._short_way.meant(first) == target else []

    async def figures_of(self, target: RequestedEndpoint) -> Collection[str]:
        """The names that it has in figures. Raises ServingError (404)."""
        await self.urls_of(target)
        return self._short_way.names_of(target)

    async def all(self, key: Key | None) -> dict[str, Card]:
        """By name; those of ours that the key may ask."""
        found: dict[str, Card] = {}
        for url in self._urls(key):
            if await self._is_ours(RequestedEndpoint.of(url)):
                card = self._card(url)
                if card is not None:
                    found[url] = card
        return found

    async def listed(self, key: Key | None) -> dict[str, Card | None]:
        """By name; all that the key may ask, None for those that say nothing of themselves."""
        cards = await self.all(key)
        return {url: cards.get(url) for url in self._urls(key)}

    async def routed(self, key: Key | None) -> dict[str, Card]:
        """By the name of a canary route that the key may ask: the `operations` that all behind it
        can be asked, and their `task`, empty where it is not one.

        Without those routes that lead to what says nothing of itself.
        """
        processor = self._host.processor
        names = sorted(processor._canary_route if processor is not None else ())
        found: dict[str, Card] = {}
        for name in names:
            target = RequestedEndpoint.of(name)
            if key is not None and not key.admits(name):
                continue
            if not await self._is_ours(target):
                continue
            cards = [self._card(url) for url in self._short_way.urls_of(target)]
            told = [card for card in cards if card is not None]
            if told and len(told) == len(cards):
                found[name] = _in_common(told)
        return found

    async def _is_ours(self, target: RequestedEndpoint) -> bool:
        """What waits for its code is nobody's yet."""
        try:
            return await self._short_way.kind_of(target) is Kind.OURS
        except CodeMissingError:
            return False

    def _urls(self, key: Key | None) -> list[str]:
        processor = self._host.processor
        urls = sorted(processor.get_endpoints() if processor is not None else ())
        return [url for url in urls if key is None or key.admits(url)]

    def _card(self, url: str) -> Card | None:
        """None also for a canary's name, behind which there may be several."""
        card = getattr(preprocess_of(self._host.processor, url), "card", None)
        return None if card is None else card()


def _in_common(cards: Sequence[Card]) -> Card:
    tasks = {card["task"] for card in cards}
    operations = set.intersection(*(set(card["operations"]) for card in cards))
    return {"task": tasks.pop() if len(tasks) == 1 else "", "operations": sorted(operations)}
