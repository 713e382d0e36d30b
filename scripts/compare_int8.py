"""What each way of dynamic int8 costs and gains on MiniLM, into docs/convert.md.

    make compare-int8

Parity over the built-in requests, alone and in padded batches, and the least time of a call on one
thread in milliseconds.
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnxruntime.quantization import QuantType, quantize_dynamic

from scripts.generated_part import PAGE, described, load_average, take_no_options, write_part
from transformer_serving.desk.builders.files import EngineFiles
from transformer_serving.desk.builders.quantization import (
    narrowing,
    value_projections,
    write_dynamic_int8,
)
from transformer_serving.desk.builders.table import ladder_of
from transformer_serving.desk.demo import encoder_folder
from transformer_serving.desk.export.cleaning import clean_onnx
from transformer_serving.desk.export.endpoint_json import LIMITS, endpoint_of, tokens_of
from transformer_serving.desk.export.onnx import export_onnx
from transformer_serving.desk.parity.check import Case, compare, prepare_case, within
from transformer_serving.desk.parity.latency import facts
from transformer_serving.desk.source.model import open_source

CALLS = ((1, 16, 30), (1, 128, 10), (8, 128, 2))
ROUNDS = 7


def nothing(graph: Any) -> Iterable[str]:
    return ()


def both(graph: Any) -> Iterable[str]:
    return (*narrowing(graph), *value_projections(graph))


# What stays in fp32, and the quantizer's options that differ from ours.
VARIANTS: dict[str, tuple[Callable[[Any], Iterable[str]], dict[str, Any]]] = {
    "every matrix": (nothing, {}),
    "narrowing ones in fp32": (narrowing, {}),
    "narrowing ones in fp32, reduce_range": (narrowing, {"reduce_range": True}),
    "narrowing ones in fp32, QUInt8 weights": (narrowing, {"weight_type": QuantType.QUInt8}),
    "narrowing ones in fp32, one scale a matrix": (narrowing, {"per_channel": False}),
    "values in fp32": (value_projections, {}),
    "both in fp32, reduce_range": (both, {"reduce_range": True}),
    "both in fp32, QUInt8 weights": (both, {"weight_type": QuantType.QUInt8}),
}


def quantize(graph: Path, target: Path, name: str) -> None:
    kept, options = VARIANTS[name]
    quantize_dynamic(
        str(graph),
        str(target),
        **{
            "op_types_to_quantize": ["MatMul"],
            "per_channel": True,
            "weight_type": QuantType.QInt8,
            "nodes_to_exclude": sorted(set(kept(onnx.load(str(graph)).graph))),
            "extra_options": {"MatMulConstBOnly": True},
            **options,
        },
    )


def prepared(folder: Path) -> tuple[Path, Case]:
    source = open_source(str(encoder_folder()), task="sentence-embedding")
    graph = export_onnx(source, folder / "graph.onnx")
    clean_onnx(graph.path)
    endpoint = endpoint_of(source, graph, tokens_of(source, None, ladder_of("onnxruntime")), LIMITS)
    return graph.path, prepare_case(source, endpoint)


def least_times(paths: dict[str, Path]) -> dict[str, list[float]]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    sessions = {
        name: onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        for name, path in paths.items()
    }
    found: dict[str, list[float]] = {name: [] for name in paths}
    for texts, tokens, count in CALLS:
        ids = np.random.default_rng(7).integers(999, 20_000, (texts, tokens)).astype(np.int32)
        ones = np.ones_like(ids)
        feed = {"input_ids": ids, "token_type_ids": ones * 0, "attention_mask": ones}
        best = dict.fromkeys(paths, float("inf"))
        for _ in range(ROUNDS):
            for name, session in sessions.items():
                for _ in range(count):
                    begun = time.perf_counter()
                    session.run(None, feed)
                    best[name] = min(best[name], (time.perf_counter() - begun) * 1000)
        for name, milliseconds in best.items():
            found[name].append(milliseconds)
    return found


def main() -> None:
    take_no_options(__doc__)
    logging.disable(logging.WARNING)
    load = load_average()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        graph, case = prepared(folder)
        paths = {"fp32": graph}
        for at, name in enumerate(VARIANTS):
            paths[name] = folder / f"{at}.onnx"
            quantize(graph, paths[name], name)
        paths["both in fp32: what convert makes"] = folder / "ours.onnx"
        write_dynamic_int8(graph, folder / "ours.onnx")
        times = least_times(paths)
        rows = report(paths, case, times)
    page = PAGE.with_name("convert.md")
    write_part("compare-int8", "\n".join((described(facts(), load), "", *rows)), page)


def report(paths: dict[str, Path], case: Case, times: dict[str, list[float]]) -> list[str]:
    """The table in Markdown, by lines."""
    calls = " | ".join(f"{texts}x{tokens}" for texts, tokens, _ in CALLS)
    lines = [
        f"| int8 | lowest cosine | largest difference | parity | {calls} |",
        "|---|---:|---:|---|" + "---:|" * len(CALLS),
    ]
    for name, path in paths.items():
        precision = "fp32" if name == "fp32" else "int8"
        found = compare(case, EngineFiles("onnxruntime", precision, (path,)))
        passes = "ok" if within(found) else "over"
        cells = " | ".join(f"{milliseconds:.2f}" for milliseconds in times[name])
        lines.append(
            f"| {name} | {found.lowest_cosine:.4f} | {found.largest_difference:.1e} | {passes} | "
            f"{cells} |"
        )
    return lines


if __name__ == "__main__":
    main()
