"""Calls to the Tritons of a name, in a process whose /etc/hosts is its own.

`named_tritons.py ADDRESS TRANSPORT`: for every line that comes in, one of JSON goes out: how many
calls were answered, which addresses are known, how many are there, and the codes of refusals.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter

from preprocess.triton import client as triton_client
from preprocess.triton.client import TritonClient
from preprocess.triton.clients import TRANSPORTS
from tests.preprocess.test_triton_client import ask
from tests.triton_text import VERSION
from transformer_serving.contract.errors import ServingError

CALLERS = 4


async def main(address: str, transport: str) -> None:
    triton_client._RESOLVE_EVERY_S = 0.5
    client = TritonClient(address, TRANSPORTS[transport]())
    answered, refused = 0, Counter[str]()

    async def caller() -> None:
        nonlocal answered
        while True:
            try:
                assert await ask(client, [9, 8]) == [[25, 2]]
                answered += 1
            except ServingError as error:
                refused[error.kind.code] += 1
            await asyncio.sleep(0.005)

    async def tell() -> None:
        """One line for each that comes in."""
        while await asyncio.to_thread(sys.stdin.readline):
            seen = {
                "answered": answered, "known": sorted(client._members),
                "here": client.slots("text", VERSION, 1), "refused": dict(refused),
            }  # fmt: skip
            print(json.dumps(seen), flush=True)  # noqa: T201

    callers = [asyncio.create_task(caller()) for _ in range(CALLERS)]
    await tell()
    for one in callers:
        one.cancel()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
