"""clearml-serving's own app, unmodified, imported without the frameworks it would drag along."""

from __future__ import annotations

import importlib
from typing import Any

from contract.hidden_frameworks import hidden_frameworks
from gateway.host_faults import fence

with hidden_frameworks():
    host: Any = importlib.import_module("clearml_serving.serving.main")
fence(host.ModelRequestProcessor)
