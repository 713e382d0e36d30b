"""Who may ask what, by the keys of a file, before anything of a body is read."""

from __future__ import annotations

import logging
from pathlib import Path

from transformer_serving.contract.keys import Key
from transformer_serving.contract.known_keys import KnownKeys, forbidden
from transformer_serving.gateway.access import Access
from transformer_serving.gateway.figures.metrics import PATH as METRICS
from transformer_serving.gateway.health import OF_AN_ENDPOINT, PLAIN
from transformer_serving.gateway.requested_endpoint import RequestedEndpoint

log = logging.getLogger("transformer_serving.gateway")

# For balancers and kubelets, which bring none; they name no endpoint.
WITHOUT_KEY = frozenset(
    {PLAIN, "/health/live", "/health/ready", "/v2/health/live", "/v2/health/ready"}
)


class Keys(KnownKeys):
    """The gateway's, which does not start without them."""

    def __init__(self, path: Path) -> None:
        """Raises ContractError for a file that is not there or wrong."""
        super().__init__(path, log)
        self.read()


def keys_of(access: Access) -> Keys | None:
    """None where no file is named. Raises ContractError for one that is not there or wrong."""
    return None if access.keys_file is None else Keys(access.keys_file)


def check_may_ask(key: Key, path: str, target: RequestedEndpoint | None) -> None:
    """`path` as the front door goes by it. Raises ServingError (403)."""
    if not _may_ask(key, path, target):
        raise forbidden()


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
