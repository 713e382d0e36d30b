"""The ASGI app: serve it with `uvicorn gateway.app:app` or `python -m gateway`.

Limits, request ids and health are the gateway's; requests to endpoints whose Preprocess is ours
go straight to the host's processor; everything else goes to clearml-serving's app, unmodified,
whose start-up and shutdown events pass through.
"""

from __future__ import annotations

from gateway.front_door import FrontDoor
from gateway.host import host
from gateway.openapi import describe_errors
from gateway.settings import read_settings

describe_errors(host.app)
app = FrontDoor(host, read_settings())
