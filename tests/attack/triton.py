"""Ways into Triton beside the front door."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections import Counter

from tests.attack.ground import Ground
from tests.attack.raw_http import GOOD_BODY
from tests.attack.seen import Seen, counted
from tests.engine.triton_server import wait_until
from tests.stack.test_triton_ports import attacked, foreign_load

# Of one byte each: more than there are places on the stack of a Triton before 25.07.
_CHUNKS = 600_000
_BACK_S = 300.0


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


def chunks_to_the_front_door(ground: Ground) -> Seen:
    """A good body in so many chunks that Triton would end: it gets none of them."""
    before, statuses = ground.process("triton"), Counter[int]()
    for path in ("/v2/models/ours/infer", "/serve/ours")[: 1 if ground.short else 2]:
        statuses[_in_chunks(("127.0.0.1", ground.port), path)] += 1
    went_on, well = before.is_running(), ground.well()
    told = "went on" if went_on else "ended"
    return Seen(
        f"{counted(statuses)}; Triton {told}; the next caller is {'' if well else 'not '}answered",
        set(statuses) <= {200, 400, 413, 422} and went_on and well,
    )


def chunks_to_triton(ground: Ground) -> Seen:
    """By the stack's own user, as whoever else may ask a Triton for inference."""
    before = ground.process("triton")
    _in_chunks(ground.record.triton.http.removeprefix("unix:"), "/v2/models/ours/infer")
    begun = time.monotonic()
    ended = "Triton went on"
    with contextlib.suppress(AssertionError):
        wait_until(lambda: not before.is_running(), 5)
        ended = "Triton ended"
    with contextlib.suppress(AssertionError):
        wait_until(ground.well, _BACK_S)
    well = ground.well()
    return Seen(
        f"{ended}; what was served is {'served again' if well else 'gone'}",
        well,
        f"after {time.monotonic() - begun:.0f} s",
    )


def _in_chunks(address: tuple[str, int] | str, path: str) -> int:
    """The status of the answer; 0 without one."""
    head = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    body = GOOD_BODY.ljust(_CHUNKS)
    pieces = b"".join(b"1\r\n%c\r\n" % one for one in body)
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    with socket.socket(family) as wire, contextlib.suppress(OSError, ValueError, IndexError):
        wire.settimeout(120)
        wire.connect(address)
        wire.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + pieces)
        wire.sendall(b"0\r\n\r\n")
        return int(wire.recv(65_536).split()[1])
    return 0
