"""What was generated, for Prometheus: times of tokens, their number, and what runs.

Tested by tests/preprocess/generation/test_figures.py.
"""

from __future__ import annotations

from typing import Any

from preprocess.stats import DISCONNECT, counter, gauge, histogram, labelled, tell_limit
from transformer_serving.contract.errors import FAULTS

_FIRST_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_GAP_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)


class TextFigures:
    """Those of one endpoint."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        first = histogram(
            "first_token_seconds", "From a request's coming to its first token.", (), _FIRST_S
        )
        gap = histogram(
            "token_seconds", "Between a token and the one before it; a message's share the time.",
            (), _GAP_S,
        )  # fmt: skip
        self._first = labelled(first, endpoint)
        self._gap = labelled(gap, endpoint)
        self._running = labelled(
            gauge("running_streams", "Sequences that run, or wait for their first token."), endpoint
        )
        self._tokens = labelled(counter("generated_tokens", "Tokens generated."), endpoint)
        self._cut = {reason: self._cut_by(reason) for reason in (DISCONNECT, *FAULTS)}

    def first(self, seconds: float) -> None:
        self._first.observe(seconds)

    def gap(self, seconds: float, tokens: int) -> None:
        """A message of that many tokens, after the one before it."""
        for _ in range(tokens):
            self._gap.observe(seconds / tokens)

    def seated(self, sequences: int) -> None:
        """They count against the limit, their first tokens here or not."""
        self._running.inc(sequences)

    def left(self, sequences: int) -> None:
        """They count against it no more."""
        self._running.dec(sequences)

    def came(self, tokens: int) -> None:
        """So many of a sequence, its first ones too."""
        self._tokens.inc(tokens)

    def cut(self, reason: str) -> None:
        """A sequence that ended before it was whole: DISCONNECT, or the code of the error."""
        if reason not in self._cut:
            self._cut[reason] = self._cut_by(reason)
        self._cut[reason].inc()

    def _cut_by(self, reason: str) -> Any:
        cut = counter("cut_sequences", "Sequences that ended before they were whole.", ("reason",))
        return labelled(cut, self._endpoint, reason)


class Uncounted(TextFigures):
    """Of golden requests, which count nowhere."""

    def __init__(self) -> None: ...
    def first(self, seconds: float) -> None: ...
    def gap(self, seconds: float, tokens: int) -> None: ...
    def seated(self, sequences: int) -> None: ...
    def left(self, sequences: int) -> None: ...
    def came(self, tokens: int) -> None: ...
    def cut(self, reason: str) -> None: ...


def tell_streams_limit(most: int) -> None:
    """How many sequences may run in this worker."""
    tell_limit("running_streams_limit", "The most sequences that may run.", most)
