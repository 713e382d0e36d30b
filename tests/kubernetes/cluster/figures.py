"""What `make test-kubernetes` measured; `make kubernetes-figures` puts it into the docs."""

from __future__ import annotations

import json
from typing import Any

from scripts.generated_part import take_no_options, write_part
from tests.compose.figures import ComposeFigures, loads_table
from tests.compose.machine import ROOT

PART = "kubernetes-figures"
DOCUMENT = ROOT / "docs" / "kubernetes.md"
FIGURES = ROOT / "build" / "kubernetes" / "figures.json"
# A drain takes the one Triton of the chart's defaults, and with it every endpoint.
DRAINED_TRITONS = 2
DRAIN = f"drain of the node with {DRAINED_TRITONS} Tritons, which the budgets stop"


class ClusterFigures(ComposeFigures):
    """Beside requests under load and recoveries: the parts of a pod's start."""

    def __init__(self, version: str) -> None:
        super().__init__()
        self.values |= {"version": version, "starts": {}}

    def start(self, component: str, steps: dict[str, float]) -> None:
        self.values["starts"][component] = steps


def page(values: dict[str, Any]) -> str:
    """The part of docs/kubernetes.md that is made from the figures."""
    seconds = "; ".join(f"{what}: {took:.1f} s" for what, took in values["recoveries"].items())
    starts = "".join(
        f"| {component} | " + ", ".join(f"{step} {at:.1f}" for step, at in steps.items()) + " |\n"
        for component, steps in values["starts"].items()
    )
    return (
        f"{values['when']}; Kubernetes {values['version']}; {values['cpu']}; {values['machine']}; "
        f"8 clients that ask without a pause, but where it says otherwise.\n\n"
        f"{loads_table(values)}\n"
        f"Until the first answer again: {seconds}.\n\n"
        f"| a pod's start | seconds after it was scheduled |\n|---|---|\n{starts}"
    )


def main() -> None:
    take_no_options(__doc__)
    write_part(PART, page(json.loads(FIGURES.read_text())), DOCUMENT)


if __name__ == "__main__":
    main()
