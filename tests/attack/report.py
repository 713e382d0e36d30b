"""The attack's table, on a terminal and in docs/security.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from scripts.generated_part import described, load_average
from tests.attack.cases import BEFORE, Case
from tests.attack.seen import Seen
from transformer_serving.contract.gate.server_facts import installed
from transformer_serving.desk.parity.latency import facts
from transformer_serving.desk.versions.lock import read_lock

_PACKAGES = ("clearml-serving", "clearml", "granian", "onnxruntime", "tokenizers")
_WORDS = {True: "holds", False: "BROKEN", None: "not tried"}


@dataclass(frozen=True)
class Row:
    """A case that was run, for `seconds`."""

    case: Case
    seen: Seen
    seconds: float

    @property
    def broken(self) -> bool:
        return self.seen.holds is False

    def as_json(self) -> dict[str, object]:
        case, seen = self.case, self.seen
        return {
            "name": case.name, "tries": case.tries, "before": case.before, "must": case.must,
            "seen": seen.text, "times": seen.times, "holds": seen.holds,
            "seconds": round(self.seconds, 1),
        }  # fmt: skip


def table(rows: Sequence[Row]) -> Table:
    made = Table("case", "seen", "times", "", "s", title="The attack", show_lines=True)
    for row in rows:
        made.add_row(row.case.name, row.seen.text, row.seen.times, _WORDS[row.seen.holds],
                     f"{row.seconds:.0f}")  # fmt: skip
    return made


def document(rows: Sequence[Row], load: float) -> str:
    """The part of docs/security.md."""
    seconds = sum(row.seconds for row in rows)
    versions = {
        **{
            name: value for name, value in facts().items() if name in ("date", "processor", "cores")
        },
        "tritonserver": read_lock().embedded.triton,
        **{name: installed(name) or "none" for name in _PACKAGES},
    }
    lines = [
        f"{described(versions, load)} {len(rows)} cases in {seconds / 60:.0f} minutes, "
        f"load average {load_average():.1f} at the end; before: {BEFORE}.",
        "",
        "| case | tries | before | must hold | now | |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        case = row.case
        cells = (case.name, case.tries, case.before, case.must, str(row.seen),
                 _WORDS[row.seen.holds])  # fmt: skip
        lines.append(f"| {' | '.join(cell.replace('|', '¦') for cell in cells)} |")
    return "\n".join(lines)
