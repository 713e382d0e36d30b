"""How long after its start a worker had its first answer from an engine.

Tested by tests/preprocess/test_first_call.py and tests/gateway/test_metrics.py.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from preprocess.stats import first_engine_call
from transformer_serving.contract.worker.process_wide import process_wide

_STAT = Path("/proc/self/stat")
# Of what follows the name in brackets.
_STARTED = 19


def note_call() -> None:
    """An engine has answered; the process's first time counts."""
    noted: dict[str, bool] = process_wide("first_engine_call", dict)
    if noted:
        return
    noted["noted"] = True
    age_s = process_age_s()
    if age_s is not None:
        first_engine_call().set(age_s)


def process_age_s() -> float | None:
    """Seconds since the process was started; None where the system does not say."""
    try:
        fields = _STAT.read_text("utf-8").rsplit(")", 1)[1].split()
    except OSError:
        return None
    started_s = int(fields[_STARTED]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started_s
