"""clearml-serving's own app, unmodified, imported without the frameworks it would drag along.

Tested by tests/gateway/test_both_ways.py and tests/gateway/test_host_task.py.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

from transformer_serving.contract.signatures import read_trusted_keys
from transformer_serving.contract.worker.hidden_frameworks import hidden_frameworks
from transformer_serving.contract.worker.parsed_sections import parse_sections_once
from transformer_serving.contract.worker.sdk_defaults import parse_defaults_without_comments
from transformer_serving.contract.worker.sdk_patience import wait_between_tries
from transformer_serving.contract.worker.sdk_schemas import check_schemas_once
from transformer_serving.gateway.figures.file import keep_figures_with_room
from transformer_serving.gateway.figures.metrics import tell_syncs
from transformer_serving.gateway.host.code_files import fetch_beside
from transformer_serving.gateway.host.errors import answer_failed_calls
from transformer_serving.gateway.host.faults import fence
from transformer_serving.gateway.host.preprocess_gate import guard
from transformer_serving.gateway.host.statistics import bound_statistics
from transformer_serving.gateway.host.task import lean_task
from transformer_serving.gateway.rollout.figures import tell_rollouts

# FastAPI's pages, whose scripts come from the internet; gateway/page/ has others.
_FROM_ELSEWHERE = ("/docs", "/docs/oauth2-redirect", "/redoc")
# The SDK gives processes of one user that start at once the same task, and with it one file lock:
# workers then waited for each other without end.
os.environ.setdefault("CLEARML_TASK_NO_REUSE", "1")
# The reporter that it forks holds the worker's port open, for half a minute after a worker's kill:
# longer than the next gateway waits for it.
os.environ.setdefault("CLEARML_BKG_THREAD_REPORT", "1")
keep_figures_with_room()
with hidden_frameworks(), lean_task(importlib.import_module("clearml").Task):
    parse_defaults_without_comments()
    check_schemas_once()
    wait_between_tries()
    host: Any = importlib.import_module("clearml_serving.serving.main")
host.app.router.routes[:] = [
    route for route in host.app.router.routes if getattr(route, "path", "") not in _FROM_ELSEWHERE
]
parse_sections_once()
answer_failed_calls(host)
fence(host.ModelRequestProcessor)
bound_statistics(host.ModelRequestProcessor)
tell_syncs(host.ModelRequestProcessor)
tell_rollouts(host.ModelRequestProcessor)
_engines: Any = importlib.import_module("clearml_serving.serving.preprocess_service")
guard(_engines.BasePreprocessRequest, read_trusted_keys(os.environ))
fetch_beside(host.ModelRequestProcessor, _engines.BasePreprocessRequest)
