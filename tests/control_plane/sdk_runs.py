"""Runs of the unmodified SDK, and what it must not have said."""

from __future__ import annotations

from collections.abc import Callable
from subprocess import CompletedProcess

RunSdk = Callable[..., "CompletedProcess[str]"]

_COMPLAINTS = ("Failed parsing response", "Action failed", "Retrying", "InsecureKeyLength")


def good(done: CompletedProcess[str]) -> str:
    """What a run printed that ended well."""
    told = done.stdout + done.stderr
    assert done.returncode == 0, told
    for complaint in _COMPLAINTS:
        assert complaint not in told, told
    return done.stdout
