"""The smallest part of `make check-processors`, and the table of instruction sets."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.check_processors import Row, table
from scripts.processor_levels import LEVELS, imitable, processor_flags

ROOT = Path(__file__).parent.parent


def test_a_processor_imitates_what_its_flags_name() -> None:
    flags = processor_flags(
        "processor\t: 0\nflags\t\t: fpu avx2 avx512f avx512bw avx512dq avx512vl\n"
    )
    assert [level.name for level in imitable(flags)] == ["AVX2", "AVX512_CORE"]
    assert imitable(frozenset()) == ()
    assert processor_flags("") == frozenset()


def test_a_fault_is_a_cell_of_its_own() -> None:
    rows = [
        Row("openvino-int8", "AVX2", 0.01, {"AVX2": 0.01, "all": None}, ("at 32 tokens",)),
        Row("openvino-int8", "all", 0.02, {"AVX2": 0.03, "all": 0.02}, ()),
    ]
    _, _, low, high = table(rows, ["AVX2", "all"])
    assert low == "| openvino int8 | AVX2 | 1.0e-02 | 1.0e-02 |  | 3.0e-02 |"
    assert high == "| openvino int8 | all | 2.0e-02 | 2.0e-02 | refused |  |"


@pytest.mark.long
def test_the_smallest_check_of_processors() -> None:
    """One imitated instruction set, the shortest texts, each bundle served on both sides."""
    least = imitable(processor_flags())[0].name
    assert least == LEVELS[0].name
    done = subprocess.run(
        [sys.executable, "-m", "scripts.check_processors", "--json"]
        + ["--levels", least, "--max-length", "16", "--engines", "openvino-bf16"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    rows = json.loads(done.stdout)
    both = {row["made_under"]: row for row in rows if row["engine"] == "openvino-bf16"}
    assert all(set(row["served"]) == set(both) for row in both.values())
    # Held to the least, bf16 is fp32: another answer, so the limit did reach the engine.
    assert both[least]["served"][least] < 1e-4
