"""`python -m transformer_serving.desk.compose`: example.env, the files' settings, the chart's.

Tested by tests/test_compose_files.py.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

import click

from transformer_serving.contract.replacement import replace_file
from transformer_serving.desk.compose.chart import names_of_settings, with_variables
from transformer_serving.desk.compose.variables import IN_CONTAINERS, sections, settings

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "docker" / "example.env"
COMPOSE = ROOT / "compose" / "compose.yaml"
# Of the files with an inference service of their own.
WITH_SETTINGS = (COMPOSE, ROOT / "compose" / "clearml-serving.yaml")
CHART_SCHEMA = ROOT / "kubernetes" / "chart" / "values.schema.json"
CHART_SETTINGS = CHART_SCHEMA.with_name("settings.yaml")
HEAD = (
    "# Every variable of the compose files. Made by `make example-env`; copy it, change the copy,\n"
    "# keep the copy out of git, and name it with --env-file: docs/compose.md has the commands.\n"
    "# A value with '$' or '#' in it stands between single quotes, NAME='a$b #c': else compose\n"
    "# puts a variable in the place of $b, and takes what follows a blank and '#' for a comment.\n"
)
_BEGIN = "      # Made by `make example-env` from the parts' own tables.\n"
_END = "      # To here.\n"


@click.command()
def main() -> None:
    """Write the compose files' variables as the parts' own tables have them now."""
    replace_file(EXAMPLE, example_env())
    for path in WITH_SETTINGS:
        replace_file(path, with_settings(path.read_text("utf-8")))
    replace_file(CHART_SCHEMA, with_variables(CHART_SCHEMA.read_text("utf-8")))
    replace_file(CHART_SETTINGS, names_of_settings())


def example_env() -> str:
    text = HEAD
    for section in sections():
        text += f"\n# --- {section.title}\n"
        for row in section.variables:
            text += "\n" + textwrap.fill(row.help, 98, initial_indent="# ", subsequent_indent="# ")
            text += f"\n{row.name}={row.default}\n"
    return text


def with_settings(compose: str) -> str:
    """A compose file with the settings' lines as they are declared now."""
    before, _, rest = compose.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    # An empty variable is dropped at the container's start: the part's own default counts.
    lines = [
        f"      {row.name}: ${{{row.name}:-{IN_CONTAINERS.get(row.name, '')}}}\n"
        for row in settings().variables
    ]
    return before + _BEGIN + "".join(lines) + _END + after


if __name__ == "__main__":
    main()
