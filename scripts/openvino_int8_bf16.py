"""OpenVINO's CPU plugin on AMX: int8 scores beside bf16 values, wrong where tokens == head size.

    python -m scripts.openvino_int8_bf16

Attention whose queries and keys are quantized (as NNCF does it) and whose values are not. With
INFERENCE_PRECISION_HINT=bf16 the fused subgraph multiplies them in int8 and bf16, and at a length
equal to a head size below 64 both products have one M, N and K. A likely cause is that
BrgemmAMXKernelExecutor::configure_tiles_if_needed compares only these and keeps the int8 tiles.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np

from transformer_serving.desk.parity.latency import facts
from transformer_serving.engine.backends.openvino_quiet import openvino

ops = openvino.opset13
HEADS = 4
SIZES = (8, 16, 24, 32, 64)
# Above what bf16 and int8 cost together; the fault is several times as much.
WRONG = 0.2


def attention(size: int) -> Any:
    """x [texts, tokens, HEADS * size] to the same shape, FakeQuantize on queries and keys."""
    width = HEADS * size
    random = np.random.default_rng(1)
    x = ops.parameter([-1, -1, width], np.float32, "x")
    x.output(0).set_names({"x"})
    heads = []
    for _ in range(3):
        weights = (random.standard_normal((width, width)) * 2 / width**0.5).astype(np.float32)
        product = ops.matmul(
            quantized(x, 4), quantized(ops.constant(weights), 1, 255), False, False
        )
        split = ops.reshape(product, np.array([0, 0, HEADS, size]), True)
        heads.append(ops.transpose(split, np.array([0, 2, 1, 3])))
    query, key, value = heads
    scores = ops.matmul(quantized(query, 8), quantized(key, 8), False, True)
    weights = ops.softmax(ops.multiply(scores, ops.constant(np.float32(size**-0.5))), -1)
    merged = ops.transpose(ops.matmul(weights, value, False, False), np.array([0, 2, 1, 3]))
    output = ops.reshape(merged, np.array([0, 0, width]), True)
    output.output(0).set_names({"output"})
    return openvino.Model([output], [x], "attention")


def quantized(value: Any, limit: float, levels: int = 256) -> Any:
    low = ops.constant(np.float32(-limit))
    high = ops.constant(np.float32(limit * (1 if levels == 255 else 127 / 128)))
    return ops.fake_quantize(value, low, high, low, high, levels)


def texts(size: int, tokens: int) -> Any:
    random = np.random.default_rng(tokens)
    return random.standard_normal((1, tokens, HEADS * size)).astype(np.float32)


def answers(size: int, lengths: range, hint: str, snippets: str) -> list[Any]:
    properties = {"INFERENCE_PRECISION_HINT": hint, "SNIPPETS_MODE": snippets}
    compiled = openvino.Core().compile_model(attention(size), "CPU", properties)
    return [compiled(texts(size, tokens))[0].copy() for tokens in lengths]


def far(found: Any, expected: Any) -> float:
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def main() -> None:
    known = facts()
    limited = os.environ.get("ONEDNN_MAX_CPU_ISA", "not set")
    say(f"openvino {openvino.__version__}, {known['processor']}, ONEDNN_MAX_CPU_ISA {limited}")
    say("head size | hint | subgraphs fused | median | largest | at tokens | wrong at")
    for size in SIZES:
        lengths = range(1, 2 * size + 2)
        expected = answers(size, lengths, "f32", "DISABLE")
        for hint, snippets in (("f32", "ENABLE"), ("bf16", "DISABLE"), ("bf16", "ENABLE")):
            found = map(far, answers(size, lengths, hint, snippets), expected)
            distances = dict(zip(lengths, found, strict=True))
            worst = max(distances, key=distances.__getitem__)
            wrong = [tokens for tokens, distance in distances.items() if distance > WRONG]
            say(
                f"{size} | {hint} | {'yes' if snippets == 'ENABLE' else 'no'} | "
                f"{np.median(list(distances.values())):.3f} | {distances[worst]:.3f} | {worst} | "
                f"{wrong or 'none'}"
            )


if __name__ == "__main__":
    main()
