"""What a request asks and of whom, once its body is here.

Tested by tests/gateway/test_front_door.py and tests/gateway/test_dialects.py.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Mapping
from typing import Any, NamedTuple

from starlette.responses import Response

from transformer_serving.contract.dialects import PLAINER
from transformer_serving.contract.errors import ServingError, unknown_endpoint
from transformer_serving.contract.keys import Key
from transformer_serving.contract.worker.request_context import (
    UntypedBody,
    current_arrival,
    current_operation,
)
from transformer_serving.gateway.body.json_body import Parser, may_be_json, says_json
from transformer_serving.gateway.keys import check_may_ask
from transformer_serving.gateway.requested_endpoint import RequestedEndpoint
from transformer_serving.gateway.routes import Call, Route, json_and_binary, named_in
from transformer_serving.gateway.short_way import Kind, ShortWay, knows, turned_away


class Asked(NamedTuple):
    """`body` is what the endpoint takes: an object, or bytes; `kind` says who answers.

    `refusal` is the answer of an endpoint that will not look into the body now.
    """

    kind: Kind
    target: RequestedEndpoint
    body: Any
    refusal: Response | None = None


class Reader:
    """Reads what came; at most one large body at a time."""

    def __init__(self, short_way: ShortWay, parser: Parser) -> None:
        self._short_way = short_way
        self._parser = parser

    def read(
        self, call: Call, raw: bytes, headers: Mapping[bytes, bytes], key: Key | None
    ) -> Awaitable[Asked]:
        """Awaited it raises ServingError (400, 403, 404, 413, 422)."""
        current_arrival.set(time.monotonic())
        if call.route is not None:
            return self._routed(call, call.route, raw, headers, key)
        assert call.target is not None
        return self._ours(call.target, raw, headers)

    async def _ours(
        self, target: RequestedEndpoint, raw: bytes, headers: Mapping[bytes, bytes]
    ) -> Asked:
        ours = self._short_way.answering(target)
        kind = await self._short_way.kind_of(target) if ours is None else Kind.OURS
        refusal = None if ours is None else turned_away(ours, raw)
        if refusal is not None:
            return Asked(kind, target, None, refusal)
        content_type = headers.get(b"content-type")
        is_json = says_json(content_type)
        body = await self._parser.parse(raw, is_json=is_json, ours=kind is Kind.OURS)
        if kind is Kind.HOSTS:
            await self._short_way.make_ready(target)
        if kind is Kind.OURS and not is_json and may_be_json(content_type):
            body = UntypedBody(raw)
        return Asked(kind, target, body)

    async def _routed(
        self, call: Call, route: Route, raw: bytes, headers: Mapping[bytes, bytes], key: Key | None
    ) -> Asked:
        """In another dialect: JSON whatever its content type says, and only for one of ours."""
        text, binary = json_and_binary(raw, route, headers)
        if binary:
            current_operation.set((route.operation, binary))
        target = call.target
        ours = None if target is None else self._short_way.answering(target)
        speaks = knows(ours, route.operation)
        refusal = turned_away(ours, text) if speaks else None
        if target is not None and refusal is not None:
            return Asked(Kind.OURS, target, None, refusal)
        body = await self._parser.parse(text, is_json=True, ours=True)
        if target is None:
            target = named_in(body, route)
            if key is not None:
                check_may_ask(key, route.path, target)
        if not speaks:
            await self._check_speaks(target, route.operation)
        return Asked(Kind.OURS, target, body)

    async def _check_speaks(self, target: RequestedEndpoint, operation: str) -> None:
        """Once all that may answer is built. Raises ServingError (404, 422)."""
        if knows(self._short_way.answering(target), operation):
            return
        if await self._short_way.kind_of(target) is Kind.UNKNOWN:
            raise unknown_endpoint()
        if self._short_way.speaks(target, operation):
            return
        plainer = PLAINER.get(operation)
        if plainer is None or not self._short_way.speaks(target, plainer):
            raise ServingError(
                "impossible",
                "the endpoint answers at /serve/NAME only: its code is not of this kit, or is of "
                "an older one; convert its model again",
            )
        current_operation.set((plainer, b""))
