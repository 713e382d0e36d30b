"""Write the table of docs/convert.md's engine parameters from their own rows: `make docs`."""

from __future__ import annotations

from pathlib import Path

from scripts.generated_part import take_no_options, write_part
from transformer_serving.contract.engine_parameters import ENGINE_PARAMETERS

PAGE = Path(__file__).parent.parent / "docs" / "convert.md"


def table() -> str:
    """Without the line break at its end."""
    rows = (
        f"| {row.engine} | `{row.flag}` | `{row.name}` | {row.help} | {row.limit} | {row.usual} |"
        for row in ENGINE_PARAMETERS
    )
    head = "| engine | option | parameter | is | may be | unless given |\n|---|---|---|---|---|---|"
    return "\n".join((head, *rows))


def main() -> None:
    take_no_options(__doc__)
    write_part("docs", table(), PAGE)


if __name__ == "__main__":
    main()
