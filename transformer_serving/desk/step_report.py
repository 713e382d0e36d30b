"""How a long command tells what it does: one line a step, for whoever shows it.

Tested by tests/cli/test_convert.py.
"""

from __future__ import annotations

from collections.abc import Callable

StepReport = Callable[[str], None]
