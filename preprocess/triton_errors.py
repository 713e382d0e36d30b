"""The one table from Triton's answers to our errors.

Triton's HTTP status follows its error code: INVALID_ARG 400, NOT_FOUND 404, UNAVAILABLE 503, and
500 for the rest. Where one status means several things, its text decides.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from contract.errors import ServingError


@dataclass(frozen=True)
class Rule:
    """Matches a status (None: any) and a part of Triton's text; the first match counts."""

    status: int | None
    text: str
    code: str
    message: str


RULES = (
    Rule(None, "Exceeds maximum queue size", "overloaded", "the engine's queue is full"),
    Rule(None, "Request timeout expired", "deadline", "the engine's queue was too long in time"),
    Rule(None, "no available versions", "unavailable", "the engine has not loaded this model"),
    Rule(None, "is not found", "unavailable", "the engine does not have this bundle version"),
    Rule(None, "not ready", "unavailable", "the engine is loading this model"),
    Rule(None, "is not healthy", "unavailable", "the engine's backend is restarting"),
    Rule(None, "unexpected shape", "engine_failed", "the engine takes other shapes"),
    Rule(404, "", "unavailable", "the engine does not know this model"),
    Rule(503, "", "unavailable", "the engine cannot take work now"),
    Rule(400, "", "engine_failed", "the engine refused this input"),
    Rule(None, "", "engine_failed", "the engine failed on this input"),
)


def error_of(status: int, body: bytes) -> ServingError:
    """The ServingError for Triton's answer; Triton's own text is matched, never passed on."""
    try:
        text = str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        text = ""
    rule = next(row for row in RULES if row.status in (None, status) and row.text in text)
    return ServingError(rule.code, rule.message)
