"""Ways into Triton beside the front door."""

from __future__ import annotations

import os

from tests.attack.ground import Ground
from tests.attack.seen import Seen
from tests.stack.test_triton_ports import attacked, foreign_load


def web_page(ground: Ground) -> Seen:
    marker = ground.folder / "ran-for-a-page"
    answers = foreign_load(ground.stack, marker)
    taken = [port for port, status in answers.items() if 0 < status < 400]
    ran = "its code ran" if marker.exists() else "no code ran"
    return Seen(f"{len(taken)} of {len(answers)} ports took it, {ran}",
                not taken and not marker.exists())  # fmt: skip


def another_user(ground: Ground) -> Seen:
    """Everything that user nobody reads and asks; only root can become another user."""
    if os.getuid():
        return Seen("not tried: only root can become another user", None)
    found, ran = attacked(ground.stack)
    return Seen(
        f"{found.asked} calls: {len(found.answered)} answered, {len(found.files)} files read, "
        f"{'its code ran' if ran else 'no code ran'}",
        not (found.files or found.answered or ran),
    )
