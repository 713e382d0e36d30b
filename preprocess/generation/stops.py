"""Texts that end a generation, found in what comes piece by piece and never given half.

Tested by tests/preprocess/generation/test_stops.py.
"""

from __future__ import annotations

from collections.abc import Sequence


class Stops:
    """The text before the first stop string that is whole, of those that end there the longest.

    What may be the beginning of one is held back. `found` once one was there. However the text is
    cut into pieces, the same comes out.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._longest = max(map(len, stops), default=0)
        self._held = ""
        self.found = False

    def feed(self, piece: str) -> str:
        """What is certainly before a stop string; nothing once one was found."""
        if self.found:
            return ""
        if not self._stops:
            return piece
        text = self._held + piece
        ends = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        if ends:
            self.found, self._held = True, ""
            return text[: min(ends)[1]]
        held = self._open(text)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def end(self) -> str:
        """What was held back, where the text ends by what is no text, as a special token is."""
        self.found = True
        return self.rest()

    def rest(self) -> str:
        """What was held back for a stop string that did not come."""
        held, self._held = self._held, ""
        return held

    def _open(self, text: str) -> int:
        """Characters at the end with which a stop string could begin."""
        for size in range(min(self._longest - 1, len(text)), 0, -1):
            end = text[-size:]
            if any(stop.startswith(end) for stop in self._stops):
                return size
        return 0
