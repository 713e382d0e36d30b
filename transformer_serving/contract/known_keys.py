"""The keys of a key file as it is now: the gateway asks for them, and the controller's figures.

Tested by tests/gateway/test_keys.py and tests/engine/test_metrics_server.py.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Mapping
from pathlib import Path

from transformer_serving.contract.errors import ContractError, ServingError
from transformer_serving.contract.file_stamp import Stamp, stamp_of
from transformer_serving.contract.keys import KEY_LENGTH, Key, parse_keys, read_key_file, read_keys

_LOOK_EVERY_S = 1.0


class KnownKeys:
    """The keys as the file last had them; it is looked at once a second, when requests come."""

    def __init__(self, path: Path, log: logging.Logger) -> None:
        """Without any key yet, as for a file that is wrong."""
        self._path = path
        self._log = log
        self._seen: Stamp | None = None
        self._by_digest: dict[bytes, Key] = {}
        self._fault: str | None = None
        self._look_at = 0.0

    def read(self) -> None:
        """Raises ContractError for a file that is not there or wrong."""
        self._seen = stamp_of(self._path)
        self._by_digest = _by_digest(read_keys(self._path))
        self._look_at = time.monotonic() + _LOOK_EVERY_S

    def key_of(self, headers: Mapping[bytes, bytes]) -> Key:
        """The key that came. Raises ServingError (401)."""
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + _LOOK_EVERY_S
            self._look()
        given = _given(headers)
        if given is None:
            raise ServingError(
                "unauthorized",
                "a key is needed: send it as 'Authorization: Bearer KEY' or as 'x-api-key: KEY'",
            )
        # Found by its hash: how long that takes says nothing of the keys.
        digest = hashlib.sha256(given).digest() if len(given) == KEY_LENGTH else b""
        key = self._by_digest.get(digest)
        if key is None:
            raise ServingError("unauthorized", "the key is not known here, or was removed")
        return key

    def _look(self) -> None:
        """Read the file again if it changed. While it is wrong, the last good keys hold."""
        seen = stamp_of(self._path)
        if seen is not None and seen == self._seen:
            return
        self._seen = seen
        try:
            keys = parse_keys(read_key_file(self._path), str(self._path))
        except OSError as error:
            # It may be readable the next time, without having changed.
            self._seen = None
            self._tell(f"{self._path}: cannot be read: {error.strerror}")
        except ContractError as error:
            self._tell(str(error))
        else:
            self._by_digest = _by_digest(keys)
            self._fault = None
            self._log.info("%s was read again, it has %d keys", self._path, len(keys))

    def _tell(self, fault: str) -> None:
        """Once, as long as it stays this one."""
        if fault != self._fault:
            self._fault = fault
            self._log.error("the keys are as they were before: %s", fault)


def forbidden() -> ServingError:
    return ServingError("forbidden", "the key may not ask this; another one may")


def _given(headers: Mapping[bytes, bytes]) -> bytes | None:
    key = headers.get(b"x-api-key")
    if key is not None:
        return key.strip()
    scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else None


def _by_digest(keys: tuple[Key, ...]) -> dict[bytes, Key]:
    return {bytes.fromhex(key.sha256): key for key in keys}
