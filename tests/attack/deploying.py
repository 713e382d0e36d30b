"""A deploy whose stack goes away in the middle."""

from __future__ import annotations

import contextlib
import subprocess
import time

from tests.attack.ground import Ground
from tests.attack.seen import Seen
from tests.stack.conftest import CLI, ROOT
from tests.stack.small_bundles import Parts
from transformer_serving.desk.local.stack import Stack
from transformer_serving.desk.local.supervision import Supervisor

_LIMIT_S = 10
# It is no matter of a busy machine any more.
_HANGS_S = 300


def stopped_in_between(ground: Ground) -> Seen:
    """`down` while it uploads; then, but in the short form, the stack serves again what it did."""
    folder = ground.bundle("between", Parts(scale=8.0))
    state = ground.stack.state
    registry = Stack(state, ground.record, Supervisor(state)).target().registry()
    begun = time.monotonic()
    deploying = subprocess.Popen(
        [CLI, "deploy", str(folder), "--endpoint", "between", "--timeout", str(_LIMIT_S),
         "--state", str(state)],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        ground.stack.until(
            lambda: deploying.poll() is not None or bool(registry.bundles("between")), "it uploads"
        )
        ground.stack.run("down")
        _, said = deploying.communicate(timeout=_HANGS_S)
    except subprocess.TimeoutExpired:
        return Seen(f"it did not end within {_HANGS_S} s", False)
    finally:
        with contextlib.suppress(ProcessLookupError):
            deploying.kill()
    took = time.monotonic() - begun
    told = f"exit code {deploying.returncode}, it says {'why' if 'error:' in said else 'nothing'}"
    if not ground.short:
        ground.stack.run("up", "--port-base", str(ground.port))
        ground.stack.until(ground.well, "it serves again")
        told += "; the next up serves what was served"
    return Seen(
        told,
        deploying.returncode == 1 and "error:" in said,
        f"ended after {took:.1f} s of {_LIMIT_S}",
    )
