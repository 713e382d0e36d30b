"""An endpoint that tells what the worker holds: for tests of what must return to its start."""

import asyncio
import gc
import os
import sys
import threading
from typing import Any


class Preprocess:
    async def preprocess(self, body: Any, state: dict[str, Any], collect: Any = None) -> Any:
        return body

    async def process(self, body: Any, state: dict[str, Any], collect: Any = None) -> Any:
        # Of what a long collection left out, too; and this one may be long itself, after which
        # gc.get_objects lists nothing of what is here.
        gc.unfreeze()
        gc.collect()
        gc.unfreeze()
        return {
            "tasks": len(asyncio.all_tasks()),
            "threads": threading.active_count(),
            "files": len(os.listdir("/proc/self/fd")),
            **counts(),
        }

    async def postprocess(self, answer: Any, state: dict[str, Any], collect: Any = None) -> Any:
        return answer


def counts() -> dict[str, int]:
    """Waiting tokens, texts and calls over every packed version of our code in the process.

    Of how many queues they are is counted too: where none is found, nothing waits.
    """
    found = dict.fromkeys(("queues", "tokens", "waiting", "slots", "calls", "server_calls"), 0)
    for name, module in list(sys.modules.items()):
        if name.startswith("transformer_serving_") and name.endswith(".preprocess.queue.coalesce"):
            for one in gc.get_objects():
                if type(one) is module.Admission:
                    found["tokens"] += one.tokens
                elif type(one) is module.Coalescer:
                    found["queues"] += 1
                    found["waiting"] += len(one._waiting)
                    found["slots"] += one._in_flight
                    found["calls"] += len(one._tasks)
            client = sys.modules[f"{name.removesuffix('.queue.coalesce')}.triton.clients"]
            for one in client._clients.values():
                found["server_calls"] += sum(m.in_flight for m in one._members.values())
    return found
