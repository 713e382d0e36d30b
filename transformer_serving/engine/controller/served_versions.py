"""The versions that a model's record has: of one endpoint's bundle, together, and in grace.

Tested by tests/engine/test_deployment.py and tests/engine/test_service.py.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path

from transformer_serving.contract.gate.refusals import RULES
from transformer_serving.engine.controller.control_plane.served import Served
from transformer_serving.engine.controller.control_plane.verification import Verified
from transformer_serving.engine.controller.files.shared_config import shared
from transformer_serving.engine.controller.proving.prover import subject_of
from transformer_serving.engine.controller.records import ModelRecord, Version
from transformer_serving.engine.endpoint_config import backend_of
from transformer_serving.engine.model_config import ModelConfig, from_text, to_text, with_versions

# One old version serves on while workers and controller notice the update; more only cost memory.
_IN_GRACE = 1


def version_of(served: Served, verified: Verified, token: str, files: Path) -> Version:
    config = with_versions(verified.config, served.model, [verified.number])
    return Version(
        number=verified.number,
        token=token,
        config=to_text(config),
        backend=backend_of(config),
        bundle_version=verified.bundle_version,
        verified=verified.verified,
        model_id=served.model_id,
        content=served.content,
        since=time.time(),
        subject=subject_of(files, config) if verified.verified else "",
        rules=RULES,
        signed_by=verified.signed_by,
    )


def reduced(record: ModelRecord, kept: tuple[Version, ...]) -> ModelRecord:
    """The record with these of its versions only."""
    if kept == record.versions:
        return record
    config = config_of_all(kept) or from_text(record.served_config)
    return dataclasses.replace(
        record, versions=kept, served_config=served_config(record.model, config, kept)
    )


def in_grace(record: ModelRecord, new: Version, now: float, grace_s: float) -> tuple[Version, ...]:
    """The versions that serve on beside the new one, the newest first."""
    others = [version for version in record.kept(now) if version.number != new.number]
    return tuple(
        dataclasses.replace(version, drop_at=version.drop_at or now + grace_s)
        for version in others[:_IN_GRACE]
    )


def config_of_all(versions: Sequence[Version]) -> ModelConfig | None:
    return shared(
        from_text(versions[0].config), [from_text(version.config) for version in versions[1:]]
    )


def served_config(model: str, config: ModelConfig, versions: Sequence[Version]) -> str:
    return to_text(with_versions(config, model, [version.number for version in versions]))
