"""What the values of a program's graph are over, read off the symbols in their sizes.

Tested by tests/engine/test_packed_graph.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch.fx import Node


class Kind(Enum):
    """What a value is over: neither texts nor tokens, all tokens, the texts, or something else."""

    PLAIN, TOKENS, TEXTS, OTHER = range(4)


@dataclass(frozen=True)
class Sizes:
    """The symbols that count texts, and those that count tokens: torch may give each input its
    own."""

    texts: frozenset[Any]
    tokens: frozenset[Any]

    def letters(self, shape: Sequence[Any]) -> str:
        """b for texts and t for tokens, nothing for a number, and ? for anything else."""
        return "".join(map(self._letter, shape))

    def _letter(self, size: Any) -> str:
        found = expression(size)
        if isinstance(found, int):
            return ""
        return "b" if found in self.texts else "t" if found in self.tokens else "?"

    def counted(self, node: Node) -> str | None:
        """b or t of a value that is the number of texts, or of tokens; None for other values."""
        value = node.meta.get("val")
        letter = self._letter(value) if isinstance(value, torch.SymInt) else "?"
        return letter if letter in ("b", "t") else None

    def kind(self, node: Node) -> Kind | None:
        """TOKENS or TEXTS, as the value's sizes say; None for others."""
        found = frozenset(self.letters(shape) for shape in _shapes(node))
        return {frozenset("b"): Kind.TEXTS, frozenset(["bt"]): Kind.TOKENS}.get(found)

    def of_tokens(self, node: Node) -> bool:
        """[texts, tokens], or [1, tokens] for all texts."""
        shape = getattr(node.meta.get("val"), "shape", ())
        return (
            len(shape) == 2 and self.letters(shape) in ("t", "bt") and bool(self.letters(shape[1:]))
        )

    @staticmethod
    def axes(node: Node) -> list[int]:
        """Where the value's size is free."""
        shape = getattr(node.meta.get("val"), "shape", ())
        return [axis for axis, size in enumerate(shape) if not isinstance(expression(size), int)]


def _shapes(node: Node) -> list[Sequence[Any]]:
    value = node.meta.get("val")
    several = value if isinstance(value, list | tuple) else [value]
    return [one.shape if isinstance(one, torch.Tensor) else ("?",) for one in several]


def expression(size: Any) -> Any:
    """A number, or the symbols of a size."""
    if not isinstance(size, torch.SymInt):
        return size
    found = size.node.expr
    return int(found) if found.is_number else found


def rank(node: Node) -> int:
    return len(node.meta["val"].shape)


def argument(node: Node, place: int, default: Any = None) -> Any:
    return node.args[place] if len(node.args) > place else default


def listed(value: Any) -> list[int]:
    return [int(one) for one in value] if isinstance(value, list | tuple) else [int(value or 0)]
