"""The statuses of gRPC for our errors, and the error of an answer.

Tested by tests/gateway/test_grpc.py.
"""

from __future__ import annotations

import grpc
import orjson

_CODE = grpc.StatusCode
# By our code of the error.
STATUSES = {
    "malformed_body": _CODE.INVALID_ARGUMENT,
    "invalid_field": _CODE.INVALID_ARGUMENT,
    "unauthorized": _CODE.UNAUTHENTICATED,
    "forbidden": _CODE.PERMISSION_DENIED,
    "unknown_endpoint": _CODE.NOT_FOUND,
    "too_large": _CODE.OUT_OF_RANGE,
    "impossible": _CODE.FAILED_PRECONDITION,
    "refused": _CODE.FAILED_PRECONDITION,
    "left": _CODE.CANCELLED,
    "overloaded": _CODE.RESOURCE_EXHAUSTED,
    "unavailable": _CODE.UNAVAILABLE,
    "deadline": _CODE.DEADLINE_EXCEEDED,
    "engine_failed": _CODE.INTERNAL,
    "internal": _CODE.INTERNAL,
}


def status_of(body: bytes) -> tuple[grpc.StatusCode, str]:
    """Of an answer in the dialect of V2 that is an error."""
    try:
        told = orjson.loads(body)
        return STATUSES[told["code"]], told["error"]
    except (ValueError, KeyError, TypeError):
        return _CODE.UNKNOWN, "the gateway gave no answer; see the worker's log"
