"""Building an endpoint's engine object before the host does, to see whose Preprocess it has.

The host builds it within the first request for the endpoint, and again after every change of the
configuration. What is built here is exactly that and stands in the same place.

Tested by tests/gateway/test_short_way.py.
"""

from __future__ import annotations

import asyncio
from typing import Any

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


async def build(processor: Any, url: str) -> None:
    """Build the endpoint's engine object where it is missing. Raises what its code raises.

    Only Triton endpoints: ours are, and other engines would load their models.
    """
    await _enter(processor)
    try:
        _build(processor, url)
    finally:
        processor._request_processing_state.dec()


async def ask_itself(host: Any, url: str, body: Any) -> Any:
    """What the endpoint itself answers: by the three steps that process_request would take, without
    ClearML's statistics of them and without the draw of the canary route that may have its name.
    Raises what its code raises, and as the host does where the endpoint went.
    """
    processor = host.processor
    await _enter(processor)
    try:
        # A change of the configuration may have just taken it away.
        _build(processor, url)
        if not is_built(processor, url):
            raise host.EndpointNotFoundException(f"Model inference endpoint '{url}' not found")
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


def _build(processor: Any, url: str) -> None:
    endpoint = processor.get_endpoints().get(url)
    if is_built(processor, url) or endpoint is None or endpoint.engine_type != "triton":
        return
    engine = engine_class(endpoint.engine_type)
    processor._engine_processor_lookup[url] = engine(model_endpoint=endpoint, task=processor._task)


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
