"""The short way: from the parsed body to the host's ModelRequestProcessor, without FastAPI.

Canary, versions, statistics and live updates are process_request's own, so they stay the host's.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Collection, Iterable, Sequence
from enum import Enum, auto
from functools import partial
from typing import Any

from fastapi.encoders import jsonable_encoder
from starlette.responses import JSONResponse, Response

from transformer_serving.contract.heads import GENERATION
from transformer_serving.contract.panics import ENDS
from transformer_serving.contract.worker.fault_lines import Faults
from transformer_serving.gateway.host.building import (
    Builder,
    is_built,
    is_ours,
    preprocess_of,
    serves_responses,
    wait_for_update,
)
from transformer_serving.gateway.host.code_files import CodeMissingError
from transformer_serving.gateway.host.errors import host_error_response, host_error_table
from transformer_serving.gateway.requested_endpoint import FIRST, RequestedEndpoint

log = logging.getLogger("transformer_serving.gateway")


class Kind(Enum):
    """Who answers a target: a Preprocess of ours, the host's app, or nobody."""

    OURS = auto()
    HOSTS = auto()
    UNKNOWN = auto()


def knows(preprocess: Any, operation: str) -> bool:
    """Whether it can be asked in that other dialect."""
    return operation in getattr(preprocess, "operations", ())


def generates(preprocess: Any) -> bool:
    """Whether it answers with text that takes as long as it is asked to be."""
    return getattr(getattr(preprocess, "endpoint", None), "task", None) == GENERATION


def turned_away(preprocess: Any, raw: bytes) -> Response | None:
    """The refusal of a crowd's request by one of ours that needs nothing else of it.

    The host would parse, count and time what is then not served.
    """
    turn_away = getattr(preprocess, "turned_away", None)
    try:
        refusal: Response | None = None if turn_away is None else turn_away(raw)
    except ENDS:
        raise
    except BaseException:
        # Whatever it is, the long way meets it too, logs it and answers it.
        return None
    return refusal


class ShortWay:
    """Asks the host's processor and sends what it returns."""

    def __init__(self, host: Any) -> None:
        self._host = host
        self._builder = Builder(host)
        self._errors = host_error_table(host)
        self._faults = Faults(log)
        self._failed: dict[str, Any] = {}
        self._names: dict[RequestedEndpoint, str] = {}

    async def kind_of(self, target: RequestedEndpoint) -> Kind:
        """Who answers this target, once the host is not just taking over another configuration.

        Raises CodeMissingError (503) where nobody does before code has come.
        """
        kind = await self._kind_now(target)
        if kind is not Kind.UNKNOWN:
            return kind
        await wait_for_update(self._host.processor)
        return await self._kind_now(target)

    async def _kind_now(self, target: RequestedEndpoint) -> Kind:
        if await self._is_ours(target):
            return Kind.OURS
        return Kind.HOSTS if self._knows(target) else Kind.UNKNOWN

    async def _is_ours(self, target: RequestedEndpoint) -> bool:
        """Whether whatever the host would draw for this target has a Preprocess of ours.

        A name of a canary route stands for all that it routes to: the draw itself happens inside
        process_request.
        """
        there = await self._made_ready(self.urls_of(target))
        return bool(there) and all(serves_responses(self._host.processor, url) for url in there)

    async def _made_ready(self, urls: Sequence[str]) -> Sequence[str]:
        """Build what is not built, and those that can be asked then; CodeMissingError for none."""
        for url in urls:
            if not is_built(self._host.processor, url):
                await self._build_once(url)
        # Of a route, what waits for its code leaves the requests of the others alone.
        there = [url for url in urls if not self._builder.waits(url)]
        if urls and not there:
            raise CodeMissingError
        return there

    async def make_ready(self, target: RequestedEndpoint) -> None:
        """Before the host's own app is asked, which would hold the request back for the change of
        its configuration that it is at, and build then without the code. Raises CodeMissingError.
        """
        if self._host.processor is not None:
            await wait_for_update(self._host.processor)
            await self._made_ready(self.urls_of(target))

    def speaks(self, target: RequestedEndpoint, operation: str) -> bool:
        """Whether all that may answer the target are built and know the operation."""
        processor = self._host.processor
        return all(knows(preprocess_of(processor, url), operation) for url in self.urls_of(target))

    def answering(self, target: RequestedEndpoint) -> Any:
        """The one Preprocess of ours that the host would draw for the target.

        None where it is not built yet, is no Preprocess of ours, or is one of several.
        """
        urls = self.urls_of(target)
        found = preprocess_of(self._host.processor, urls[0]) if len(urls) == 1 else None
        return found if is_ours(found) else None

    def urls_of(self, target: RequestedEndpoint) -> Sequence[str]:
        """What the host may draw for the target."""
        processor = self._host.processor
        if processor is None:
            return ()
        url = processor._normalize_endpoint_url(target.model, target.version)
        canary = processor._canary_route.get(url)
        urls: Sequence[str] = (url,) if canary is None else canary["endpoints"]
        return urls

    def _knows(self, target: RequestedEndpoint) -> bool:
        """Whether the host has an endpoint or a canary route of this name and version."""
        processor = self._host.processor
        if processor is None:
            return True
        url = processor._normalize_endpoint_url(target.model, target.version)
        return url in processor._canary_route or url in processor.get_endpoints()

    def meant(self, target: RequestedEndpoint) -> RequestedEndpoint:
        """The endpoint itself where clients of V2 call what has no version its first one."""
        itself = RequestedEndpoint(target.model, None)
        if target.version != FIRST or self._knows(target) or not self._knows(itself):
            return target
        return itself

    def name_of(self, target: RequestedEndpoint) -> str | None:
        """The target's own name, or its canary route's, where the host has it."""
        name = self._names.get(target)
        if name is not None:
            return name
        processor = self._host.processor
        if processor is None or not self._knows(target):
            return None
        url: str = processor._normalize_endpoint_url(target.model, target.version)
        # One that goes stays here for a while; what callers can vary without end does not come.
        if url == target.name:
            self._names[target] = url
        return url

    def forget(self, names: Collection[str]) -> None:
        """Of these, which are gone for good, figures are counted no more, nor is it known why one
        could not be built.
        """
        self._names = {target: one for target, one in self._names.items() if one not in names}
        self._failed = {url: one for url, one in self._failed.items() if url not in names}

    def names(self) -> Collection[str] | None:
        """Every name that figures may have; None while the host has not said."""
        processor = self._host.processor
        if processor is None:
            return None
        return {*processor._canary_route, *self._written(processor.get_endpoints())}

    def generating(self) -> Collection[str]:
        """Of these names those behind which text is generated: a route's, where it may be."""
        processor = self._host.processor
        if processor is None:
            return ()
        urls = {
            url for url in processor.get_endpoints() if generates(preprocess_of(processor, url))
        }
        routes = processor._canary_route.items()
        leading = {name for name, route in routes if not urls.isdisjoint(route["endpoints"])}
        return self._written(urls) | leading

    def names_of(self, target: RequestedEndpoint) -> Collection[str]:
        """The names in figures of an endpoint, or of a canary route and all that it leads to."""
        name = self.name_of(target)
        return {*(() if name is None else (name,)), *self._written(self.urls_of(target))}

    def _written(self, urls: Iterable[str]) -> set[str]:
        """The endpoints' own names, and those that their own code writes."""
        endpoints = self._host.processor.get_endpoints()
        names = set(urls)
        for endpoint in (endpoints[url] for url in urls if url in endpoints):
            if serving_url := getattr(endpoint, "serving_url", None):
                version = getattr(endpoint, "version", None)
                names.add(RequestedEndpoint(serving_url, version).name)
        return names

    async def build(self, url: str) -> Response | None:
        """Make the endpoint ready to be asked; a Response for what its code raised."""
        failure: Response | None = await self.attempt(self._builder.build(url))
        return failure

    async def fetch(self, urls: Iterable[str], patience_s: float) -> None:
        """Have the code of these endpoints fetched where it is missing, and wait a while for it."""
        await self._builder.fetch(urls, patience_s)

    def is_due(self, url: str) -> bool:
        """Whether code has come that the endpoint waited for."""
        return self._builder.is_due(url)

    async def _build_once(self, url: str) -> None:
        """Build, unless this very endpoint failed before: then it is the host's to answer."""
        endpoint = self._host.processor.get_endpoints().get(url)
        if endpoint is not None and self._failed.get(url) is not endpoint:
            if await self.build(url) is None or self._builder.waits(url):
                self._failed.pop(url, None)
            else:
                self._failed[url] = endpoint

    async def answer(self, target: RequestedEndpoint, body: Any) -> Response:
        """What the endpoint answers; an exception becomes the host's status with our body."""
        return await self._response(self._processed(target, body))

    async def _processed(self, target: RequestedEndpoint, body: Any) -> Any:
        processor = self._host.processor
        ask = partial(processor.process_request, target.model, target.version, body)
        try:
            return await ask()
        except CodeMissingError:
            # Held back by the host for a change, which left nothing built; no code has run yet.
            urls = [url for url in self.urls_of(target) if not is_built(processor, url)]
            await self._made_ready(urls)
            return await ask()

    async def own_answer(self, url: str, body: Any) -> Response:
        """The same of the endpoint itself, whatever a canary route of its name leads to; counted
        nowhere."""
        return await self._response(self._builder.ask_itself(url, body))

    async def _response(self, work: Awaitable[Any]) -> Response:
        outcome = await self.attempt(work)
        if isinstance(outcome, Response):
            return outcome
        # The endpoint was replaced by one of another kind a moment ago.
        return JSONResponse(jsonable_encoder(outcome))

    async def attempt(self, work: Awaitable[Any]) -> Any:
        """The outcome of work that runs an endpoint's code, or a Response for what it raised."""
        try:
            return await work
        except ENDS:
            raise
        except BaseException as error:
            # Any endpoint's code runs in there: whatever it raises is logged and answered.
            return host_error_response(self._host, self._errors, self._faults, error)
