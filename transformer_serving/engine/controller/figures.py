"""Triton's own figures on their way to ClearML, once a minute as clearml-serving's helper did.

Tested by tests/engine/test_controller_parts.py and tests/engine/test_proofs.py.
"""

from __future__ import annotations

import http.client
import logging
import re
import time
from collections.abc import Callable, Container, Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from functools import partial

from transformer_serving.contract.naming import SERVED, name_fault
from transformer_serving.engine.controller.control_plane.served import ControlPlane
from transformer_serving.engine.controller.faults import Faults
from transformer_serving.engine.controller.triton.connections import read_page
from transformer_serving.engine.controller.triton.metric_rows import labels_of, version_of

_log = logging.getLogger(__name__)
_EVERY_S = 60.0
_TIMEOUT_S = 5.0
_LINE = re.compile(r"^(?P<name>\w+)\{(?P<labels>[^}]*)\}\s+(?P<value>[-+0-9.eE]+)$")


@dataclass(frozen=True)
class Figure:
    """One figure of one model version."""

    name: str
    model: str
    version: str
    value: float


def read_figures(text: str) -> Iterator[Figure]:
    """The figures of models in Triton's metrics page; the machine's own are left out.

    So are those of a model that no endpoint can be: one that is only being proven.
    """
    for line in text.splitlines():
        found = _LINE.match(line.strip())
        labels = labels_of(found["labels"]) if found else {}
        if found and "version" in labels and name_fault(labels.get("model", ""), SERVED) is None:
            yield Figure(found["name"], labels["model"], labels["version"], float(found["value"]))


def _of_loaded(text: str, loaded: Container[tuple[str, str]]) -> str:
    """The page without what Triton keeps of versions that it no longer has: a row that is never
    removed would be told each minute for as long as Triton runs.
    """
    return "".join(
        line
        for line in text.splitlines(keepends=True)
        if not (of := version_of(line))[1] or of in loaded
    )


class TritonFigures:
    """Fetches the metrics page when it is time to; without an address it never is.

    `loaded` gives the models and versions that are told of, None while nobody knows them.
    """

    def __init__(
        self, url: str | None, loaded: Callable[[], Container[tuple[str, str]] | None]
    ) -> None:
        self._url = url
        self._loaded = loaded
        self._due = time.monotonic() + _EVERY_S
        self._job: Future[None] | None = None

    def report_when_due(self, pool: Executor, control_plane: ControlPlane, faults: Faults) -> None:
        if self._url is None or time.monotonic() < self._due:
            return
        if self._job is not None and not self._job.done():
            return
        self._due = time.monotonic() + _EVERY_S
        report = partial(self._report, self._url, control_plane)
        self._job = faults.submit(pool, "the figures for ClearML", report)

    def _report(self, url: str, control_plane: ControlPlane) -> None:
        loaded = self._loaded()
        if loaded is None:
            return
        try:
            text = read_page(url, _TIMEOUT_S)
        except (OSError, http.client.HTTPException) as error:
            _log.warning("no figures from %s: %s", url, error)
            return
        control_plane.report_figures(_of_loaded(text, loaded))
