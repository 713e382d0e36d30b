"""One JSON object a log line, without anything of a request but its id.

Tested by tests/gateway/test_metrics.py.
"""

from __future__ import annotations

import json
import logging
import traceback
from datetime import datetime, timezone

NAME = "transformer_serving"
# What `extra` may put on a line.
_FIELDS = ("request_id", "endpoint", "status", "code", "reference", "count")


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
