"""values.schema.json of the Kubernetes chart: the maps whose names are environment variables.

The names and sentences come from the one table that the compose files are made from. A template
cannot read the schema: settings.yaml beside it has the names once more.

Tested by tests/kubernetes/test_settings.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from transformer_serving.contract.settings import preprocess as preprocess_settings
from transformer_serving.contract.settings.setting import Setting, TextSetting
from transformer_serving.contract.settings.stop import TRITON_EXIT_SECONDS
from transformer_serving.contract.worker import tracing
from transformer_serving.desk.compose.variables import CLEARML, STORAGE, TRITON, Variable, settings
from transformer_serving.gateway import settings as gateway_settings

# Of the ClearML section, what goes into a Secret.
KEYS = ("CLEARML_API_ACCESS_KEY", "CLEARML_API_SECRET_KEY")
# An address without a scheme is none to ClearML's SDK, and to the network policies of no port.
ADDRESS = "^(https?://[^\\s/].*)?$"
# Files may lie in any store that the SDK reads, such as s3:// or gs://.
STORE = "^([a-z][a-z0-9+.-]*://\\S.*)?$"
# The chart mounts this one's file itself: googleSecret.
MOUNTED = "GOOGLE_APPLICATION_CREDENTIALS"
# Of the Triton section; the chart computes the others, or Kubernetes has its own word for them.
OF_TRITON = (
    "TRANSFORMER_SERVING_ENDPOINTS",
    "TRANSFORMER_SERVING_VERSION_COMPATIBLE",
    "TRANSFORMER_SERVING_COMPUTE_CAPABILITY",
    TRITON_EXIT_SECONDS.name,
    tracing.ENDPOINT.name,
)
DECLARED: dict[str, Setting | TextSetting] = {
    row.name: row
    for row in (
        *preprocess_settings.SETTINGS,
        *gateway_settings.SETTINGS,
        *tracing.SETTINGS,
        TRITON_EXIT_SECONDS,
    )
}


def with_variables(schema: str) -> str:
    """The schema's text with the maps as the variables are declared now."""
    document = json.loads(schema)
    inference, triton = _rows()
    document["$defs"] |= {
        "clearml": _strings([row for row in CLEARML.variables if row.name not in KEYS]),
        "credentials": _strings(
            [row for row in CLEARML.variables if row.name in KEYS]
            + [row for row in STORAGE.variables if row.name != MOUNTED]
        ),
        "inferenceSettings": _settings(inference),
        "tritonSettings": _settings(triton),
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def names_of_settings() -> str:
    """What `extraEnv` of each part may not give, as YAML: the pods' grace, Service and policies are
    made from `settings`. A receiver of traces is no such name: its address may be the node's own,
    which a variable of extraEnv alone can be put into."""
    text = "# Made by `make example-env`: the names that extraEnv of a part does not take.\n"
    for part, rows in zip(("inference", "triton"), _rows(), strict=True):
        names = [row.name for row in rows if row.name != tracing.ENDPOINT.name]
        text += f"{part}:\n" + "".join(f"  - {name}\n" for name in names)
    return text


def _rows() -> tuple[list[Variable], list[Variable]]:
    """The settings of inference and of Triton."""
    inference = list(settings().variables)
    return inference, [row for row in (*TRITON.variables, *inference) if row.name in OF_TRITON]


def _settings(rows: Iterable[Variable]) -> dict[str, Any]:
    return _map({row.name: {"description": row.help, **_values(row.name)} for row in rows})


def _values(name: str) -> dict[str, Any]:
    """What a setting takes. Of a text that is a number only the form is held to, here; its part
    says the rest at its start, where a rollout keeps the pods that are there."""
    row = DECLARED.get(name)
    if isinstance(row, Setting):
        kind = "integer" if row.is_whole else "number"
        bounds = {"minimum": row.low, "maximum": row.high}
        return {"type": ["string", kind], **bounds, "pattern": row.pattern}
    if isinstance(row, TextSetting):
        return {"type": "string", **({"enum": ["", *row.choices]} if row.choices else {})}
    return {"type": ["string", "number"]}


def _strings(rows: list[Variable]) -> dict[str, Any]:
    return _map({row.name: {"description": row.help, **_text(row.name)} for row in rows})


def _text(name: str) -> dict[str, Any]:
    if not name.endswith("_HOST"):
        return {"type": "string"}
    return {"type": "string", "pattern": STORE if name == "CLEARML_FILES_HOST" else ADDRESS}


def _map(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": properties}
