"""Write the table of docs/monitoring.md from the table of alerts: `make docs`."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from scripts.generated_part import take_no_options, write_part  # noqa: E402
from transformer_serving.desk.monitoring.alerts import Alert  # noqa: E402
from transformer_serving.desk.monitoring.rules import all_alerts  # noqa: E402
from transformer_serving.desk.monitoring.times import TimeScale  # noqa: E402

PAGE = ROOT / "docs" / "monitoring.md"
PART = "docs"


def main() -> None:
    take_no_options(__doc__)
    write_part(PART, table(), PAGE)


def table() -> str:
    """A row an alert; one with several burn rates has them all in its row."""
    rows: dict[str, list[Alert]] = {}
    for alert in all_alerts():
        rows.setdefault(alert.name, []).append(alert)
    lines = ["| alert | fires when | for | severity |", "|---|---|---|---|"]
    return "\n".join((*lines, *(line for group in rows.values() for line in _lines(group))))


def _lines(alerts: list[Alert]) -> Iterator[str]:
    scale = TimeScale()
    link = f"[{alerts[0].name}](runbooks/{alerts[0].runbook})"
    for alert in alerts:
        hold = scale.text(alert.pace.hold_s) if alert.pace.hold_s else "at once"
        yield f"| {link} | {_when(alert, scale)} | {hold} | {alert.severity} |"


def _when(alert: Alert, scale: TimeScale) -> str:
    said = re.sub(r"\{\{ \$labels\.(\w+) \}\}", r"`\1`", alert.summary).removesuffix(".")
    if "burn" not in alert.labels:
        return said
    windows = f"{scale.text(alert.pace.window_s)} and {scale.text(alert.pace.short_s)}"
    return f"its budget is spent {alert.labels['burn']} times as fast as it may, over {windows}"


if __name__ == "__main__":
    main()
