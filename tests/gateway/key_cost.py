"""What keys cost a request that is let in: `python -m tests.gateway.key_cost`.

The whole way of a request through the front door that asks for keys and through one that does not,
by turns; figures of several workers are in files, as they are behind the server. Processor time,
the median of the rounds.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.gateway.played_host import Ours, Processor, host_of

REQUESTS = 5_000
ROUNDS = 15
KEYS = 200


def doors(folder: Path) -> tuple[Any, Any, bytes]:
    """Without keys and with them, and a key."""
    from starlette.responses import Response

    from transformer_serving.contract.keys import Key, digest_of, keys_text, new_key, now
    from transformer_serving.gateway.front_door import FrontDoor
    from transformer_serving.gateway.keys import Keys
    from transformer_serving.gateway.settings import read_settings

    processor = Processor({"ours": Response(b"{}")})
    processor.built("ours", Ours())
    made = [new_key() for _ in range(KEYS)]
    rows = [
        Key(f"key-{number}", digest_of(key), now(), ("other", "ours"))
        for number, key in enumerate(made)
    ]
    path = folder / "keys.json"
    path.write_text(keys_text(rows))
    host, settings = host_of(processor), read_settings({})
    return FrontDoor(host, settings), FrontDoor(host, settings, Keys(path)), made[-1].encode()


async def microseconds(door: Any, key: bytes) -> float:
    headers = [
        (b"host", b"a"), (b"content-type", b"application/json"), (b"content-length", b"10"),
        (b"authorization", b"Bearer " + key), (b"x-request-id", b"mine"),
    ]  # fmt: skip
    statuses: set[int] = set()

    async def receive() -> Any:
        return {"type": "http.request", "body": b'{"a": "b"}', "more_body": False}

    async def send(message: Any) -> None:
        if "status" in message:
            statuses.add(message["status"])

    before = time.process_time()
    for _ in range(REQUESTS):
        scope = {"type": "http", "method": "POST", "path": "/serve/ours", "headers": headers}
        await door(scope, receive, send)
    spent = time.process_time() - before
    assert statuses == {200}
    return 1e6 * spent / REQUESTS


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        # Read when prometheus_client is imported.
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
        open_door, keyed, key = doors(Path(folder))
        asyncio.run(microseconds(keyed, key))
        rows = [
            (asyncio.run(microseconds(open_door, key)), asyncio.run(microseconds(keyed, key)))
            for _ in range(ROUNDS)
        ]
    without, with_keys = (statistics.median(column) for column in zip(*rows, strict=True))
    more = statistics.median(keyed - plain for plain, keyed in rows)
    sys.stdout.write(
        f"without keys {without:.1f} us, with {KEYS} keys {with_keys:.1f} us: {more:.1f} us more\n"
    )


if __name__ == "__main__":
    main()
