"""One JSON object a log line, without anything of a request but its id and its trace's.

docs/observability.md has the fields.

Tested by tests/gateway/test_request_lines.py and tests/gateway/test_metrics.py.
"""

from __future__ import annotations

import json
import logging
import traceback
from datetime import datetime, timezone

from transformer_serving.contract.worker.request_context import (
    current_endpoint,
    current_key,
    current_request,
)
from transformer_serving.contract.worker.trace_context import read_traceparent

NAME = "transformer_serving"
# What `extra` may put on a line.
_FIELDS = ("request_id", "endpoint", "status", "code", "reference", "count", "ms", "trace_id")


class JsonLines(logging.Formatter):
    """time, level, logger, message and the extra fields; never an exception's text."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(
                timespec="milliseconds"
            ),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name in _FIELDS:
            value = getattr(record, name, None)
            if value is not None:
                line[name] = value
        # Work for many runs in the context of the first of them: its key is not on others' lines.
        context = current_request.get()
        if context is not None and line.get("request_id") == context[0]:
            trace = read_traceparent(context[1])
            known = (
                ("endpoint", current_endpoint.get()),
                ("key", current_key.get()),
                ("trace_id", None if trace is None else trace.trace_id),
            )
            for name, found in known:
                if found is not None:
                    line.setdefault(name, found)
        return json.dumps(line)


def trace_of(error: BaseException) -> str:
    """The exception's type and trace without its text, which may quote the request."""
    frames = "".join(traceback.format_tb(error.__traceback__))
    return f"{type(error).__name__}\n{frames}".rstrip()


def write_json_lines() -> None:
    """Let our loggers write JSON lines to stderr, unless somebody has set logging up already."""
    logger = logging.getLogger(NAME)
    if logger.hasHandlers():
        return
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
