"""The instruction sets and the table of `make check-processors`, which itself takes minutes."""

from __future__ import annotations

from scripts.check_processors import Row, table
from scripts.processor_levels import imitable, processor_flags


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
