"""An endpoint of another kind: plain values, no Response."""


class Preprocess:
    async def preprocess(self, body, state, collect=None):
        return body

    async def process(self, body, state, collect=None):
        return {"kind": type(body).__name__, "length": len(body) if body is not None else None}

    async def postprocess(self, answer, state, collect=None):
        return answer
