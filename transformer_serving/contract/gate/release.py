"""Version numbers as the tools print them, compared part by part.

Tested by tests/test_versions.py.
"""

from __future__ import annotations

import re
from functools import cache

_NUMBER = re.compile(r"\d+")


def parts(version: str) -> tuple[int, ...]:
    """The numbers of a version: '10.5.0.18' is (10, 5, 0, 18); a suffix such as 'rc1' is cut off.

    Empty when the text does not start with a number, for example 'unknown'.
    """
    found: list[int] = []
    for piece in version.strip().lstrip("v").split("."):
        number = _NUMBER.match(piece)
        if number is None:
            break
        found.append(int(number[0]))
        if number[0] != piece:
            break
    return tuple(found)


def same(one: str, other: str) -> bool:
    """Whether two versions agree in every part that both state; '10.5.0' is '10.5.0.18'."""
    left, right = parts(one), parts(other)
    shared = min(len(left), len(right))
    return shared > 0 and left[:shared] == right[:shared]


def older(one: str, other: str) -> bool:
    """Whether `one` comes before `other`; a missing part counts as zero."""
    left, right = _padded(one, other)
    return left < right


def equal(one: str, other: str) -> bool:
    """Whether neither comes before the other: '9' is '9.0', as YAML's numbers lose their zeros."""
    left, right = _padded(one, other)
    return left == right


def _padded(one: str, other: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    left, right = parts(one), parts(other)
    longest = max(len(left), len(right))
    pad = (0,) * longest
    return (left + pad)[:longest], (right + pad)[:longest]


@cache
def kit_version() -> str:
    """The kit's own, declared once in pyproject.toml."""
    from importlib.metadata import version

    return version("transformer-serving")
