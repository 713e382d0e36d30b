"""Which graph tool makes MiniLM faster on the CPU engines, into docs/performance.md.

    make compare-graphs

Each tool's graph in fp32 and dynamic int8 on ONNX Runtime and in fp32 and bf16 on OpenVINO, one
thread, in turns; the least of all times in milliseconds, which other work on the machine spoils
least. "refused" is an engine that cannot load or run what the tool wrote.
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from engine.backends.openvino_quiet import openvino
from scripts.generated_part import described, load_average, write_part
from transformer_serving.demo import encoder_folder
from transformer_serving.latency_table import facts
from transformer_serving.model_source import open_source
from transformer_serving.onnx_export import export_onnx
from transformer_serving.optimize import clean_onnx
from transformer_serving.quantization import write_dynamic_int8

CALLS = ((1, 16, 30), (1, 128, 10), (8, 128, 2))
ROUNDS = 9

Call = Callable[[dict[str, Any]], Any]


def slimmed(source: Path, target: Path) -> None:
    import onnxslim

    onnx.save(onnxslim.slim(str(source)), str(target))


def fused_by_onnxruntime(source: Path, target: Path) -> None:
    from onnxruntime.transformers import optimizer

    optimizer.optimize_model(
        str(source), "bert", num_heads=12, hidden_size=384, opt_level=0
    ).save_model_to_file(str(target))


def fused_by_onnxscript(source: Path, target: Path) -> None:
    import onnx_ir
    from onnxscript.rewriter import ort_fusions

    done = ort_fusions.optimize_for_ort(onnx_ir.load(str(source)))
    onnx_ir.save(done[0] if isinstance(done, tuple) else done, str(target))


TOOLS: dict[str, Callable[[Path, Path], None]] = {
    "onnxslim": slimmed,
    "onnxruntime.transformers": fused_by_onnxruntime,
    "onnxscript ort_fusions": fused_by_onnxscript,
}


def onnxruntime_call(path: Path) -> Call:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda feed: session.run(None, feed)


def openvino_call(path: Path, hint: str) -> Call:
    properties = {"INFERENCE_PRECISION_HINT": hint, "INFERENCE_NUM_THREADS": 1}
    compiled = openvino.Core().compile_model(str(path), "CPU", properties)
    return lambda feed: compiled(feed)


def feed_of(texts: int, tokens: int) -> dict[str, Any]:
    ids = np.random.default_rng(7).integers(999, 20_000, (texts, tokens)).astype(np.int32)
    return {
        "input_ids": ids,
        "token_type_ids": np.zeros_like(ids),
        "attention_mask": np.ones_like(ids),
    }


def opened(graphs: dict[str, Path]) -> dict[tuple[str, str], Call | None]:
    calls: dict[tuple[str, str], Call | None] = {}
    for name, path in graphs.items():
        small = path.with_suffix(".int8.onnx")
        write_dynamic_int8(path, small)
        openers: dict[str, Callable[[], Call]] = {
            "onnxruntime fp32": lambda path=path: onnxruntime_call(path),  # type: ignore[misc]
            "onnxruntime int8": lambda small=small: onnxruntime_call(small),  # type: ignore[misc]
            "openvino fp32": lambda path=path: openvino_call(path, "f32"),  # type: ignore[misc]
            "openvino bf16": lambda path=path: openvino_call(path, "bf16"),  # type: ignore[misc]
        }
        for engine, opener in openers.items():
            try:
                call = opener()
                call(feed_of(2, 16))
                calls[name, engine] = call
            except Exception:
                calls[name, engine] = None
    return calls


def main() -> None:
    logging.disable(logging.WARNING)
    load = load_average()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        source = open_source(str(encoder_folder()), task="sentence-embedding")
        raw, plain = folder / "raw.onnx", folder / "plain.onnx"
        export_onnx(source, raw)
        plain.write_bytes(raw.read_bytes())
        clean_onnx(plain)
        graphs = {"as exported": plain}
        for name, tool in TOOLS.items():
            path = folder / f"{len(graphs)}.onnx"
            # The tools match by shapes, which cleaning takes out.
            tool(raw, path)
            graphs[name] = path
        counts = {name: len(onnx.load(str(path)).graph.node) for name, path in graphs.items()}
        rows = report(opened(graphs), counts)
    versions = {**facts(), **{name: metadata.version(name) for name in ("onnxslim", "onnxscript")}}
    write_part("compare-graphs", "\n".join((described(versions, load), "", *rows)))


def report(calls: dict[tuple[str, str], Call | None], counts: dict[str, int]) -> list[str]:
    """The table in Markdown, by lines."""
    lines = [
        "| graph | nodes | engine | " + " | ".join(f"{t}x{n}" for t, n, _ in CALLS) + " |",
        "|---|---:|---|" + "---:|" * len(CALLS),
    ]
    least: dict[tuple[str, str], list[float]] = {key: [] for key in calls}
    for texts, tokens, count in CALLS:
        feed = feed_of(texts, tokens)
        best = dict.fromkeys(calls, float("inf"))
        for _ in range(ROUNDS):
            for key, call in calls.items():
                for _ in range(count if call else 0):
                    begun = time.perf_counter()
                    call(feed)  # type: ignore[misc]
                    best[key] = min(best[key], (time.perf_counter() - begun) * 1000)
        for key in calls:
            least[key].append(best[key])
    for (name, engine), times in least.items():
        cells = " | ".join("refused" if not calls[name, engine] else f"{t:.2f}" for t in times)
        lines.append(f"| {name} | {counts[name]} | {engine} | {cells} |")
    return lines


if __name__ == "__main__":
    main()
