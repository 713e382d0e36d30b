"""What of a table the names on a command line mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from transformer_serving.desk.failure import Failure

Row = TypeVar("Row")


def chosen(what: str, names: Sequence[str], table: Mapping[str, Row]) -> list[Row]:
    """The rows of these names, in that order. Raises Failure (2) for a name of none of them."""
    if unknown := set(names) - set(table):
        raise Failure(f"no {what} '{min(unknown)}'; there are {', '.join(table)}", exit_code=2)
    return [table[name] for name in names]
