"""The chart's environment variables against the tables that they are declared in."""

from __future__ import annotations

import json
import re
from typing import Any

import helm_python
import pytest
import yaml

from tests.kubernetes.chart import CHART, CLEARML, LOCAL, merged, one, rendered
from tests.kubernetes.test_schemas import EVERYTHING, TLS
from tests.test_compose_files import service
from transformer_serving.contract.settings import preprocess as preprocess_settings
from transformer_serving.contract.worker import tracing
from transformer_serving.desk.compose.__main__ import CHART_SCHEMA, CHART_SETTINGS
from transformer_serving.desk.compose.chart import names_of_settings, with_variables
from transformer_serving.desk.compose.variables import TRACES, variables
from transformer_serving.desk.http import KEY_VARIABLE
from transformer_serving.gateway import settings as gateway_settings
from transformer_serving.gateway.access import ACCESS

# Of compose's containers, what a pod has no use for.
NOT_IN_A_POD = {
    "CLEARML_INFERENCE_TASK_ID": "a task of one container; pods come and go",
    "CLEARML_DEFAULT_KAFKA_SERVE_URL": "inference.extraEnv takes it, with an image that can",
    "CLEARML_EXTRA_PYTHON_PACKAGES": "no pip at a pod's start: an image of your own",
    "CLEARML_API_ACCESS_KEY_FILE": "a Secret is variables here",
    "CLEARML_API_SECRET_KEY_FILE": "a Secret is variables here",
    "TRANSFORMER_SERVING_LOCAL_API": "a release's files are of its own control plane only",
    **{row.name: "extraEnv takes it, headers from a Secret" for row in TRACES.variables},
    "OTEL_RESOURCE_ATTRIBUTES": "extraEnv takes it",
    "TRANSFORMER_SERVING_STOP_SECONDS": "a pod's grace is computed from the other settings",
    "TRANSFORMER_SERVING_PUBLISHED": "what a Service reaches is never this machine alone",
}


def given(*layers: dict[str, Any], part: str) -> set[str]:
    """The names that a part's pods get from the chart."""
    objects = rendered(*layers)
    names = set(one(objects, "ConfigMap", f"demo-{part}")["data"])
    secrets = [each for each in objects if each["kind"] == "Secret"]
    return names | {name for each in secrets for name in each["data"]}


def test_the_schema_is_as_it_is_made_now() -> None:
    """`make example-env` renews it."""
    text = CHART_SCHEMA.read_text("utf-8")
    assert text == with_variables(text)
    assert CHART_SETTINGS.read_text("utf-8") == names_of_settings()


def test_no_value_that_has_a_default_may_be_missing() -> None:
    """As an upgrade with --reuse-values would have it: the release's values, and no newer ones."""

    def checked(schema: dict[str, Any], values: dict[str, Any], path: str) -> None:
        assert schema["required"] == list(values), path
        for name, value in values.items():
            if "properties" in schema["properties"][name]:
                checked(schema["properties"][name], value, f"{path}.{name}")

    defaults = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
    checked(json.loads(CHART_SCHEMA.read_text("utf-8")), defaults, "values")


def test_every_setting_may_be_given_and_reaches_the_workers() -> None:
    rows = (*preprocess_settings.SETTINGS, *gateway_settings.SETTINGS, *tracing.SETTINGS)
    settings = {row.name: row.default for row in rows if row.default}
    assert set(settings) <= given(CLEARML, {"inference": {"settings": settings}}, part="inference")
    addresses = {row.name: "triton.example:1" for row in rows if not row.default}
    objects = rendered(CLEARML, {"inference": {"settings": addresses}})
    data = one(objects, "ConfigMap", "demo-inference")["data"]
    assert {name: data[name] for name in addresses} == addresses


@pytest.mark.parametrize("part", ["inference", "triton"])
def test_no_setting_goes_past_what_the_chart_makes_from_it(part: str) -> None:
    """As a pod's grace, without which it would be killed before its streams have ended."""
    schema = json.loads(CHART_SCHEMA.read_text("utf-8"))
    names = set(schema["$defs"][f"{part}Settings"]["properties"])
    # A collector's on the node of each pod: no ConfigMap can say it.
    taken = {tracing.ENDPOINT.name}
    assert taken < names
    for name in names - taken:
        extra = {part: {"extraEnv": [{"name": "A"}, {"name": name, "value": "600"}]}}
        with pytest.raises(helm_python.HelmError) as refused:
            rendered(CLEARML, extra)
        assert f"{part}.extraEnv gives {name}, of which" in str(refused.value)
        assert f"give it in {part}.settings" in str(refused.value)
    extra = {part: {"extraEnv": [{"name": name, "value": "http://$(NODE):4318"} for name in taken]}}
    assert rendered(CLEARML, extra)


def test_what_compose_gives_its_containers_a_pod_gets() -> None:
    storage = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "c"}
    azure = {"AZURE_STORAGE_ACCOUNT": "d", "AZURE_STORAGE_KEY": "e"}
    rows = (*preprocess_settings.SETTINGS, *gateway_settings.SETTINGS, *tracing.SETTINGS)
    every = {
        "credentials": {**storage, **azure},
        "googleSecret": "google",
        "trustedKeys": f"release:{'A' * 43}=",
        "inference": {"settings": {row.name: row.default or "a:1" for row in rows}},
        "triton": {
            "store": {"sharedClaim": "models"},
            "settings": {
                "TRANSFORMER_SERVING_ENDPOINTS": "*",
                "TRANSFORMER_SERVING_VERSION_COMPATIBLE": "1",
                "TRANSFORMER_SERVING_COMPUTE_CAPABILITY": "8.6",
                "TRANSFORMER_SERVING_TRITON_EXIT_SECONDS": 30,
                "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318",
            },
        },
    }
    # Its settings' lines stand for themselves; the rest of an environment is these.
    for part in ("inference", "triton"):
        wanted = set(service("compose.yaml", part)["environment"])
        has = given(CLEARML, TLS, every, part=part) | given(LOCAL, part=part)
        has |= {"TRANSFORMER_SERVING_OPEN"}
        assert wanted - set(NOT_IN_A_POD) <= has, part


def test_the_chart_knows_no_name_that_is_declared_nowhere() -> None:
    declared = {row.name for row in variables()} | {row.name for row in ACCESS}
    # The entrypoint's alone, which the programs do not see.
    declared.add("TRANSFORMER_SERVING_OUR_CHART")
    for name in ("inference", "triton"):
        declared |= set(service("compose.yaml", name)["environment"])
    for part in ("inference", "triton"):
        for layers in ((CLEARML, TLS), (merged(CLEARML, EVERYTHING),), (LOCAL,)):
            assert given(*layers, part=part) <= declared
    texts = [path.read_text("utf-8") for path in sorted((CHART / "templates").glob("*"))]
    texts.append((CHART / "values.yaml").read_text("utf-8"))
    named = set(
        re.findall(r"\b(?:CLEARML|TRANSFORMER_SERVING|AWS|AZURE)_[A-Z_]+\b", " ".join(texts))
    )
    control_plane = set(service("compose.yaml", "control-plane")["environment"])
    control_plane |= {"TRANSFORMER_SERVING_ACCESS_KEY", "TRANSFORMER_SERVING_SECRET_KEY"}
    # The desk's own, of the line that the notes print.
    assert named <= declared | control_plane | {KEY_VARIABLE}
