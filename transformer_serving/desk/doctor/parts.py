"""The check of the embedded stack's parts, each by what `status` asks it.

Tested by tests/doctor/test_parts.py.
"""

from __future__ import annotations

from transformer_serving.desk.command_line import command_line
from transformer_serving.desk.doctor.finding import Findings, failure, ok, skipped
from transformer_serving.desk.doctor.subject import Subject


def check_parts(subject: Subject) -> Findings:
    if subject.record is None:
        yield skipped("no embedded stack is looked at")
        return
    if subject.silent is not None:
        yield failure(subject.silent.why, subject.silent.fix)
        return
    if (absence := subject.absence) is not None:
        if absence.left_behind:
            yield failure(absence.why, absence.fix)
        elif subject.was_started:
            yield failure("the stack was started, and nothing of it runs any more", absence.fix)
        else:
            yield skipped(str(absence))
        return
    ill = [part for part in subject.parts if part.health != "ok"]
    for part in ill:
        log = command_line(f"logs {part.name}", subject.state)
        yield failure(f"{part.name}: {part.health}", f"see '{log}'")
    if not ill:
        yield ok(f"all {len(subject.parts)} parts of the stack are well")
