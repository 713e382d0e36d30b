"""The table of `convert --compare`: whole numbers at any width."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from transformer_serving.desk.cli.latency_table import print_latencies
from transformer_serving.desk.parity.latency import GPU, Latency, parity_cell

FIGURES: dict[str, Any] = {
    "mean": 1696.31, "sd": 133.75, "min": 1666.29, "median": 1686.07, "p95": 1770.35,
    "p99": 1770.36, "max": 1770.37,
}  # fmt: skip
ROWS = (
    Latency("PyTorch 2.13.0", "fp32", 1, 16, 9, **FIGURES, difference=None, passes=None),
    Latency("onnxruntime, as exported", "fp32", 1, 16, 9, **FIGURES, difference=0.0, passes=True),
    Latency("tensorrt", "fp16", 32, 128, 9, **FIGURES, difference=0.1, passes=False, device=GPU),
)


def shown(width: int) -> list[str]:
    out = io.StringIO()
    print_latencies(Console(file=out, width=width, markup=False), ROWS)
    return out.getvalue().splitlines()


@pytest.mark.parametrize("width", [80, 100, 1000])
def test_no_number_is_on_two_lines_and_a_narrow_terminal_has_fewer(width: int) -> None:
    *table, unit = shown(width)
    assert unit.startswith("milliseconds of one call of texts x tokens; date ")
    assert max(map(len, table)) <= width
    kept = ["mean", "median", "p95", "p99"] if width < 1000 else list(FIGURES)
    assert [word for word in table[0].split() if word in FIGURES] == kept
    wanted = [f"{FIGURES[name]:.2f}" for name in kept]
    for row in ROWS:
        # The first line of each has its numbers, also where its name goes on below.
        call = f"{row.texts}x{row.tokens}"
        found = [line for line in table if line.split()[:2] == [call, row.name.split()[0]]]
        assert [word for word in found[0].split() if word in wanted] == wanted
        assert found[0].endswith(parity_cell(row).ljust(len("the reference") + 1))
    everything = " ".join(word for line in table for word in line.split())
    assert "fp16 (gpu)" in everything
    assert (width < 1000) or "onnxruntime, as exported fp32 (cpu)" in everything
