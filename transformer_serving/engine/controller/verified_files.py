"""An endpoint's model as files in the repository, verified; what lies there already is not fetched.

Tested by tests/engine/test_deployment.py and tests/engine/test_service.py.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence

from transformer_serving.engine.controller.control_plane.served import ControlPlane, Served
from transformer_serving.engine.controller.control_plane.verification import verify
from transformer_serving.engine.controller.files.repository import Repository
from transformer_serving.engine.controller.records import ModelRecord, Version
from transformer_serving.engine.controller.served_versions import version_of
from transformer_serving.engine.controller.trust import REFUSALS


def verified_version(
    plane: ControlPlane, repository: Repository, served: Served, record: ModelRecord | None
) -> Version:
    """What the endpoint asks for; its files are staged, or those of a version that is loaded: the
    one in service, or the one before it, which a rollback within its grace asks for again.

    Raises REFUSALS, StorageError, and OSError for a disk that does not do its part.
    """
    known: tuple[Version, ...] = ()
    # What is asked for again as it is may be broken here.
    if record is not None and record.fingerprint != served.fingerprint:
        known = record.versions
    for one in known:
        if _states_its_bundle(one, served):
            with contextlib.suppress(*REFUSALS, OSError):
                found = _verified(plane, repository, served, one.token)
                if found.number == one.number:
                    # These bytes are not of the upload that was asked for, where that has others.
                    return dataclasses.replace(found, content=one.content)
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
    plane: ControlPlane, repository: Repository, served: Served, known: Sequence[Version]
) -> str:
    """The token of the endpoint's files; that of the `known` version which has the same."""
    known = [one for one in known if repository.has_files(served.model, one.token)]
    for one in known:
        if one.content == served.content:
            return one.token
    with plane.model(served) as copy:
        token = repository.stage(
            served.model, copy.path, served.framework, ours=copy.ours, share=copy.share
        )
    for one in known:
        if repository.alike(served.model, token, one.token):
            repository.discard(served.model, token)
            return one.token
    return token
