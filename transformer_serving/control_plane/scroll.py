"""Scroll positions: `get_all` and event reads that continue where the last answer ended.

Tested by tests/control_plane/test_events.py.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TypeVar

from transformer_serving.control_plane.errors import ApiError, ApiFailure
from transformer_serving.control_plane.schema import new_id

Item = TypeVar("Item")

_KEPT_POSITIONS = 1000


class Scrolls:
    """Positions by id, the least recently used forgotten first; a restart forgets all."""

    def __init__(self) -> None:
        self._positions: OrderedDict[str, int] = OrderedDict()
        self._lock = threading.Lock()

    def advance(
        self, found: Sequence[Item], request: Mapping[str, object], size_field: str = "size"
    ) -> tuple[Sequence[Item], str]:
        """The next part of `found` and the id to continue with."""
        size = request.get(size_field)
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ApiError(ApiFailure.VALIDATION, f"{size_field} must be a number of at least 1")
        identity, start = self._position(request.get("scroll_id"))
        if request.get("refresh_scroll"):
            start, size = 0, max(start, size)
        part = found[start : start + size]
        self._keep(identity, start + len(part))
        return part, identity

    def _position(self, identity: object) -> tuple[str, int]:
        if not identity:
            return new_id(), 0
        with self._lock:
            if not isinstance(identity, str) or identity not in self._positions:
                raise ApiError(ApiFailure.SCROLL_ID, "start again without scroll_id")
            return identity, self._positions[identity]

    def _keep(self, identity: str, position: int) -> None:
        with self._lock:
            self._positions[identity] = position
            self._positions.move_to_end(identity)
            if len(self._positions) > _KEPT_POSITIONS:
                self._positions.popitem(last=False)
