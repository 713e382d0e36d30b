"""What each way of dynamic int8 costs and gains on MiniLM: the table of docs/convert.md.

    HF_HUB_OFFLINE=1 python scripts/compare_int8.py

Parity over the built-in requests, alone and in padded batches, and the least time of a call on one
thread in milliseconds.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnxruntime.quantization import QuantType, quantize_dynamic

from transformer_serving.bundle_endpoint import BUCKETS, LIMITS, endpoint_of, tokens_of
from transformer_serving.demo import encoder_folder
from transformer_serving.model_source import open_source
from transformer_serving.onnx_export import export_onnx
from transformer_serving.optimize import EngineFiles, clean_onnx
from transformer_serving.parity import Case, compare, prepare_case, within
from transformer_serving.quantization import narrowing, value_projections, write_dynamic_int8

CALLS = ((1, 16, 30), (1, 128, 10), (8, 128, 2))
ROUNDS = 7


def nothing(graph: Any) -> Iterable[str]:
    return ()


def both(graph: Any) -> Iterable[str]:
    return (*narrowing(graph), *value_projections(graph))


# What stays in fp32, and the quantizer's options that differ from ours.
VARIANTS: dict[str, tuple[Callable[[Any], Iterable[str]], dict[str, Any]]] = {
    "all matrices": (nothing, {}),
    "without those with more rows than columns": (narrowing, {}),
    "and reduce_range": (narrowing, {"reduce_range": True}),
    "and QUInt8 weights": (narrowing, {"weight_type": QuantType.QUInt8}),
    "and one scale a matrix": (narrowing, {"per_channel": False}),
    "without attention's values only": (value_projections, {}),
    "without both, reduce_range": (both, {"reduce_range": True}),
    "without both, QUInt8 weights": (both, {"weight_type": QuantType.QUInt8}),
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
    endpoint = endpoint_of(source, graph, tokens_of(source, None, BUCKETS), LIMITS)
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
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        graph, case = prepared(folder)
        paths = {"fp32": graph}
        for at, name in enumerate(VARIANTS):
            paths[name] = folder / f"{at}.onnx"
            quantize(graph, paths[name], name)
        paths["**without both, as convert does**"] = folder / "ours.onnx"
        write_dynamic_int8(graph, folder / "ours.onnx")
        times = least_times(paths)
        report(paths, case, times)


def report(paths: dict[str, Path], case: Case, times: dict[str, list[float]]) -> None:
    calls = " | ".join(f"{texts}x{tokens}" for texts, tokens, _ in CALLS)
    print(f"| int8 | lowest cosine | largest difference | parity | {calls} |")  # noqa: T201
    print("|---|---:|---:|---|" + "---:|" * len(CALLS))  # noqa: T201
    for name, path in paths.items():
        precision = "fp32" if name == "fp32" else "int8"
        found = compare(case, EngineFiles("onnxruntime", precision, (path,)))
        passes = "ok" if within(found) else "over"
        cells = " | ".join(f"{milliseconds:.2f}" for milliseconds in times[name])
        print(  # noqa: T201
            f"| {name} | {found.lowest_cosine:.4f} | {found.largest_difference:.1e} | {passes} | "
            f"{cells} |"
        )


if __name__ == "__main__":
    main()
