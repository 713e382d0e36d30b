"""The environment of the stack that is tuned on."""

from __future__ import annotations

from dataclasses import replace

from tests.tune.test_knobs import USUAL
from transformer_serving.contract.signatures import TRUSTED_KEYS_VARIABLE
from transformer_serving.desk.local.record import STATE_VARIABLE
from transformer_serving.desk.tune.own_stack import environment_of
from transformer_serving.gateway.access import ACCESS


def test_it_has_the_callers_limits_and_none_of_the_served_stacks_doors() -> None:
    kept = {
        "PATH": "/bin",
        "TRANSFORMER_SERVING_TRANSPORT": "grpc",
        "TRANSFORMER_SERVING_MAX_BODY_BYTES": "5",
    }
    doors = [row.name for row in ACCESS]
    others = [
        TRUSTED_KEYS_VARIABLE, STATE_VARIABLE, "TRANSFORMER_SERVING_GRPC_PORT",
        "TRANSFORMER_SERVING_TRITON_HTTP", "CLEARML_API_HOST", "PROMETHEUS_MULTIPROC_DIR",
        "OTEL_EXPORTER_OTLP_ENDPOINT",
    ]  # fmt: skip
    given = {
        **kept,
        **dict.fromkeys((*doors, *others), "served"),
        "CLEARML_SERVING_NUM_PROCESS": "8",
    }
    assert environment_of(replace(USUAL, calls=3, workers=2), given) == {
        **kept,
        "TRANSFORMER_SERVING_CALLS_IN_FLIGHT": "3",
        "CLEARML_SERVING_NUM_PROCESS": "2",
    }
