"""An endpoint's model as files in the repository, verified; what lies there already is not fetched.

Tested by tests/engine/test_deployment.py and tests/engine/test_service.py.
"""

from __future__ import annotations

import contextlib
import dataclasses

from transformer_serving.engine.controller.control_plane.served import ControlPlane, Served
from transformer_serving.engine.controller.control_plane.verification import verify
from transformer_serving.engine.controller.files.repository import Repository
from transformer_serving.engine.controller.records import ModelRecord, Version
from transformer_serving.engine.controller.served_versions import version_of
from transformer_serving.engine.controller.trust import REFUSALS


def verified_version(
    plane: ControlPlane, repository: Repository, served: Served, record: ModelRecord | None
) -> Version:
    """What the endpoint asks for; its files are staged, or those of the version in service.

    Raises REFUSALS, StorageError, and OSError for a disk that does not do its part.
    """
    # What is asked for again as it is may be broken here.
    known = None
    if record is not None and record.fingerprint != served.fingerprint:
        known = record.current
    if known is not None and _states_its_bundle(known, served):
        with contextlib.suppress(*REFUSALS, OSError):
            found = _verified(plane, repository, served, known.token)
            if found.number == known.number:
                # These bytes are not of the upload that was asked for, where that has others.
                return dataclasses.replace(found, content=known.content)
    token = _staged(plane, repository, served, known)
    try:
        return _verified(plane, repository, served, token)
    except BaseException:
        repository.discard(served.model, token)
        raise


def _states_its_bundle(known: Version, served: Served) -> bool:
    """Whether it is of the same model of the registry, and preprocess.py, which names the bundle by
    the hash of all its parts, says by itself what the files must be: a tag makes them look new.
    """
    stated = known.verified and known.number == known.bundle_version
    return stated and known.model_id == served.model_id and served.content != ""


def _verified(plane: ControlPlane, repository: Repository, served: Served, token: str) -> Version:
    files = repository.files(served.model, token)
    verified = verify(served, files, plane.preprocess(served))
    return version_of(served, verified, token, files)


def _staged(
    plane: ControlPlane, repository: Repository, served: Served, known: Version | None
) -> str:
    """The token of the endpoint's files; those of the version in service when it is the same."""
    if known is not None and not repository.has_files(served.model, known.token):
        known = None
    if known is not None and known.content == served.content:
        return known.token
    with plane.model(served) as copy:
        token = repository.stage(
            served.model, copy.path, served.framework, ours=copy.ours, share=copy.share
        )
    if known is not None and repository.alike(served.model, token, known.token):
        repository.discard(served.model, token)
        return known.token
    return token
