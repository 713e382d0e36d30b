"""Where the control plane listens, keeps its data, and whom it lets in.

Tested by tests/control_plane/test_server.py.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

ACCESS_KEY_VARIABLE = "TRANSFORMER_SERVING_ACCESS_KEY"
SECRET_KEY_VARIABLE = "TRANSFORMER_SERVING_SECRET_KEY"


class SettingsError(ValueError):
    """A setting is missing or unusable; the message says which and what to do."""


@dataclass(frozen=True)
class ControlPlaneSettings:
    """Everything `create_app` needs to know."""

    data: Path
    access_key: str
    secret_key: str = field(repr=False)
    host: str = "127.0.0.1"
    port: int = 8008
    max_api_body: int = 64 * 1024 * 1024
    max_api_bodies: int = 128 * 1024 * 1024  # of all calls together
    api_body_seconds: float = 60.0

    def __post_init__(self) -> None:
        for name, value in (
            (ACCESS_KEY_VARIABLE, self.access_key),
            (SECRET_KEY_VARIABLE, self.secret_key),
        ):
            if not value:
                raise SettingsError(f"{name} is empty: set it to the key the ClearML clients use")


def settings_from_environment(
    data: Path, host: str, port: int, environment: Mapping[str, str] = os.environ
) -> ControlPlaneSettings:
    """Keys come from the environment only: a command line is readable by every local user."""
    return ControlPlaneSettings(
        data=data,
        access_key=environment.get(ACCESS_KEY_VARIABLE, ""),
        secret_key=environment.get(SECRET_KEY_VARIABLE, ""),
        host=host,
        port=port,
    )
