"""The schemas of the SDK's own requests are checked once each, not at every request.

Before it sends a request the SDK has jsonschema hold it against a schema, and jsonschema first
holds the schema against that of schemas: 4 of the 6 ms of processor time that some calls take.
Workers and the controller make one or two calls a second for as long as they live, and the schemas
are constants of the SDK's classes.

Tested by tests/contract/test_sdk_schemas.py.
"""

from __future__ import annotations

import importlib
from functools import wraps
from typing import Any


def check_schemas_once() -> None:
    """From now on in this process; once is enough. Requests are held against them as before."""
    validator: Any = importlib.import_module(
        "clearml.backend_api.session.datamodel"
    )._CustomValidator
    check = validator.check_schema
    if hasattr(check, "__wrapped__"):
        return
    # By identity, as a dict has no hash; held, so that no other one ever gets its number.
    checked: dict[int, Any] = {}

    @wraps(check)
    def check_schema(schema: Any, *arguments: Any, **named: Any) -> None:
        if id(schema) not in checked:
            check(schema, *arguments, **named)
            checked[id(schema)] = schema

    validator.check_schema = staticmethod(check_schema)
