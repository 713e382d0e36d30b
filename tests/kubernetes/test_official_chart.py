"""kubernetes/clearml-serving-values.yaml on the official chart, and that chart's faults.

OFFICIAL_CHART is the folder charts/clearml-serving of a checkout of clearml/clearml-helm-charts;
with 1.5.10 of 2025-03-12 (747c018a) all holds.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import helm_python
import pytest
import yaml

from tests.kubernetes.chart import ROOT, Manifest, chart, merged, one
from tests.kubernetes.test_schemas import VERSIONS, faults
from tests.test_compose_files import image_of, service
from transformer_serving.contract.keys import VARIABLE
from transformer_serving.contract.settings.stop import STOP_SECONDS
from transformer_serving.desk.compose.variables import variables
from transformer_serving.engine.container_commands import commands
from transformer_serving.gateway.settings import WORKERS, read_settings
from transformer_serving.gateway.shutdown import LEAVE_S

FOLDER = "OFFICIAL_CHART"
VALUES = ROOT / "kubernetes" / "clearml-serving-values.yaml"
_MORE = "extraEnvironment"
# terminationGracePeriodSeconds of a pod that does not say it.
_GRACE_S = 30
INFERENCE, TRITON = "demo-clearml-serving-inference", "demo-clearml-serving-triton"
by_hand = [
    pytest.mark.long,
    pytest.mark.by_hand,
    pytest.mark.skipif(FOLDER not in os.environ, reason=f"{FOLDER} is not set"),
]


def values() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(VALUES.read_text("utf-8"))
    return found


def test_the_images_are_those_that_compose_builds() -> None:
    for part in ("inference", "triton"):
        image = values()[f"clearml_serving_{part}"]["image"]
        assert f"{image['repository']}:{image['tag']}" == image_of("compose.yaml", part)


def test_the_image_leaves_the_workers_to_the_charts_variable() -> None:
    """A flag would go before it."""
    assert "--workers" not in (ROOT / "docker" / "python" / "Dockerfile").read_text("utf-8")


def test_every_variable_is_one_of_compose() -> None:
    known = {row.name for row in variables()} | {VARIABLE}
    for part in ("inference", "triton"):
        given = {each["name"] for each in values()[f"clearml_serving_{part}"][_MORE]}
        assert given <= known | set(service("compose.yaml", part)["environment"])


def test_both_parts_end_before_their_pods_are_killed(tmp_path: Path) -> None:
    """The chart says no grace of a pod, so that it is Kubernetes's own."""
    given = {
        part: {row["name"]: row["value"] for row in values()[f"clearml_serving_{part}"][_MORE]}
        for part in ("inference", "triton")
    }
    assert {told[STOP_SECONDS.name] for told in given.values()} == {str(_GRACE_S)}
    worker = read_settings(given["inference"])
    assert worker.drain_seconds + worker.graceful_seconds + LEAVE_S <= _GRACE_S
    # Of Triton its container counts itself, and refuses more than it is told.
    commands(given["triton"], tmp_path, "key")


@pytest.fixture
def official() -> Path:
    return Path(os.environ[FOLDER])


def rendered(folder: Path, *layers: dict[str, Any]) -> list[Manifest]:
    with helm_python.Chart.load(folder) as theirs:
        texts = theirs.render(merged(values(), *layers), name="demo", namespace="serving")
    return [
        each
        for path, text in texts.items()
        if path.endswith(".yaml")
        for each in yaml.load_all(text, yaml.CSafeLoader)
        if each
    ]


class TestOnTheOfficialChart:
    pytestmark = by_hand

    def test_it_is_taken_by_every_version(self, official: Path) -> None:
        objects = rendered(official)
        assert {each["kind"] for each in objects} == {"Deployment", "Service"}
        for version in VERSIONS:
            assert [fault for each in objects for fault in faults(each, version)] == []

    def test_no_key_stands_in_a_variable(self, official: Path) -> None:
        for name in (INFERENCE, TRITON):
            pod = one(rendered(official), "Deployment", name)["spec"]["template"]["spec"]
            (container,) = pod["containers"]
            given = {each["name"]: each["value"] for each in container["env"]}
            # Helm's server-side apply refuses a name that comes twice.
            assert len(given) == len(container["env"])
            (mount,) = container["volumeMounts"]
            for key in ("ACCESS", "SECRET"):
                assert given[f"CLEARML_API_{key}_KEY"] == ""
                assert given[f"CLEARML_API_{key}_KEY_FILE"].startswith(f"{mount['mountPath']}/")
            assert pod["volumes"][0]["secret"]["secretName"] == "transformer-serving"

    def test_the_workers_call_the_port_that_the_service_has(self, official: Path) -> None:
        objects = rendered(official)
        (port,) = one(objects, "Service", TRITON)["spec"]["ports"]
        pod = one(objects, "Deployment", INFERENCE)["spec"]["template"]["spec"]
        given = {each["name"]: each["value"] for each in pod["containers"][0]["env"]}
        assert given["TRANSFORMER_SERVING_TRANSPORT"] == "grpc"
        assert given["CLEARML_DEFAULT_TRITON_GRPC_ADDR"] == f"{TRITON}:{port['port']}"

    def test_a_pod_has_a_cpu_and_memory_for_each_of_its_workers(self, official: Path) -> None:
        """As many of both as a pod of our chart, which is one worker."""
        (container,) = one(rendered(official), "Deployment", INFERENCE)["spec"]["template"]["spec"][
            "containers"
        ]
        given = {each["name"]: each["value"] for each in container["env"]}
        workers = WORKERS.whole(given)
        assert "args" not in container
        own = chart().values["inference"]["resources"]
        sizes = {"512Mi": 0.5, "1Gi": 1, "2Gi": 2, "4Gi": 4}
        for kind in ("requests", "limits"):
            memory = sizes[container["resources"][kind]["memory"]]
            assert memory == workers * sizes[own[kind]["memory"]]
        cpus = container["resources"]["requests"]["cpu"]
        assert int(cpus) == workers * int(own["requests"]["cpu"])

    def test_its_faults_are_there(self, official: Path) -> None:
        """One that is gone need not be worked around any longer."""
        with helm_python.Chart.load(official) as theirs:
            assert "< 1.33" in theirs.metadata["kubeVersion"]
        chosen = {"clearml_serving_inference": {"nodeSelector": {"pool": "cpu"}}}
        found = [fault for each in rendered(official, chosen) for fault in faults(each, "1.37")]
        assert "nodeSelector" in found[0]
        deployment = one(rendered(official), "Deployment", INFERENCE)["spec"]
        assert deployment["replicas"] == 1
        assert "readinessProbe" not in deployment["template"]["spec"]["containers"][0]
        for name in (INFERENCE, TRITON):
            pod = one(rendered(official), "Deployment", name)["spec"]["template"]["spec"]
            assert "terminationGracePeriodSeconds" not in pod
