"""The proofs that were passed on this machine, in a file beside the state: a restart costs none.

Tested by tests/engine/test_proofs.py.
"""

from __future__ import annotations

import json
import logging
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from transformer_serving.contract.gate.server_facts import Gpu
from transformer_serving.contract.known_fields import known_fields
from transformer_serving.contract.replacement import replace_file

_log = logging.getLogger(__name__)
# Far above what one Triton serves; what was asked for longest ago goes first.
MOST = 1000


@dataclass(frozen=True)
class Passed:
    """A proof that was passed: of what, when (Unix seconds), how long it took and how near it was.

    `key` names machine and subject together (Machine.key); `seconds` is all of it, load to unload.
    """

    key: str
    bundle_version: int | None
    at: float
    seconds: float
    largest_difference: float
    lowest_cosine: float | None


class Proofs:
    """Replaced as a whole at every write. With an unreadable file everything is proven anew."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        values = _read(path)
        self._passed = {row.key: row for row in _passed_of(values, path)}
        self._gpus = _gpus_of(values)

    def get(self, key: str) -> Passed | None:
        with self._lock:
            row = self._passed.pop(key, None)
            if row is not None:
                self._passed[key] = row
            return row

    def add(self, row: Passed) -> None:
        """A file that cannot be written costs the next start a proof, and nothing now."""
        with self._lock:
            self._passed.pop(row.key, None)
            self._passed[row.key] = row
            for key in list(self._passed)[:-MOST]:
                del self._passed[key]
            self._keep()

    def gpus(self, boot: str) -> tuple[Gpu, ...] | None:
        """Those that the machine had, if it has not been started since; None where none were kept.
        `boot` is of its start."""
        with self._lock:
            return self._gpus[1] if self._gpus is not None and self._gpus[0] == boot else None

    def keep_gpus(self, gpus: tuple[Gpu, ...], boot: str) -> None:
        """For the next start; a file that cannot be written may cost it proofs."""
        with self._lock:
            if self._gpus != (boot, gpus):
                self._gpus = boot, gpus
                self._keep()

    def _keep(self) -> None:
        values: dict[str, Any] = {"passed": [asdict(row) for row in self._passed.values()]}
        if self._gpus is not None:
            boot, gpus = self._gpus
            values["gpus"] = {"boot": boot, "named": [asdict(gpu) for gpu in gpus]}
        try:
            replace_file(self._path, json.dumps(values, indent=1) + "\n", durable=True)
        except OSError as error:
            _log.warning("proofs are not kept: %s: %s", self._path, error.strerror)


def _read(path: Path) -> Any:
    """What the file holds; None where there is none."""
    try:
        return json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        return ()


def _passed_of(values: Any, path: Path) -> list[Passed]:
    if values is None:
        return []
    try:
        return [Passed(**known_fields(Passed, row)) for row in values["passed"]][-MOST:]
    except (KeyError, TypeError):
        _log.error("proofs in %s are not readable; every bundle is proven again", path)
        return []


def _gpus_of(values: Any) -> tuple[str, tuple[Gpu, ...]] | None:
    try:
        found = values["gpus"]
        return str(found["boot"]), tuple(Gpu(**known_fields(Gpu, row)) for row in found["named"])
    except (KeyError, TypeError):
        return None
