"""The state file: what `transformer-serving status` reads, and what a restart goes on from.

Tested by tests/engine/test_repository.py.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

from transformer_serving.contract.replacement import replace_file
from transformer_serving.engine.controller.records import (
    FailedChange,
    Failures,
    ModelRecord,
    failures_from_json,
    failures_to_json,
    record_from_json,
    record_to_json,
)

_log = logging.getLogger(__name__)
_MODELS = "models"
_FAILURES = "failures"


class StateFile:
    """Replaced as a whole at every write, so that a reader or a crash never sees half of it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._written = ""
        self._status: Mapping[str, Any] = {}
        self._records: dict[str, ModelRecord] = {}
        self._failures: dict[tuple[str, str], FailedChange] = {}
        # Records that only another release of the kit can read: they stay as they are.
        self._unread: dict[str, Any] = {}
        self._is_lost = False
        path.parent.mkdir(parents=True, exist_ok=True)
        self._read()

    def records(self) -> dict[str, ModelRecord]:
        with self._lock:
            return dict(self._records)

    def may_name(self, model: str) -> bool:
        """Whether a record that could not be read may name files of the model."""
        with self._lock:
            return self._is_lost or model in self._unread

    def keep_unread(self, wanted: Container[str]) -> None:
        """Of the records that could not be read, those of models that are `wanted`: nothing is
        fetched in place of the others. Written with the next write."""
        with self._lock:
            self._unread = {name: row for name, row in self._unread.items() if name in wanted}

    def commit(self, model: str, record: ModelRecord | None) -> None:
        """Make `record` the last good state of the model; on disk when this returns.

        Where that cannot be written, the state is what it was.
        """
        with self._lock:
            before = self._records, self._unread
            self._records, self._unread = (
                {name: row for name, row in rows.items() if name != model} for rows in before
            )
            if record is not None:
                self._records[model] = record
            try:
                self._write()
            except OSError:
                self._records, self._unread = before
                raise

    def failures(self) -> dict[tuple[str, str], FailedChange]:
        with self._lock:
            return dict(self._failures)

    def keep_failures(self, failures: Failures) -> None:
        """For the next start; what cannot be written is written with the next that can.

        So is what comes before the first status: readers look for one.
        """
        with self._lock, contextlib.suppress(OSError):
            changed, self._failures = failures != self._failures, dict(failures)
            if changed and self._status:
                self._write()

    def publish(self, status: Mapping[str, Any]) -> None:
        """Show a new status; written only when something in it changed."""
        with self._lock:
            # Half a second ago it was most often the same, and its text takes longer to make.
            if status != self._status or not self._written:
                self._status = status
                self._write()

    def forget_status(self) -> None:
        """What was shown holds no more: neither Triton nor a controller runs. The records stay, and
        so does the time of the last beat, as none has come: 0 in a file that is new, by which one
        is missed that never comes. Raises OSError."""
        with self._lock:
            try:
                beat = self._path.stat().st_mtime_ns
            except FileNotFoundError:
                beat = 0
            self._status = {}
            self._write()
            os.utime(self._path, ns=(beat, beat))

    def beat(self) -> None:
        """Show that the loop goes round, also when nothing changes: the file's time."""
        with contextlib.suppress(OSError):
            os.utime(self._path)

    def _read(self) -> None:
        try:
            values = json.loads(self._path.read_text("utf-8"))
            rows = dict(values.get(_MODELS, {}))
            self._failures = failures_from_json(values.get(_FAILURES))
        except FileNotFoundError:
            return
        except (ValueError, TypeError, AttributeError):
            aside = self._path.with_suffix(".unreadable")
            self._path.replace(aside)
            self._is_lost = True
            _log.error("state file %s is not readable, kept as %s", self._path, aside.name)
            return
        for model, row in rows.items():
            try:
                self._records[model] = record_from_json(row)
            except (ValueError, KeyError, TypeError, AttributeError):
                self._unread[model] = row
                _log.error(
                    "%s: its record in %s is of another release and not readable; where it is "
                    "still asked for it is fetched again, and its files stay until then",
                    model, self._path,
                )  # fmt: skip

    def _write(self) -> None:
        known = {model: record_to_json(record) for model, record in self._records.items()}
        models = self._unread | known
        kept = {_FAILURES: failures_to_json(self._failures), _MODELS: models}
        text = json.dumps({**self._status, **kept}, indent=1) + "\n"
        if text == self._written:
            return
        # Until it stands there: what failed is written by the next who comes, changed or not.
        self._written = ""
        # Also for a status: it takes the place of records that are to outlast a cut of power.
        replace_file(self._path, text, durable=True)
        self._written = text
