"""A control plane for what the desk writes into ClearML."""

from __future__ import annotations

from tests.control_plane.conftest import clearml_environment, clearml_home, server

__all__ = ["clearml_environment", "clearml_home", "server"]
