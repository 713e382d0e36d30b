"""The spans of a request that is traced: itself and its stages, written when their times are known.

The times are measured for every request; of one that is not traced nothing of this runs.

Tested by tests/preprocess/test_traced_calls.py and tests/gateway/test_traces.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from transformer_serving.contract.worker.trace_context import new_span_id
from transformer_serving.contract.worker.tracing import Attributes, Trace

_INFER = "infer"
# A trace and a span of it.
Place = tuple[str, str]


class PassageTrace:
    """One request's. `infer` is the place of its stage of that name; `calls` are those of the
    engine that it shares with the request of another trace, whose they are.
    """

    __slots__ = ("calls", "infer", "trace")

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.infer: Place = trace.trace_id, new_span_id()
        self.calls: list[Place] = []

    def ended(
        self, name: str, kind: str, arrived: float, stages: Mapping[str, float],
        attributes: Attributes, *, failed: bool,
    ) -> None:  # fmt: skip
        """`stages` in seconds; the last one is where it ended."""
        at = arrived
        for stage, seconds in stages.items():
            is_infer = stage == _INFER
            self.trace.below(
                stage, "internal", at, at + seconds, {},
                span_id=self.infer[1] if is_infer else None,
                links=tuple(self.calls) if is_infer else (),
            )  # fmt: skip
            at += seconds
        self.trace.ended(name, kind, arrived, at, attributes, failed=failed)
