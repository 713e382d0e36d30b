"""What OpenVINO's int8 costs by precision hint and instruction set, into docs/convert.md.

    make compare-hints

MiniLM, quantized as convert does it, and the graph that is not int8 beside it. Each instruction set
is a process of its own, since oneDNN reads its limit at a start.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from scripts.generated_part import PAGE, described, load_average, write_part
from scripts.processor_levels import VARIABLE, imitable, processor_flags
from scripts.processor_run import Prepared, load_prepared, prepare
from transformer_serving.desk.builders.files import Shapes
from transformer_serving.desk.builders.table import build_engine, ladder_of
from transformer_serving.desk.parity.latency import facts
from transformer_serving.engine.backends.openvino_quiet import openvino
from transformer_serving.engine.backends.precision import usable

CALLS = ((1, 16, 20), (1, 32, 20), (1, 128, 8), (8, 32, 6), (8, 128, 2))
ROUNDS = 12
_ALL = "all that it has"
_WANTED = (_ALL, "AVX512_CORE_BF16", "AVX512_CORE_VNNI", "AVX2")


@dataclass(frozen=True)
class Variant:
    """A graph of `precision` under a hint, its attention fused or not."""

    name: str
    precision: str
    hint: str
    snippets: str = "ENABLE"


VARIANTS = (
    Variant("int8, f32: what convert makes", "int8", "f32"),
    Variant("int8, bf16", "int8", "bf16"),
    Variant("int8, bf16, no fused subgraphs", "int8", "bf16", "DISABLE"),
    Variant("not int8, bf16", "fp32", "bf16"),
    Variant("not int8, f32", "fp32", "f32"),
)


def built(folder: Path) -> None:
    """The model's graphs, int8 and not, below `folder`."""
    prepare(folder, 64)
    prepared: Prepared = load_prepared(folder)
    shapes = Shapes(ladder_of("openvino"), (1, 8, 32), prepared.feeds)
    for precision in ("int8", "fp32"):
        place = folder / precision
        place.mkdir()
        build_engine("openvino", precision, folder / "graph.onnx", place, shapes)


def measured(folder: Path) -> list[list[float] | None]:
    """Milliseconds of processor time of each of CALLS, for each variant that this level takes."""
    return [_times(folder, variant) for variant in VARIANTS]


def _times(folder: Path, variant: Variant) -> list[float] | None:
    (path,) = (folder / variant.precision).glob("*.xml")
    properties = {
        "INFERENCE_PRECISION_HINT": variant.hint,
        "SNIPPETS_MODE": variant.snippets,
        "INFERENCE_NUM_THREADS": "1",
        "NUM_STREAMS": "1",
        "ENABLE_CPU_PINNING": "NO",
    }
    core = openvino.Core()
    can = usable(core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"))
    if variant.hint == "bf16" and "BF16" not in can:  # emulated, where it compiles at all
        return None
    compiled = core.compile_model(str(path), "CPU", properties)
    return [_least(compiled, *call) for call in CALLS]


def _least(compiled: Any, texts: int, tokens: int, count: int) -> float:
    ids = np.random.default_rng(7).integers(999, 20_000, (texts, tokens)).astype(np.int32)
    ones = np.ones_like(ids)
    feed = {"input_ids": ids, "token_type_ids": ones * 0, "attention_mask": ones}
    request = compiled.create_infer_request()
    request.infer(feed)
    best = float("inf")
    for _ in range(ROUNDS):
        begun = time.process_time()
        for _ in range(count):
            request.infer(feed)
        best = min(best, (time.process_time() - begun) / count)
    return best * 1000


def under(level: str, folder: Path) -> list[list[float] | None]:
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    if level != _ALL:
        environment[VARIABLE] = level
    command = [sys.executable, "-P", "-m", "scripts.compare_hints", str(folder)]
    root = str(Path(__file__).parent.parent)
    environment["PYTHONPATH"] = root
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"error: under {level} it failed:\n{done.stderr[-2000:]}")
    found: list[list[float] | None] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    # How it starts itself under a level.
    parser.add_argument("graphs", type=Path, nargs="?", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.graphs is not None:
        sys.stdout.write(json.dumps(measured(options.graphs)) + "\n")
        return
    load = load_average()
    names = {level.name for level in imitable(processor_flags())} | {_ALL}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        built(folder)
        rows = {level: under(level, folder) for level in _WANTED if level in names}
    page = PAGE.with_name("convert.md")
    write_part("compare-hints", "\n".join((described(facts(), load), "", *table(rows))), page)


def table(rows: dict[str, list[list[float] | None]]) -> list[str]:
    """In Markdown, by lines."""
    calls = " | ".join(f"{texts}x{tokens}" for texts, tokens, _ in CALLS)
    lines = [
        f"| instruction set | graph and hint | {calls} |",
        "|---|---|" + "---:|" * len(CALLS),
    ]
    for level, found in rows.items():
        for variant, times in zip(VARIANTS, found, strict=True):
            if times is None:
                continue
            cells = [f"{milliseconds:.2f}" for milliseconds in times]
            lines.append(f"| {level} | {variant.name} | {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    main()
