"""A Triton model that answers zeros after sleeping as long as an engine of BENCH_TEXTS_A_SECOND
would take: its capacity is known to the text, and no processor time is the engine's.
"""

import os
import time
from typing import Any

from null_model import TritonPythonModel as NullModel

_RATE = float(os.environ["BENCH_TEXTS_A_SECOND"])


class TritonPythonModel(NullModel):
    def initialize(self, args: dict[str, str]) -> None:
        super().initialize(args)
        self._overslept = 0.0

    def _answer(self, shape: list[int]) -> Any:
        # A sleep is as late as the machine is busy; the next one is shorter by that.
        due = time.monotonic() + shape[0] / _RATE - self._overslept
        time.sleep(max(0.0, due - time.monotonic()))
        self._overslept = min(max(0.0, time.monotonic() - due), 0.1)
        return super()._answer(shape)
