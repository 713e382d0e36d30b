"""The one table from Triton's answers to our errors, for both of its protocols.

Triton's HTTP status follows its error code: INVALID_ARG 400, NOT_FOUND 404, UNAVAILABLE 503, and
500 for the rest. Where one status means several things, its text decides.

Tested by tests/preprocess/test_triton_replies.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from transformer_serving.contract.errors import ServingError
from transformer_serving.contract.generation import OPTIONS, SAMPLING


class AwayError(ServingError):
    """This Triton cannot answer now, another one may: code `unavailable`.

    `whole` tells a server that is gone from one that only lacks this model. `begun` is set when
    the engine may have begun to work: an input that fells a server must not be carried to all.
    """

    def __init__(self, message: str, *, whole: bool, begun: bool) -> None:
        super().__init__("unavailable", f"{message}; try again shortly")
        self.whole = whole
        self.begun = begun


class FullError(ServingError):
    """This Triton lets no more wait: code `overloaded`."""

    def __init__(self, message: str) -> None:
        super().__init__("overloaded", message)


@dataclass(frozen=True)
class Rule:
    """Matches statuses (none: any; a number is HTTP's, a name gRPC's) and a part of the text.

    The first match counts. `whole` and `begun` as in AwayError.
    """

    statuses: tuple[str, ...]
    text: str
    code: str
    message: str
    whole: bool = False
    begun: bool = False


# What the backend of language models puts before its own words, which says more than the status:
# gRPC has UNAVAILABLE of servers that are gone, too.
_OWN_UNAVAILABLE, _OWN_INVALID = "UNAVAILABLE: ", "INVALID_ARG: "
# Of one of before, which finds it elsewhere than contract.generation puts what it does not know.
_LACKS_SAMPLING = f"{OPTIONS}: field '{SAMPLING}' is missing"

RULES = (
    Rule((), "Exceeds maximum queue size", "overloaded", "the engine's queue is full"),
    Rule((), "Request timeout expired", "deadline", "the engine's queue was too long in time"),
    Rule((), "no available versions", "unavailable", "the engine has not loaded this model"),
    Rule((), "is not found", "unavailable", "the engine does not have this bundle version"),
    Rule((), "not ready", "unavailable", "the engine is loading this model"),
    Rule((), "not at ready state", "unavailable", "the engine is loading or unloading this model"),
    Rule((), "is not healthy", "unavailable", "the engine's backend is restarting", begun=True),
    Rule((), "is stopping", "unavailable", "the engine is stopping"),
    Rule((), "unexpected shape", "engine_failed", "the engine takes other shapes"),
    Rule((), "calls wait, and", "overloaded", "the engine's queue is full"),
    # Before the own words: gRPC tells the last address's error behind it, with its status.
    Rule(
        ("UNAVAILABLE",), "failed to connect", "unavailable",
        "the engine does not accept connections", whole=True,
    ),
    Rule((), _OWN_UNAVAILABLE, "unavailable", "the engine is not able to work"),
    Rule((), "blocks of the cache", "too_large",
         "the engine's cache does not hold prompt and new tokens together; ask for fewer"),
    Rule(
        (), _LACKS_SAMPLING, "impossible",
        "the engine's image is older than the endpoint's bundle, and has no least numbers of "
        "tokens or no min_p; leave them out, or give Triton this kit's image",
    ),
    Rule((), _OWN_INVALID, "engine_failed", "the engine refused this input"),
    Rule(
        ("UNAVAILABLE", "CANCELLED"), "", "unavailable",
        "the engine closed the connection", whole=True, begun=True,
    ),
    Rule(("DEADLINE_EXCEEDED",), "", "deadline", "the answer did not come before the deadline"),
    Rule(("404", "NOT_FOUND"), "", "unavailable", "the engine does not know this model"),
    Rule(("503",), "", "unavailable", "the engine cannot take work now"),
    Rule(("400", "INVALID_ARGUMENT"), "", "engine_failed", "the engine refused this input"),
    Rule((), "", "engine_failed", "the engine failed on this input"),
)  # fmt: skip


def error_of(status: str, text: str) -> ServingError:
    """The ServingError for Triton's answer; Triton's own text is matched, never passed on."""
    rule = next(
        row for row in RULES if (not row.statuses or status in row.statuses) and row.text in text
    )
    if rule.code == "unavailable":
        return AwayError(rule.message, whole=rule.whole, begun=rule.begun)
    if rule.code == "overloaded":
        return FullError(rule.message)
    return ServingError(rule.code, rule.message)
