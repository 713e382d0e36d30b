"""`python -m scripts.dashboards`: the dashboards' JSON below compose/monitoring."""

from __future__ import annotations

from scripts.dashboards.grafana import text
from scripts.dashboards.table import DASHBOARDS, FOLDER
from transformer_serving.contract.replacement import replace_file


def main() -> None:
    for shown in DASHBOARDS:
        replace_file(FOLDER / shown.file, text(shown))


if __name__ == "__main__":
    main()
