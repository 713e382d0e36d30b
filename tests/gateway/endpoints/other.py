"""An endpoint of another kind: plain values, no Response; `raise` a status of gRPC by its name."""

from typing import Any

from grpc import StatusCode
from grpc.aio import AioRpcError, Metadata


class Preprocess:
    async def preprocess(self, body: Any, state: dict[str, Any], collect: Any = None) -> Any:
        return body

    async def process(self, body: Any, state: dict[str, Any], collect: Any = None) -> Any:
        if isinstance(body, dict) and "raise" in body:
            # As clearml-serving's own Triton engine lets it through.
            raise AioRpcError(StatusCode[body["raise"]], Metadata(), Metadata(), "its own words")
        return {"kind": type(body).__name__, "length": len(body) if body is not None else None}

    async def postprocess(self, answer: Any, state: dict[str, Any], collect: Any = None) -> Any:
        return answer
