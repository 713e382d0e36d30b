"""What a gateway's worker costs that nobody asks: `python -m tests.gateway.idle_cost`.

Printed are its processor time and memory when it is ready, and what a minute without a request
adds.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import psutil

from tests.gateway.conftest import running_session

_SECONDS = 60
# The host looks for changes; here it is not to.
_QUIET = {"CLEARML_SERVING_POLL_FREQ": "60"}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, running_session(Path(folder)) as session:
        gateway = session.gateway(**_QUIET).start()
        try:
            gateway.wait_for("/health/ready")
            process = psutil.Process(gateway.process.pid)
            used = _report("ready", process, 0.0)
            time.sleep(_SECONDS)
            _report(f"{_SECONDS} s later", process, used)
        finally:
            gateway.stop()


def _report(when: str, process: psutil.Process, before: float) -> float:
    family = [process, *process.children(recursive=True)]
    times = [one.cpu_times() for one in family]
    used = sum(one.user + one.system for one in times)
    memory = sum(one.memory_info().rss for one in family) / 2**20
    sys.stdout.write(f"{when}: {used - before:.2f} s of processor time more, {memory:.0f} MiB\n")
    return float(used)


if __name__ == "__main__":
    main()
