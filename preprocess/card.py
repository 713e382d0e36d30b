"""What an endpoint says of itself, for lists, metadata and pages: values that JSON can carry.

Tested by tests/gateway/test_cards.py.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from preprocess.dialects import OPERATIONS
from preprocess.dialects.operation import Task
from transformer_serving.contract.endpoint import Endpoint


def card_of(endpoint: Endpoint, task: Task) -> dict[str, Any]:
    """Task, body, parameters, limits, and a body that it can answer where the bundle has one.

    `fields` are those of the body with what they take, `shares_second` whether one text of the
    second serves all of the first, `operations` what can be asked of it in other dialects.
    """
    form = task.form
    fields = [field for field in (form.first, form.second) if field is not None]
    return {
        "task": endpoint.task,
        "bundle_version": endpoint.bundle_version,
        "bundle_hash": endpoint.bundle_hash,
        "fields": [{**asdict(field), "wanted": field.wanted} for field in fields],
        "parameters": [
            {
                "name": row.name,
                "wanted": row.kind.wanted,
                "default": row.default,
                "required": row.required,
                "schema": dict(row.kind.schema),
            }
            for row in task.parameters
        ],
        "shares_second": form.shares_second,
        "beside": list(form.beside),
        "limits": asdict(endpoint.limits),
        "max_length": endpoint.tokens.max_length,
        "truncate": endpoint.tokens.truncate,
        "labels": None if endpoint.classification is None else list(endpoint.classification.labels),
        "dimensions": None if endpoint.embedding is None else endpoint.embedding.dimensions,
        "pooling": None if endpoint.embedding is None else endpoint.embedding.pooling,
        "golden": endpoint.golden,
        "operations": sorted(row.name for row in OPERATIONS.values() if row.can_be_asked(endpoint)),
    }
