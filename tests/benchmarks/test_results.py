"""What a run stores: nothing of the times of a round that was refused a good part of the time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from benchmarks.runs import results
from benchmarks.runs.loads import MIXED
from benchmarks.runs.rounds import Outcome
from benchmarks.runs.runners import Plan
from benchmarks.servers.peers import PEERS


def test_the_classes_of_the_mixed_load_are_of_rounds_that_were_answered() -> None:
    models: Any = SimpleNamespace(title=str)

    def measured(failed: int, loaded_ms: float) -> dict[str, Any]:
        return {
            "requests": 100, "failed": failed, "texts": 50.0, "p99": loaded_ms,
            "idle_ms": {"to 16 tokens": [2.0]}, "loaded_ms": {"to 16 tokens": [loaded_ms]},
        }  # fmt: skip

    found = results.make(
        "bench", Outcome({("gateway", "mixed"): [measured(0, 8.0), None, measured(60, 2.0)]}),
        peers=[PEERS["gateway"]], loads=[MIXED], plan=Plan(), models=models, memory={},
        triton="2.51.0", around={},
    )  # fmt: skip
    row = found.classes("gateway")["to 16 tokens"]
    assert (row["answers"], row["loaded_p50"], row["times"]) == (1, 8.0, [4.0])
    assert found.failed_share("gateway", "mixed") == 0.3
    assert "idle_ms" not in found.values["figures"][0]["rounds"][0]
