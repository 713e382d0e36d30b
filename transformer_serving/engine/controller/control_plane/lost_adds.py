"""Notices a `model add` that another writer undid.

clearml-serving rewrites the whole configuration with every change, so of two writers at one time
one is lost without a word. What is not lost is the entry that every `model add` makes among the
serving task's input models first. So a name there whose endpoint does not come, or stays on another
model, was undone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

# Between the entry and the new configuration a `model add` needs about a second.
PATIENCE_S = 10.0


@dataclass
class LostAdds:
    """Looks at every sync; what was there at the first look is history and is not reported.

    A removal takes the entry away, but not that of an endpoint with a version: a name that ever had
    one is not reported either.
    """

    patience_s: float = PATIENCE_S
    clock: Callable[[], float] = time.monotonic
    _history: set[tuple[str, str]] | None = None
    _versioned: set[str] = field(default_factory=set)
    _since: dict[tuple[str, str], float] = field(default_factory=dict)

    def look(
        self,
        entries: Mapping[str, str],
        endpoints: Mapping[str, str],
        versioned: Collection[str],
        others: Collection[str],
    ) -> list[tuple[str, str]]:
        """The lost ones as (name, model id).

        `entries` are the input models by name, `endpoints` the model ids of the endpoints without a
        version, `versioned` the names of those with one, `others` names that register models by
        themselves.
        """
        now = self.clock()
        self._versioned |= set(versioned)
        open_ = {
            (name, model)
            for name, model in entries.items()
            if endpoints.get(name) != model and name not in self._versioned | set(others)
        }
        if self._history is None:
            self._history = set(open_)
        # What is served now was added again: from here on it can be lost.
        self._history -= set(endpoints.items())
        open_ -= self._history
        self._since = {entry: self._since.get(entry, now) for entry in open_}
        return sorted(e for e, since in self._since.items() if now - since >= self.patience_s)
