"""What a call hands on to Triton beside its tensors: the trace that it is in.

Tested by tests/preprocess/test_traced_calls.py.
"""

from __future__ import annotations

from contextvars import ContextVar

# Names and values, as HTTP's headers and as gRPC's metadata.
handed_on: ContextVar[tuple[tuple[str, str], ...]] = ContextVar(
    "transformer_serving_handed_on", default=()
)
