"""`python -m scripts.dashboards`: the JSON of the dashboards, for compose and for the chart."""

from __future__ import annotations

from scripts.dashboards.grafana import text
from scripts.dashboards.table import CHART_FOLDER, DASHBOARDS, FOLDER
from scripts.generated_part import take_no_options
from transformer_serving.contract.replacement import replace_file


def main() -> None:
    take_no_options(__doc__)
    for shown in DASHBOARDS:
        for folder in (FOLDER, CHART_FOLDER):
            replace_file(folder / shown.file, text(shown))


if __name__ == "__main__":
    main()
