"""Building an endpoint's engine object before the host does, to see whose Preprocess it has.

The host builds it within the first request for the endpoint, and again after every change of the
configuration. What is built here is exactly that and stands in the same place.

Tested by tests/gateway/test_short_way.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from transformer_serving.gateway.host.code_files import (
    PATIENCE_S,
    CodeMissingError,
    artifact_of,
    code_files,
    lacks_code,
)

# As the host's process_request waits, without its random part.
_UPDATE_WAIT_S = 0.5


def is_built(processor: Any, url: str) -> bool:
    return url in processor._engine_processor_lookup


def serves_responses(processor: Any, url: str) -> bool:
    """Whether the endpoint is built and its Preprocess answers with Responses, as ours do."""
    return is_ours(preprocess_of(processor, url))


def is_ours(preprocess: Any) -> bool:
    """Whether a Preprocess answers with Responses."""
    return getattr(type(preprocess), "serves_responses", False) is True


def preprocess_of(processor: Any, url: str) -> Any:
    """The endpoint's Preprocess, or None where it is not built."""
    return getattr(processor._engine_processor_lookup.get(url), "_preprocess", None)


class Builder:
    """Builds the endpoints of the host's processor and asks them.

    An endpoint whose code has not come yet is answered by the one that was built before under its
    name, where there is one: a store that does not answer takes nothing that serves.
    """

    def __init__(self, host: Any) -> None:
        self._host = host
        # Those that wait for code; some are in the host's place as they were built before.
        self._waiting: set[str] = set()
        self._before: dict[str, Any] = {}

    async def fetch(self, urls: Iterable[str], patience_s: float) -> None:
        """Have what is missing of their code fetched, of all at once, and wait for it a while."""
        known = self._host.processor.get_endpoints()
        self._waiting.intersection_update(known)
        for gone in self._before.keys() - known.keys():
            del self._before[gone]
        code_files().keep_only({one.preprocess_artifact for one in known.values()})
        missing = [(artifact, url) for url in urls if (artifact := self._missing(url)) is not None]
        await asyncio.gather(*(code_files().come(*one, patience_s) for one in missing))

    def _missing(self, url: str) -> Any:
        """The artifact of the code that the endpoint is to be built from, where it is not yet."""
        processor = self._host.processor
        endpoint = processor.get_endpoints().get(url)
        if endpoint is None or (is_built(processor, url) and url not in self._waiting):
            return None
        return artifact_of(processor._task, endpoint)

    def waits(self, url: str) -> bool:
        """Whether nobody can answer for it before its code has come."""
        processor = self._host.processor
        return (
            url in self._waiting
            and not is_built(processor, url)
            and url in processor.get_endpoints()
        )

    def is_due(self, url: str) -> bool:
        """Whether code has come that it waited for."""
        if url not in self._waiting:
            return False
        endpoint = self._host.processor.get_endpoints().get(url)
        return endpoint is not None and not lacks_code(self._host.processor._task, endpoint)

    async def build(self, url: str) -> None:
        """Build the endpoint's engine object where it is missing. Raises what its code raises, and
        CodeMissingError.

        Only Triton endpoints: ours are, and other engines would load their models.
        """
        await self._enter_with_code(url)
        try:
            self._build(url)
        finally:
            self._host.processor._request_processing_state.dec()

    async def _enter_with_code(self, url: str) -> None:
        """Be counted as a request, as `_enter` does, once the code to build from was asked for."""
        processor = self._host.processor
        while True:
            # Not counted: a change of the configuration would wait for the store.
            await self.fetch([url], PATIENCE_S)
            await _enter(processor)
            artifact = self._missing(url)
            if artifact is None or code_files().asked(artifact):
                return
            # It waited for a change, which brought another file.
            processor._request_processing_state.dec()

    async def ask_itself(self, url: str, body: Any) -> Any:
        """What the endpoint itself answers: by the three steps that process_request would take,
        without ClearML's statistics of them and without the draw of the canary route that may have
        its name. Raises what its code raises, and as the host does where the endpoint went.
        """
        processor = self._host.processor
        await self._enter_with_code(url)
        try:
            # A change of the configuration may have just taken it away.
            self._build(url)
            if not is_built(processor, url):
                raise self._host.EndpointNotFoundException(
                    f"Model inference endpoint '{url}' not found"
                )
            engine = processor._engine_processor_lookup[url]
            state: dict[str, Any] = {}
            outcome = body
            for step, is_async in (
                (engine.preprocess, engine.is_preprocess_async),
                (engine.process, engine.is_process_async),
                (engine.postprocess, engine.is_postprocess_async),
            ):
                outcome = step(outcome, state, None)
                if is_async:
                    outcome = await outcome
            return outcome
        finally:
            processor._request_processing_state.dec()

    def _build(self, url: str) -> None:
        processor = self._host.processor
        built = processor._engine_processor_lookup
        endpoint = processor.get_endpoints().get(url)
        if endpoint is None:
            return
        is_tritons = endpoint.engine_type == "triton"
        if url in built and url not in self._waiting:
            if is_tritons:
                # The host may have built it itself.
                self._before[url] = built[url]
            return
        if lacks_code(processor._task, endpoint):
            self._wait(url)
            return
        self._waiting.discard(url)
        if not is_tritons:
            return
        # Not the one before, should the new code not load.
        built.pop(url, None)
        engine = engine_class(endpoint.engine_type)
        try:
            built[url] = engine(model_endpoint=endpoint, task=processor._task)
        except CodeMissingError:
            # It came, and cannot be used yet.
            self._wait(url)
            return
        self._before[url] = built[url]

    def _wait(self, url: str) -> None:
        """Have it answered by the one before meanwhile. Raises CodeMissingError for none."""
        built = self._host.processor._engine_processor_lookup
        self._waiting.add(url)
        if url not in built:
            before = self._before.get(url)
            if before is None or _is_emptied(before):
                raise CodeMissingError
            built[url] = before


def _is_emptied(engine: Any) -> bool:
    """Whether the host took its code out, as it does with a change of the models it watches."""
    return engine._preprocess is None and bool(engine.model_endpoint.preprocess_artifact)


async def wait_for_update(processor: Any) -> None:
    """Until the host has taken over the change of its configuration that it is at."""
    await _enter(processor)
    processor._request_processing_state.dec()


async def _enter(processor: Any) -> None:
    """Be counted as a request, which a change of the configuration waits for, and wait for one."""
    while True:
        processor._request_processing_state.inc()
        if not processor._update_lock_flag:
            return
        processor._request_processing_state.dec()
        await asyncio.sleep(_UPDATE_WAIT_S)


def engine_class(engine_type: str) -> Any:
    """The host's class for an engine. Imported late: the host decides what loads with it."""
    from clearml_serving.serving.preprocess_service import BasePreprocessRequest

    return BasePreprocessRequest.get_engine_cls(engine_type)
