"""Ask a plain Triton the golden request of a bundle and time it: for scripts/check_gpu.sh.

    python scripts/ask_plain_triton.py BUNDLE HOST:GRPC_PORT MODEL

Leaves with 1 when the answer is not the golden one.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tritonclient.grpc as triton

from preprocess.tensors import Tensor
from transformer_serving.contract.golden import agrees
from transformer_serving.desk.bundle.folder import open_bundle
from transformer_serving.desk.parity.local_endpoint import LocalEndpoint

CALLS = 200


def main(path: str, address: str, model: str) -> int:
    bundle = open_bundle(Path(path))
    names = [output.name for output in bundle.endpoint.outputs]
    client = triton.InferenceServerClient(address)

    def call(tensors: Sequence[Tensor]) -> list[Any]:
        inputs = []
        for tensor in tensors:
            rows = triton.InferInput(tensor.name, tensor.array.shape, tensor.dtype)
            rows.set_data_from_numpy(tensor.array)
            inputs.append(rows)
        answer = client.infer(model, inputs)
        return [answer.as_numpy(name) for name in names]

    local = LocalEndpoint(bundle.endpoint, (bundle.folder / "tokenizer.json").read_bytes(), call)
    golden = bundle.manifest.golden
    right = agrees(local.answer(golden.request), golden.answer, golden.tolerance)
    times = []
    for _ in range(CALLS):
        begun = time.perf_counter()
        local.answer(golden.request)
        times.append((time.perf_counter() - begun) * 1000)
    sys.stdout.write(
        f"golden answer: {'as recorded' if right else 'DIFFERENT'}; {CALLS} calls one by one, "
        f"client and tokenizer included: median {statistics.median(times):.2f} ms, least "
        f"{min(times):.2f} ms\n"
    )
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:4]))
