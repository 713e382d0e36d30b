"""The ASGI app: `python -m transformer_serving.gateway` serves it, or uvicorn by its name.

Limits, request ids and health are the gateway's; requests to endpoints whose Preprocess is ours
go straight to the host's processor; everything else goes to clearml-serving's app, unmodified,
whose start-up and shutdown events pass through.

Tested by tests/gateway/test_both_ways.py.
"""

from __future__ import annotations

from transformer_serving.gateway.access import read_access
from transformer_serving.gateway.front_door import FrontDoor
from transformer_serving.gateway.host_app import host
from transformer_serving.gateway.keys import keys_of
from transformer_serving.gateway.settings import read_settings

app = FrontDoor(host, read_settings(), keys_of(read_access()))
