"""With trusted keys, an endpoint's code is run only if one of them signed it.

The host fetches preprocess.py and runs it. Between the two it is checked here, in a copy that
nobody else can write to: what is run is what was checked, also when the artifact was exchanged in
ClearML after the deploy. Endpoints of other engines are refused whole: their models are pickles.

Tested by tests/bundle/test_signing.py.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Iterator, Mapping
from functools import wraps
from pathlib import Path
from typing import Any

from transformer_serving.contract.errors import ContractError
from transformer_serving.contract.identity import check_preprocess
from transformer_serving.contract.signatures import TrustedKeys, check_signed_preprocess

log = logging.getLogger("transformer_serving.gateway")


def guard(request_class: Any, keys: TrustedKeys | None) -> None:
    """Wrap the host's BasePreprocessRequest. Without keys nothing is changed."""
    if keys is None:
        return
    start, instantiate = request_class.__init__, request_class._instantiate_custom_preprocess_cls
    trusted = keys

    @wraps(start)
    def started(self: Any, model_endpoint: Any, task: Any = None) -> None:
        with _told(model_endpoint):
            if model_endpoint.engine_type != "triton" or not model_endpoint.preprocess_artifact:
                check_signed_preprocess(None, trusted)
        start(self, model_endpoint=model_endpoint, task=task)

    @wraps(instantiate)
    def instantiated(self: Any, task: Any) -> None:
        name = self.model_endpoint.preprocess_artifact
        with tempfile.TemporaryDirectory(prefix="checked-") as folder, _told(self.model_endpoint):
            artifact = _Checked(task.artifacts[name], Path(folder) / "preprocess.py", trusted)
            instantiate(self, _Task({name: artifact}))

    request_class.__init__ = started
    request_class._instantiate_custom_preprocess_cls = instantiated


@contextlib.contextmanager
def _told(endpoint: Any) -> Iterator[None]:
    try:
        yield
    except ContractError as error:
        log.error("endpoint %s is not served: %s", endpoint.serving_url, error)
        raise


class _Task:
    """As much of a ClearML task as the host asks for."""

    def __init__(self, artifacts: Mapping[str, Any]) -> None:
        self.artifacts = artifacts


class _Checked:
    """An artifact whose local copy has been read once, checked, and written where only we write."""

    def __init__(self, artifact: Any, copy: Path, keys: TrustedKeys) -> None:
        self._artifact = artifact
        self._copy = copy
        self._keys = keys
        self.hash = artifact.hash

    def get_local_copy(self, force_download: bool = False, **_: Any) -> str | None:
        """Raises ContractError for a file that no trusted key signed."""
        if force_download or not self._copy.exists():
            path = self._artifact.get_local_copy(
                extract_archive=False, force_download=force_download
            )
            if not path or not Path(path).is_file():
                return None
            raw = Path(path).read_bytes()
            check_signed_preprocess(raw, self._keys)
            check_preprocess(raw)
            self._copy.write_bytes(raw)
        return str(self._copy)
