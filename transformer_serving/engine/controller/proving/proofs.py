"""The proofs that were passed on this machine, in a file beside the state: a restart costs none."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from transformer_serving.contract.known_fields import known_fields
from transformer_serving.contract.replacement import replace_file

_log = logging.getLogger(__name__)
# Far above what one Triton serves; the oldest go first.
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
        self._passed = {row.key: row for row in _read(path)}

    def get(self, key: str) -> Passed | None:
        with self._lock:
            return self._passed.get(key)

    def add(self, row: Passed) -> None:
        """A file that cannot be written costs the next start a proof, and nothing now."""
        with self._lock:
            self._passed.pop(row.key, None)
            self._passed[row.key] = row
            for key in list(self._passed)[:-MOST]:
                del self._passed[key]
            try:
                self._write()
            except OSError as error:
                _log.warning("proofs are not kept: %s: %s", self._path, error.strerror)

    def _write(self) -> None:
        rows = [asdict(row) for row in self._passed.values()]
        replace_file(self._path, json.dumps({"passed": rows}, indent=1) + "\n", durable=True)


def _read(path: Path) -> Iterator[Passed]:
    try:
        found = json.loads(path.read_text("utf-8"))["passed"]
        rows = [Passed(**known_fields(Passed, row)) for row in found]
    except FileNotFoundError:
        return
    except (OSError, ValueError, KeyError, TypeError):
        _log.error("proofs in %s are not readable; every bundle is proven again", path)
        return
    yield from rows[-MOST:]
