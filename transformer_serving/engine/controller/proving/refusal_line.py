"""The line of the serving task's log by which `deploy` hears that a model is not served.

A log takes the lines of several Tritons without one undoing another's, unlike the properties of a
task or a model, and a model's id tells one deploy's lines from all others.

Tested by tests/engine/test_proofs.py.
"""

from __future__ import annotations

import re

from transformer_serving.contract.error_line import one_line

_LINE = re.compile(r"^.*: refused model (?P<model>\S+): (?P<reason>.+)$")


def refusal_line(endpoint: str, model_id: str, reason: str) -> str:
    return f"{endpoint}: refused model {model_id}: {one_line(reason)}"


def refusal_in(line: str, model_id: str) -> str | None:
    """The reason, where the line says that this very model was refused."""
    found = _LINE.match(line)
    return found["reason"] if found and found["model"] == model_id else None
