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

    Nor is an endpoint that was served once: a removal leaves the entry of a versioned one behind.
    """

    patience_s: float = PATIENCE_S
    clock: Callable[[], float] = time.monotonic
    _history: set[tuple[str, str]] = field(default_factory=set)
    _since: dict[tuple[str, str], float] = field(default_factory=dict)
    _first: bool = True

    def look(
        self,
        entries: Mapping[str, str],
        endpoints: Mapping[str, Collection[str]],
        others: Collection[str],
    ) -> list[tuple[str, str]]:
        """The lost ones as (name, model id).

        `entries` are the input models by name, `endpoints` the model ids of each served name, all
        its versions together; `others` are names that register models by themselves.
        """
        now = self.clock()
        self._history |= {(name, model) for name, ids in endpoints.items() for model in ids}
        open_ = {entry for entry in entries.items() if entry[0] not in others} - self._history
        if self._first:
            self._history |= open_
            open_, self._first = set(), False
        self._since = {entry: self._since.get(entry, now) for entry in open_}
        return sorted(e for e, since in self._since.items() if now - since >= self.patience_s)
