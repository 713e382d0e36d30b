"""What `make test-compose` measured; `python -m tests.compose.figures` puts it into the docs."""

from __future__ import annotations

import json
import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.servers import machine as measured
from scripts.generated_part import take_no_options
from tests.compose.documents import DOCUMENT
from tests.compose.load import Load
from tests.compose.machine import BUILD, run
from transformer_serving.contract.replacement import replace_file

FIGURES = BUILD / "figures.json"
_BEGIN, _END = "<!-- figures -->\n", "<!-- end of figures -->"


class ComposeFigures:
    """Requests under load, recoveries and image sizes of one run of the tests."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {
            "loads": [], "recoveries": {}, "sizes": {},
            "commit": measured.commit(), "cpu": measured.machine()["cpu"],
        }  # fmt: skip

    def load(self, what: str, load: Load) -> None:
        self.values["loads"].append([what, load.sent, load.failed])

    def recovery(self, what: str, seconds: float) -> None:
        self.values["recoveries"][what] = seconds

    def size(self, image: str, size: int) -> None:
        self.values["sizes"][image] = size

    def write(self, path: Path) -> None:
        """With the machine they were read on."""
        self.values["when"] = datetime.now(UTC).date().isoformat()
        self.values["machine"] = machine()
        path.write_text(json.dumps(self.values, indent=1))


def machine() -> str:
    engine = run("docker", "version", "--format", "{{.Server.Version}}").strip()
    compose = run("docker", "compose", "version", "--short").strip()
    release = platform.freedesktop_os_release()["PRETTY_NAME"]
    # The kernel's figure for the last quarter of an hour, which the tests themselves make.
    load = os.getloadavg()[2]
    return (
        f"{os.cpu_count()} cores, load {load:.0f}, {release}, Docker {engine}, compose {compose}, "
        f"kernel {platform.release()}"
    )


def page(values: dict[str, Any]) -> str:
    """The part of docs/compose.md that is made from the figures."""
    seconds = "; ".join(f"{what}: {took:.1f} s" for what, took in values["recoveries"].items())
    sizes = ", ".join(f"{name} {size / 1e6:.0f} MB" for name, size in values["sizes"].items())
    return (
        f"{values['when']}, commit {values['commit']}; {values['cpu']}; "
        f"{values['machine']}; 8 clients that ask without a pause.\n\n"
        f"{loads_table(values)}\n"
        f"Until the first answer again: {seconds}.\n\n"
        f"Images, on the stand-ins (the real Triton image is many times that size): {sizes}.\n"
    )


def loads_table(values: dict[str, Any]) -> str:
    rows = "".join(f"| {what} | {sent:,} | {failed} |\n" for what, sent, failed in values["loads"])
    return f"| under load | sent | failed |\n|---|---|---|\n{rows}"


def main() -> None:
    take_no_options(__doc__)
    before, _, rest = DOCUMENT.read_text("utf-8").partition(_BEGIN)
    _, _, after = rest.partition(_END)
    text = before + _BEGIN + page(json.loads(FIGURES.read_text())) + _END + after
    replace_file(DOCUMENT, text)


if __name__ == "__main__":
    main()
