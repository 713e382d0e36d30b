"""Single requests whose answers were wrong in form: unknown names, upgrades, panics."""

from __future__ import annotations

import asyncio
from collections import Counter

from tests.attack.ground import ENDPOINT, GOOD, Ground
from tests.attack.raw_heads import pipelines
from tests.attack.raw_http import SECRET, tried
from tests.attack.seen import Seen, counted
from tests.gateway.fuzzing import STATUSES, Sent, openapi_cases, send
from tests.gateway.test_limits import KEYS
from tests.gateway.text_serving import BACKTRACKING
from tests.stack.small_bundles import Parts

_SEED = 1
_AT_ONCE = 8


def unknown_endpoint(ground: Ground) -> Seen:
    reply = ground.server().post(SECRET.decode() * 10_000, GOOD)
    keys = set(reply.json)
    repeated = SECRET in reply.raw
    return Seen(
        f"{reply.status} with {len(keys)} keys in {len(reply.raw)} bytes, "
        f"the name {'' if repeated else 'not '}repeated",
        reply.status == 404 and keys == KEYS and not repeated,
    )


def java_upgrade(ground: Ground) -> Seen:
    """Three on one connection, and a plain request behind them."""
    case = next(case for case in pipelines() if "Java" in case.name)
    statuses, fault = asyncio.run(tried(ground.port, case))
    told = fault or "the connection goes on"
    return Seen(f"{counted(Counter(statuses))}; {told}", fault is None)


def panicking_tokenizer(ground: Ground) -> Seen:
    """Its pattern gives up on a row of x, and the library panics, which is no Exception."""
    ground.deployed("panicking", Parts(split=BACKTRACKING))
    reply = ground.server().post("panicking", {"text": f"{SECRET.decode()} {'x' * 30}"})
    after = ground.server().post("panicking", GOOD)
    is_ours = reply.headers.get("content-type") == "application/json" and set(reply.json) == KEYS
    holds = reply.status == 500 and is_ours and SECRET not in reply.raw and after.status == 200
    form = "our JSON" if is_ours else "another form"
    return Seen(f"{reply.status} in {form}, the next request {after.status}", holds)


def openapi(ground: Ground) -> Seen:
    """Requests that schemathesis makes from /openapi.json, half of them to the endpoint."""
    server = ground.server()
    document = server.ask("GET", "/openapi.json").json
    count = 90 if ground.short else 1_248
    requests = openapi_cases(document, _SEED, count, ENDPOINT)
    statuses = asyncio.run(_answers(ground.port, requests))
    served = document["paths"]["/serve/{model_id}"]["post"]["responses"]
    holds = set(statuses) <= STATUSES and ground.well() and "400" in served
    named = "names" if "400" in served else "lacks"
    told = f"{len(requests)} requests: {counted(statuses)}; the document {named} 400"
    return Seen(told, holds)


async def _answers(port: int, requests: list[bytes]) -> Counter[int | str]:
    turns = asyncio.Semaphore(_AT_ONCE)

    async def one(raw: bytes) -> int | str:
        async with turns:
            return await send(port, Sent(raw))

    return Counter(await asyncio.gather(*map(one, requests)))
