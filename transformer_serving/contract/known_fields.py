"""Rows that another release of the kit may have written, which has more to say than this one.

Tested by tests/engine/test_repository.py and tests/engine/rollouts/test_taking.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any


def known_fields(kind: type[Any], row: Mapping[str, Any]) -> dict[str, Any]:
    """Of a row what a dataclass has fields for."""
    return {known.name: row[known.name] for known in fields(kind) if known.name in row}
