"""The control plane through the ClearML SDK, which is imported at the first call.

The import takes seconds of processor time. At a start it stays out of the way of what the Triton
served last, which needs no control plane to be loaded again.

Tested by tests/engine/test_late_control_plane.py.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from transformer_serving.engine.controller.control_plane.served import ControlPlane, Problem, Served
from transformer_serving.engine.controller.files.local_copy import LocalCopy
from transformer_serving.engine.controller.files.room import Room


class LateControlPlane:
    """The serving task `serving_id`; used from several threads."""

    def __init__(
        self,
        serving_id: str,
        name: str,
        keep_tasks_s: float,
        model_cache: Path | None,
        downloads: Path | None,
        room: Room | None,
    ) -> None:
        self._order = (serving_id, name, keep_tasks_s, model_cache, downloads, room)
        self._importing = threading.Lock()

    def endpoints(self) -> Sequence[Served]:
        return self._plane().endpoints()

    def problems(self) -> Sequence[Problem]:
        return self._plane().problems()

    def model(self, served: Served) -> AbstractContextManager[LocalCopy]:
        return self._plane().model(served)

    def preprocess(self, served: Served) -> bytes | None:
        return self._plane().preprocess(served)

    def report(self, text: str) -> None:
        self._plane().report(text)

    def report_figures(self, metrics: str) -> None:
        self._plane().report_figures(metrics)

    def configuration(self, *, fresh: bool = False) -> Mapping[str, str]:
        return self._plane().configuration(fresh=fresh)

    def section(self, name: str) -> Mapping[str, Any]:
        return self._plane().section(name)

    def configure(self, items: Mapping[str, str | Mapping[str, Any]]) -> None:
        self._plane().configure(items)

    def of_instances(self, name: str) -> Mapping[str, str]:
        return self._plane().of_instances(name)

    def tag_model(self, model: str, tag: str) -> bool:
        return self._plane().tag_model(model, tag)

    def close(self) -> None:
        # Never used is never imported: a controller that was told to leave at once.
        if "_imported" in vars(self):
            self._imported.close()

    def _plane(self) -> ControlPlane:
        with self._importing:
            return self._imported

    @functools.cached_property
    def _imported(self) -> ControlPlane:
        from transformer_serving.engine.controller.control_plane.clearml_edge import (
            ClearmlControlPlane,
        )

        return ClearmlControlPlane(*self._order)
