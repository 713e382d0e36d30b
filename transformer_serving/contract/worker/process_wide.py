"""What a whole worker has only once, whichever version of the code asks.

Endpoint code is packed under package names of its own, so several versions of it may run in one
process during an update, each with its own modules. What they must share stands in one module that
they find by its name. Only types of Python or of installed packages may be kept there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import TypeVar

_MODULE = "transformer_serving_live"

Kept = TypeVar("Kept")


def process_wide(name: str, make: Callable[[], Kept]) -> Kept:
    """The process's one object of that name, made when nobody has asked for it before."""
    held = sys.modules.setdefault(_MODULE, ModuleType(_MODULE)).__dict__
    if name not in held:
        held.setdefault(name, make())
    kept: Kept = held[name]
    return kept
