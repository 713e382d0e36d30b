"""values.schema.json of the Kubernetes chart: the maps whose names are environment variables.

The names and sentences come from the one table that the compose files are made from.

Tested by tests/kubernetes/test_settings.py.
"""

from __future__ import annotations

import json
from typing import Any

from transformer_serving.contract.worker import tracing
from transformer_serving.desk.compose.variables import CLEARML, STORAGE, TRITON, Variable, settings
from transformer_serving.gateway import settings as gateway_settings

# Of the ClearML section, what goes into a Secret.
KEYS = ("CLEARML_API_ACCESS_KEY", "CLEARML_API_SECRET_KEY")
# The chart mounts this one's file itself: googleSecret.
MOUNTED = "GOOGLE_APPLICATION_CREDENTIALS"
# Of the Triton section; the chart computes the others, or Kubernetes has its own word for them.
OF_TRITON = (
    "TRANSFORMER_SERVING_ENDPOINTS",
    "TRANSFORMER_SERVING_VERSION_COMPATIBLE",
    "TRANSFORMER_SERVING_COMPUTE_CAPABILITY",
    "TRANSFORMER_SERVING_TRITON_EXIT_SECONDS",
    tracing.ENDPOINT.name,
)


def with_variables(schema: str) -> str:
    """The schema's text with the maps as the variables are declared now."""
    document = json.loads(schema)
    document["$defs"] |= {
        "clearml": _strings([row for row in CLEARML.variables if row.name not in KEYS]),
        "credentials": _strings(
            [row for row in CLEARML.variables if row.name in KEYS]
            + [row for row in STORAGE.variables if row.name != MOUNTED]
        ),
        "inferenceSettings": _settings(),
        "tritonSettings": _map(
            {
                row.name: {"description": row.help, "type": ["string", "number"]}
                for row in (*TRITON.variables, *settings().variables)
                if row.name in OF_TRITON
            }
        ),
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _settings() -> dict[str, Any]:
    """Bounds hold for numbers; of text the parts judge themselves, at their start."""
    bounds = {
        row.name: (row.low, row.high) for row in (*gateway_settings.SETTINGS, *tracing.SETTINGS)
    }
    rows: dict[str, Any] = {}
    for row in settings().variables:
        rows[row.name] = {"description": row.help, "type": ["string", "number"]}
        if row.name in bounds:
            low, high = bounds[row.name]
            rows[row.name] |= {"minimum": low, "maximum": high}
    return _map(rows)


def _strings(rows: list[Variable]) -> dict[str, Any]:
    return _map({row.name: {"description": row.help, "type": "string"} for row in rows})


def _map(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": properties}
