"""What a check says.

Tested by tests/doctor/test_command.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

OK, WARNING, FAILURE, SKIPPED = "ok", "warning", "failure", "skipped"


@dataclass(frozen=True)
class Finding:
    """`why` is what was seen, `fix` what to do about it; a fix is empty where nothing is wrong.

    `facts` is what a file says of itself, for --json alone.
    """

    status: str
    why: str
    fix: str = ""
    facts: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Named:
    """A finding with the check it is of."""

    check: str
    finding: Finding

    def as_json(self) -> dict[str, Any]:
        values = {"check": self.check, **asdict(self.finding)}
        if self.finding.facts is None:
            del values["facts"]
        return values


Findings = Iterator[Finding]


def ok(why: str) -> Finding:
    return Finding(OK, why)


def warning(why: str, fix: str) -> Finding:
    return Finding(WARNING, why, fix)


def failure(why: str, fix: str) -> Finding:
    return Finding(FAILURE, why, fix)


def skipped(why: str) -> Finding:
    return Finding(SKIPPED, why)
