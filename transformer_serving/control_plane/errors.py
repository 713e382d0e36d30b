"""The closed set of failures a caller can meet, with the real server's codes and subcodes.

Tested by tests/control_plane/test_api.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class ApiFailure(Enum):
    """Status, subcode and text of each failure, as the real server words them.

    None is above 500: the SDK sends what gets such a status again, without a pause and without end
    (clearml/backend_interface/base.py).
    """

    NOT_SUPPORTED = (400, 1, "endpoint is not supported")
    MISSING_FIELDS = (400, 11, "missing required fields")
    VALIDATION = (400, 12, "validation error")
    FIELD_VALUE = (400, 16, "invalid value for fields")
    BATCH_EMPTY = (400, 17, "batch request contains no items")
    FIELD_TYPE = (400, 20, "invalid type for fields")
    REGEX = (400, 21, "malformed regular expression")
    TASK_ID = (400, 101, "invalid task id")
    TASK_STATUS = (400, 110, "invalid task status")
    TASK_NOT_DELETABLE = (400, 123, "task cannot be deleted")
    EVENTS_NOT_ADDED = (400, 131, "events not added")
    MODEL_ID = (400, 201, "invalid model id")
    MODEL_READY = (400, 203, "model is ready")
    MODEL_IN_USE = (400, 205, "model is used by tasks")
    PROJECT_ID = (400, 401, "invalid project id")
    PROJECT_HAS_TASKS = (400, 402, "project has associated tasks")
    PROJECT_HAS_MODELS = (400, 405, "project has associated models")
    PROJECT_NAME = (400, 407, "invalid project name")
    PROJECT_LOCATION = (400, 408, "cannot update project location")
    NOT_UNIQUE = (400, 801, "value combination already exists")
    SCROLL_ID = (400, 1104, "Invalid scroll id")
    AUTH_TYPE = (401, 10, "unauthorized (bad authentication header type)")
    NO_CREDENTIALS = (401, 20, "unauthorized (missing credentials)")
    BAD_CREDENTIALS = (401, 21, "unauthorized (malformed credentials)")
    WRONG_CREDENTIALS = (401, 22, "unauthorized (invalid credentials)")
    TOKEN = (401, 30, "invalid token")
    FILE_NOT_FOUND = (404, 0, "file not found")
    TOO_LARGE = (413, 0, "request body too large")
    CONTENT_ENCODING = (415, 0, "content encoding is not supported")
    RANGE = (416, 0, "range not satisfiable")
    GENERAL = (500, 0, "general server error")
    STORAGE = (500, 100, "general data error")
    DISK_FULL = (500, 4, "insufficient disk space")

    @property
    def status(self) -> int:
        return self.value[0]

    @property
    def subcode(self) -> int:
        return self.value[1]


@dataclass
class ApiError(Exception):
    """A failure with what the caller needs to mend it; never holds the caller's values."""

    failure: ApiFailure
    detail: str = ""
    data: dict[str, object] = field(default_factory=dict)

    def __str__(self) -> str:
        text = self.failure.value[2]
        return f"{text}: {self.detail}" if self.detail else text
