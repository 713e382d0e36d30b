"""wrk: clients that keep their connections.

ab asks with HTTP/1.0, whose connections uvicorn closes whatever is asked for: its -k would keep
those of some servers only.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from benchmarks.runs.ab import ToolRun
from benchmarks.servers.process import Unusable

_SCRIPT = Path(__file__).with_name("wrk.lua")
_TIMEOUT_S = 60


def available() -> bool:
    return shutil.which("wrk") is not None


def wrk(
    url: str, body: Path, *, seconds: float, clients: int, content_type: str, threads: int = 1
) -> ToolRun:
    """For `seconds`, rounded up to whole ones. Raises Unusable when it breaks off."""
    whole = max(1, -int(-seconds // 1))
    command = [
        "wrk", "-t", str(threads), "-c", str(clients), "-d", f"{whole}s",
        "--timeout", f"{_TIMEOUT_S}s", "-s", str(_SCRIPT), url, "--", str(body), content_type,
    ]  # fmt: skip
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=whole + 2 * _TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        raise Unusable(f"wrk did not end {2 * _TIMEOUT_S} s after its time") from None
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no output"]
        raise Unusable(f"wrk: {lines[-1]}")
    return parse(done.stdout)


def parse(output: str) -> ToolRun:
    """The line that the script prints last."""
    found: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
    if not found["requests"]:
        raise Unusable("wrk had no answer")
    return ToolRun(
        rate=found["requests"] / found["seconds"],
        mean=found["mean"], p50=found["p50"], p90=found["p90"], p99=found["p99"],
        failed=found["failed"], requests=found["requests"],
    )  # fmt: skip
