"""The memory of a worker's request bodies, and the answer to one that is too much.

Tested by tests/gateway/test_body_memory.py.
"""

from __future__ import annotations

from transformer_serving.contract.body_memory import BodyMemory
from transformer_serving.contract.errors import ServingError
from transformer_serving.gateway.settings import BODY_MEMORY_BYTES


def body_memory(limit: int) -> BodyMemory:
    """At most `limit` bytes; beyond it ServingError (503)."""
    return BodyMemory(limit, refusal)


def refusal(limit: int) -> ServingError:
    return ServingError(
        "overloaded",
        "the bodies of all requests together are too large at this moment; send it again, "
        f"or raise {BODY_MEMORY_BYTES.name}",
        limit=limit,
    )
