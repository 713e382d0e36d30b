"""What whoever reaches a Triton may do to it: load models, or end it by a request.

Tested by tests/doctor/test_open_triton.py.
"""

from __future__ import annotations

from transformer_serving.contract.settings.triton_addresses import is_unix
from transformer_serving.desk.command_line import command_line
from transformer_serving.desk.doctor.finding import Findings, ok, warning
from transformer_serving.desk.doctor.subject import Subject
from transformer_serving.desk.local.open_triton import open_tritons
from transformer_serving.desk.versions.matrix import ENDED_BY_CHUNKS_BEFORE, ended_by_chunks


def check_open(subject: Subject, address: str) -> Findings:
    """Its control, and that of a Triton of somebody else at the usual port."""
    fix = (
        "start it with --http-restricted-api and --grpc-restricted-protocol, or stop it: "
        "docs/security.md"
    )
    opened = list(open_tritons(subject.environment, own=address, usual=subject.usual_triton))
    for row in opened:
        yield warning(f"the Triton at {row.address} is open: {row.open}", fix)
    if not opened:
        yield ok("Triton's control is closed")


def check_chunks(subject: Subject, address: str, version: str) -> Findings:
    """A socket is its owner's alone; at a port the release decides."""
    if is_unix(address) or not ended_by_chunks(version):
        return
    is_own = subject.record is not None and address == subject.record.triton.http
    yield warning(
        f"whoever reaches the Triton at {address} can end it by one request, as any before "
        f"{ENDED_BY_CHUNKS_BEFORE}",
        "let those whom you do not trust reach the front door alone: docs/security.md, 'Triton's "
        "ports'; or "
        + (
            f"close it: {command_line('down', subject.state)}, then 'up' without --open-inference"
            if is_own
            else f"move to a newer image: {command_line('versions use RELEASE')}"
        ),
    )
