"""The kit's version, declared once in pyproject.toml."""

from __future__ import annotations

from functools import cache


@cache
def kit_version() -> str:
    from importlib.metadata import version

    return version("transformer-serving")
