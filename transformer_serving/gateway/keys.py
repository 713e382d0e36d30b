"""Who may ask what, by the keys of a file, before anything of a body is read."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Mapping
from pathlib import Path

from transformer_serving.contract.errors import ContractError, ServingError
from transformer_serving.contract.keys import KEY_LENGTH, Key, parse_keys, read_key_file, read_keys
from transformer_serving.gateway.access import Access
from transformer_serving.gateway.health import OF_AN_ENDPOINT
from transformer_serving.gateway.metrics import PATH as METRICS
from transformer_serving.gateway.short_way import RequestedEndpoint
from transformer_serving.gateway.watched_files import stamp_of

log = logging.getLogger("transformer_serving.gateway")

# For balancers and kubelets, which bring none; they name no endpoint.
WITHOUT_KEY = frozenset({"/health/live", "/health/ready", "/v2/health/live", "/v2/health/ready"})
_LOOK_EVERY_S = 1.0


class Keys:
    """The keys as the file last had them; it is looked at once a second, when requests come."""

    def __init__(self, path: Path) -> None:
        """Raises ContractError for a file that is not there or wrong."""
        self._path = path
        self._seen = stamp_of(path)
        self._by_digest = _by_digest(read_keys(path))
        self._fault: str | None = None
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
            log.info("%s was read again, it has %d keys", self._path, len(keys))

    def _tell(self, fault: str) -> None:
        """Once, as long as it stays this one."""
        if fault != self._fault:
            self._fault = fault
            log.error("the keys are as they were before: %s", fault)


def keys_of(access: Access) -> Keys | None:
    """None where no file is named. Raises ContractError for one that is not there or wrong."""
    return None if access.keys_file is None else Keys(access.keys_file)


def check_may_ask(key: Key, path: str, target: RequestedEndpoint | None) -> None:
    """`path` as the front door goes by it. Raises ServingError (403)."""
    if not _may_ask(key, path, target):
        raise ServingError("forbidden", "the key may not ask this; another one may")


def _may_ask(key: Key, path: str, target: RequestedEndpoint | None) -> bool:
    if key.metrics or path == METRICS:
        return key.metrics and path == METRICS
    if key.endpoints is None:
        return True
    if target is not None:
        return key.admits(endpoint_url(target))
    if path.startswith(OF_AN_ENDPOINT):
        return key.admits(path.removeprefix(OF_AN_ENDPOINT).rstrip("/"))
    return False


def endpoint_url(target: RequestedEndpoint) -> str:
    """As ModelRequestProcessor._normalize_endpoint_url makes it."""
    return f"{target.model.rstrip('/')}/{target.version or ''}".rstrip("/")


def _given(headers: Mapping[bytes, bytes]) -> bytes | None:
    key = headers.get(b"x-api-key")
    if key is not None:
        return key.strip()
    scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else None


def _by_digest(keys: tuple[Key, ...]) -> dict[bytes, Key]:
    return {bytes.fromhex(key.sha256): key for key in keys}
