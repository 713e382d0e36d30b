"""Catching all that code may raise, the panics of libraries written in Rust included.

pyo3's PanicException, which the tokenizers library raises, is a BaseException and no Exception.

Tested by tests/gateway/test_error_rows.py.
"""

from __future__ import annotations

import asyncio
from typing import Final

# What ends a task or the process: whoever catches BaseException passes these on first.
ENDS: Final = (KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError)
