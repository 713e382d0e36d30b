"""An endpoint of another kind: plain values, no Response."""

from typing import Any


class Preprocess:
    async def preprocess(self, body: Any, state: dict[str, Any], collect: Any = None) -> Any:
        return body

    async def process(self, body: Any, state: dict[str, Any], collect: Any = None) -> Any:
        return {"kind": type(body).__name__, "length": len(body) if body is not None else None}

    async def postprocess(self, answer: Any, state: dict[str, Any], collect: Any = None) -> Any:
        return answer
