"""What mirroring costs a request that is not mirrored: `python -m tests.gateway.mirror_cost`.

Microseconds in the event loop, the least of several rounds: where there is no rollout, and where
there is one whose candidate is not asked now (its share is used up, or a text waits).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from timeit import repeat
from typing import Any

from preprocess.response import Answer
from tests.gateway.test_mirror import OLD_BUNDLE, Worker
from transformer_serving.contract.naming import VERSION_HEADER
from transformer_serving.gateway.asked import Asked
from transformer_serving.gateway.requested_endpoint import RequestedEndpoint
from transformer_serving.gateway.short_way import Kind

_TIMES, _ROUNDS = 100_000, 9


def microseconds(step: Callable[[], Any]) -> float:
    return 1e6 * min(repeat(step, number=_TIMES, repeat=_ROUNDS)) / _TIMES


def main() -> None:
    worker = Worker()
    mirroring, mirrors = worker.mirroring, worker.mirroring.mirrors
    response = Answer(b"{}", 200, {VERSION_HEADER: OLD_BUNDLE})
    asked = Asked(Kind.OURS, RequestedEndpoint("texts", None), {"text": "a cup"})

    def passed() -> None:
        response.made_by = (None, (), None)
        if mirroring.mirrors:
            mirroring.offer(asked, response, 20)

    nothing = microseconds(lambda: None)
    mirroring.mirrors = {}
    sys.stdout.write(f"no rollout             {microseconds(passed) - nothing:.2f}\n")
    mirroring.mirrors = mirrors
    mirroring._resumes = float("inf")
    sys.stdout.write(f"its share is used up   {microseconds(passed) - nothing:.2f}\n")
    mirroring._resumes, worker.new.waits = 0.0, True
    sys.stdout.write(f"a text waits           {microseconds(passed) - nothing:.2f}\n")


if __name__ == "__main__":
    main()
