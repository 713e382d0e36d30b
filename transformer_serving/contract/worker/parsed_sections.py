"""Sections of a ClearML task's configuration, parsed once and not at every look.

The SDK keeps a section as HOCON text and has pyparsing read it whenever it is asked for: 40 ms of
processor time for two endpoints. Workers and the controller ask every few seconds, of texts that
are hardly ever others.

Tested by tests/contract/test_parsed_sections.py.
"""

from __future__ import annotations

import copy
import importlib
from functools import lru_cache, wraps
from typing import Any

# Five sections a look, and those before a change.
_KEPT = 16


def parse_sections_once() -> None:
    """From now on the SDK's tasks of this process remember what they parsed; once is enough."""
    module: Any = importlib.import_module("clearml.backend_interface.task.task")
    parse = module.text_to_config_dict
    if hasattr(parse, "__wrapped__"):
        return
    parsed = lru_cache(maxsize=_KEPT)(parse)

    @wraps(parse)
    def text_to_config_dict(text: str) -> Any:
        # Who asks may change what it gets.
        return copy.deepcopy(parsed(text))

    module.text_to_config_dict = text_to_config_dict
