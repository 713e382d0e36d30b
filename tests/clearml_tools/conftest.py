"""A control plane for clearml-serving's own commands."""

from __future__ import annotations

from tests.control_plane.conftest import clearml_environment, clearml_home, server

__all__ = ["clearml_environment", "clearml_home", "server"]
