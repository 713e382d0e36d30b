"""With trusted keys, an endpoint's code is run only if one of them signed it.

The host fetches preprocess.py and runs it. Between the two it is checked here, in a copy that
nobody else can write to: what is run is what was checked, also when the artifact was exchanged in
ClearML after the deploy. Endpoints of other engines are refused whole: their models are pickles.

Tested by tests/bundle/test_signing.py and tests/gateway/test_code_files.py.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Iterator
from functools import wraps
from pathlib import Path
from typing import Any

from transformer_serving.contract.errors import ContractError
from transformer_serving.contract.identity import check_preprocess
from transformer_serving.contract.signatures import TrustedKeys, check_signed_preprocess
from transformer_serving.gateway.host.code_copy import (
    CodeCopy,
    CodeCopyError,
    TaskWithCopy,
    local_file,
)
from transformer_serving.gateway.host.code_files import artifact_of

log = logging.getLogger("transformer_serving.gateway")


def guard(request_class: Any, keys: TrustedKeys | None) -> None:
    """Wrap the host's BasePreprocessRequest. Without keys nothing is changed."""
    if keys is None:
        return
    start, trusted = request_class.__init__, keys

    @wraps(start)
    def started(self: Any, model_endpoint: Any, task: Any = None) -> None:
        # Here, and not where it is taken: there the host makes a ValueError of whatever is raised.
        artifact = artifact_of(task, model_endpoint)
        with contextlib.ExitStack() as stack:
            with _told(model_endpoint):
                if model_endpoint.engine_type != "triton" or artifact is None:
                    check_signed_preprocess(None, trusted)
                copy = stack.enter_context(_checked(artifact, trusted))
            given = TaskWithCopy(model_endpoint.preprocess_artifact, artifact.hash, copy)
            start(self, model_endpoint=model_endpoint, task=given)

    request_class.__init__ = started


@contextlib.contextmanager
def _told(endpoint: Any) -> Iterator[None]:
    try:
        yield
    except ContractError as error:
        log.error("endpoint %s is not served: %s", endpoint.serving_url, error)
        raise


@contextlib.contextmanager
def _checked(artifact: Any, keys: TrustedKeys) -> Iterator[CodeCopy]:
    """What has been read of it once and checked, written where only we write.

    Raises ContractError for a file that no trusted key signed, and CodeCopyError where it cannot be
    read, or there is no room for it.
    """
    fetched = local_file(artifact)
    try:
        raw = fetched.read_bytes()
    except OSError as error:
        raise CodeCopyError(f"its copy {fetched} cannot be read ({error.strerror})") from None
    check_signed_preprocess(raw, keys)
    check_preprocess(raw)
    with contextlib.ExitStack() as stack:
        try:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="checked-"))
            file = Path(folder) / "preprocess.py"
            file.write_bytes(raw)
        except OSError as error:
            place = tempfile.tempdir or "a temporary folder"
            why = f"it cannot be written into {place} to be run from there ({error.strerror})"
            raise CodeCopyError(why) from None
        yield CodeCopy(str(file), str(file))
