"""What a request in another dialect costs beside the same one at /serve/NAME, whole way through the
gateway and our code, before an engine that answers at once; a part of `benchmarks.request_cost`.

The host is left out: it does the same for both.
"""

from __future__ import annotations

import asyncio
import json
import struct
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from benchmarks.servers.texts import SEED as TEXT


class Body(NamedTuple):
    """A request: where to, what, and headers beside its length."""

    path: str
    raw: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ((b"content-type", b"application/json"),)


def _json(path: str, body: dict[str, Any]) -> Body:
    return Body(path, json.dumps(body).encode())


def _tensor(**more: Any) -> dict[str, Any]:
    return {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", **more}]}


def _binary(name: str) -> Body:
    text = TEXT.encode()
    data = struct.pack("<I", len(text)) + text
    head = json.dumps(
        {
            **_tensor(parameters={"binary_data_size": len(data)}),
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    length = (b"inference-header-content-length", str(len(head)).encode())
    return Body(_v2(name), head + data, (length,))


def _v2(name: str) -> str:
    return f"/v2/models/{name}/infer"


def _serve(name: str) -> Body:
    return _json(f"/serve/{name}", {"text": [TEXT]})


def _openai(name: str, **more: str) -> Body:
    return _json("/v1/embeddings", {"input": TEXT, "model": name, **more})


# By the demo bundle that is asked: ours first, which the others are compared with.
BODIES: dict[str, dict[str, Body]] = {
    (name := "transformer_model"): {
        "ours": _serve(name),
        "v2, JSON": _json(_v2(name), _tensor(data=[TEXT])),
        "v2, binary": _binary(name),
    },
    (name := "sentence_embeddings"): {
        "ours": _serve(name),
        "v2, binary": _binary(name),
        "openai, base64": _openai(name, encoding_format="base64"),
        "openai, float": _openai(name),
    },
}


class _Processor:
    """As much of ModelRequestProcessor as lies on a request's way."""

    def __init__(self, name: str, preprocess: Any) -> None:
        self._preprocess = preprocess
        self._canary_route: dict[str, Any] = {}
        self._engine_processor_lookup = {name: SimpleNamespace(_preprocess=preprocess)}

    def get_endpoints(self) -> dict[str, Any]:
        return dict.fromkeys(self._engine_processor_lookup)

    def _normalize_endpoint_url(self, endpoint: str, version: str | None) -> str:
        return f"{endpoint.rstrip('/')}/{version or ''}".rstrip("/")

    async def process_request(self, base_url: str, version: str | None, request_body: Any) -> Any:
        state: dict[str, Any] = {}
        request = self._preprocess.preprocess(request_body, state)
        return self._preprocess.postprocess(await self._preprocess.process(request, state), state)


def _host(name: str, preprocess: Any) -> Any:
    names = (
        "EndpointNotFoundException", "EndpointModelLoadException", "EndpointBackendEngineException",
        "ServingInitializationException", "AioRpcError",
    )  # fmt: skip
    errors = {name: type(name, (Exception,), {}) for name in names}
    return SimpleNamespace(processor=_Processor(name, preprocess), **errors)


def _front_door(bundle: Path) -> Any:
    from preprocess.engine import admission
    from preprocess.handover import Successor
    from preprocess.queue.coalesce import Coalescer
    from transformer_serving.gateway.front_door import FrontDoor
    from transformer_serving.gateway.settings import read_settings

    made = Successor(
        (bundle / "endpoint.json").read_bytes(), (bundle / "tokenizer.json").read_bytes
    )
    made.model_endpoint = SimpleNamespace(serving_url=bundle.name, version=None)
    own = made.own
    zeros = [np.zeros((1, *output.dims), np.float32) for output in own.endpoint.outputs]

    async def at_once(inputs: Any, deadline: float) -> Any:
        return zeros

    own.engine._coalescer = Coalescer(
        own.endpoint, at_once, admission(own.settings.max_waiting_tokens, own.settings.max_wait_s),
        lambda: 2, own.engine.departures.figures,
    )  # fmt: skip
    return FrontDoor(_host(bundle.name, made), read_settings({}))


async def _ask(door: Any, body: Body) -> int:
    """The answer's status."""
    statuses: list[int] = []
    bodies = [body.raw]
    scope = {
        "type": "http", "method": "POST", "path": body.path, "http_version": "1.1",
        "headers": [(b"content-length", str(len(body.raw)).encode()), *body.headers],
    }  # fmt: skip

    async def receive() -> dict[str, Any]:
        if not bodies:
            # The caller stays.
            await asyncio.Event().wait()
        return {"type": "http.request", "body": bodies.pop(), "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    await door(scope, receive, send)
    return statuses[0]


async def dialects(demo: Path, count: int) -> dict[str, float]:
    """Microseconds of processor time of one request, by bundle and dialect."""
    found: dict[str, float] = {}
    for bundle, bodies in BODIES.items():
        door = _front_door(demo / bundle)
        for body in bodies.values():
            status = await asyncio.create_task(_ask(door, body))
            assert status == 200, f"{body.path} is answered with {status}"
        seconds = dict.fromkeys(bodies, 0.0)
        for _ in range(10):
            for name in bodies:
                began = time.process_time()
                for _ in range(count // 10):
                    # Each request in a task, as the server has it.
                    await asyncio.create_task(_ask(door, bodies[name]))
                seconds[name] += time.process_time() - began
        for name, spent in seconds.items():
            found[f"{bundle}: {name}"] = spent / (count // 10 * 10) * 1e6
    return found
