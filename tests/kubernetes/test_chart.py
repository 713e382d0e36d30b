"""What the chart renders: the objects, and what must hold for each of them."""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from scripts.chart_values import VALUES
from tests.kubernetes.chart import (
    CLEARML,
    LOCAL,
    NAMESPACE,
    ROOT,
    Manifest,
    chart,
    chart_that_is_told,
    container,
    kinds,
    one,
    pods,
    rendered,
)
from tests.test_compose_files import image_of, service
from transformer_serving.contract.gate.release import kit_version
from transformer_serving.contract.settings.stop import TRITON_EXIT_SECONDS
from transformer_serving.desk.local import container as control_plane
from transformer_serving.engine import container as triton_container
from transformer_serving.engine.controller.files.room import STORE_BYTES_VARIABLE
from transformer_serving.gateway.routes import ROUTES
from transformer_serving.gateway.server.supervisor import _HUNG_S
from transformer_serving.gateway.server.worker import _LOOP_HUNG_S
from transformer_serving.gateway.settings import GENERATE, GRACEFUL_SECONDS, GRPC_PORT
from transformer_serving.gateway.shutdown import LEAVE_S

KEDA = {"enabled": True, "prometheus": "http://prometheus:9090"}


def test_images_are_those_that_compose_builds() -> None:
    images = chart().values["images"]
    for value, name in (
        ("inference", "inference"),
        ("triton", "triton"),
        ("controlPlane", "control-plane"),
    ):
        assert images[value] == image_of("compose.yaml", name)
    assert chart().version == chart().metadata["appVersion"] == kit_version()


def test_an_image_may_bring_its_registry_and_that_a_port() -> None:
    image = "registry.example:5000/team/inference:1"
    objects = rendered(CLEARML, {"images": {"inference": image}})
    assert container(objects, "demo-inference")["image"] == image


def test_an_image_that_brings_a_port_stands_in_the_registrys_place() -> None:
    """A name has one port."""
    image = "registry.example:5000/team/triton:1"
    images = {"registry": "mirror.example:5000", "triton": image, "inference": "a.b/inference:1"}
    objects = rendered(CLEARML, {"images": images})
    assert container(objects, "demo-triton")["image"] == image
    assert container(objects, "demo-inference")["image"] == "mirror.example:5000/a.b/inference:1"


def test_a_registry_stands_before_every_image() -> None:
    objects = rendered(LOCAL, {"images": {"registry": "registry.example/team/"}})
    used = [
        each["image"]
        for pod in pods(objects).values()
        for each in (*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"])
    ]
    assert len(used) == 5
    assert all(image.startswith("registry.example/team/transformer-serving/") for image in used)


@pytest.mark.parametrize("values", [LOCAL, CLEARML], ids=["local", "clearml"])
def test_every_pod_is_confined(values: dict[str, Any]) -> None:
    for pod in pods(rendered(values)).values():
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["enableServiceLinks"] is False
        assert spec["securityContext"]["runAsUser"] == 10001
        assert spec["securityContext"]["runAsNonRoot"] is True
        for each in (*spec.get("initContainers", ()), *spec["containers"]):
            confined = each["securityContext"]
            assert confined["readOnlyRootFilesystem"] is True
            assert confined["allowPrivilegeEscalation"] is False
            assert confined["capabilities"] == {"drop": ["ALL"]}
            assert {"memory"} <= set(each["resources"]["limits"])


@pytest.mark.parametrize("values", [LOCAL, CLEARML], ids=["local", "clearml"])
def test_what_is_mounted_is_there(values: dict[str, Any]) -> None:
    for object_ in rendered(values):
        if object_["kind"] not in ("Deployment", "StatefulSet"):
            continue
        spec = object_["spec"]["template"]["spec"]
        claimed = object_["spec"].get("volumeClaimTemplates", ())
        volumes = {each["name"] for each in spec["volumes"]}
        volumes |= {each["metadata"]["name"] for each in claimed}
        mounted = {
            mount["name"]
            for each in (*spec.get("initContainers", ()), *spec["containers"])
            for mount in each["volumeMounts"]
        }
        assert mounted == volumes


def test_an_autoscaler_owns_the_number_of_pods() -> None:
    """`replicas` beside it would put the number back at every upgrade."""
    own = rendered(CLEARML, {"triton": {"autoscaling": KEDA}})
    for name in ("demo-inference", "demo-triton"):
        assert "replicas" not in one(own, "Deployment", name)["spec"]
    fixed = rendered(CLEARML, {"inference": {"autoscaling": {"enabled": False}, "replicas": 3}})
    assert one(fixed, "Deployment", "demo-inference")["spec"]["replicas"] == 3
    assert one(fixed, "Deployment", "demo-triton")["spec"]["replicas"] == 1
    assert not kinds(fixed) & {"HorizontalPodAutoscaler", "ScaledObject"}


@pytest.mark.parametrize(
    ("running", "least", "inference", "triton"),
    [(5, 0, 5, 5), (1, 2, 1, 1), (0, 1, 2, 1), (0, 0, 2, 0)],
)
def test_an_autoscaler_takes_the_number_over_that_runs(
    tmp_path: Path, running: int, least: int, inference: int, triton: int
) -> None:
    """Without it Helm would take `replicas` away, and Kubernetes make it one pod.

    Another one than runs, such as a minimum that was raised, is the autoscaler's: Helm 4 refuses
    to write over it. At 0, as after `replicas: 0`, a HorizontalPodAutoscaler would do nothing; KEDA
    may want it.
    """
    asked = 'lookup "apps/v1" "Deployment" $.Release.Namespace'
    answer = f'dict "spec" (dict "replicas" {running}) "metadata"'
    told = chart_that_is_told(tmp_path, "_names.tpl", asked, answer)
    values = {**CLEARML, "triton": {"autoscaling": {**KEDA, "minReplicas": least}}}
    texts = told.render(values, name="demo", namespace=NAMESPACE)
    for part, replicas in (("inference", inference), ("triton", triton)):
        path = f"transformer-serving/templates/{part}.yaml"
        deployment = next(yaml.safe_load_all(texts[path]))
        assert deployment["spec"]["replicas"] == replicas


def test_inference_scales_on_cpu_and_a_pod_is_one_worker() -> None:
    objects = rendered(CLEARML)
    spec = one(objects, "HorizontalPodAutoscaler", "demo-inference")["spec"]
    target = {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 65}}
    assert spec["metrics"] == [{"type": "Resource", "resource": target}]
    worker = container(objects, "demo-inference")
    assert worker["args"] == ["--workers=1"]
    assert worker["resources"]["requests"]["cpu"] == "1"
    assert "cpu" not in worker["resources"]["limits"]


def test_a_dead_prometheus_does_not_look_like_nobody_asking() -> None:
    objects = rendered(CLEARML, {"triton": {"autoscaling": {**KEDA, "minReplicas": 0}}})
    spec = one(objects, "ScaledObject", "demo-triton")["spec"]
    assert spec["minReplicaCount"] == 0
    # An error leaves the number as it is, where no fallback says another one.
    assert "fallback" not in spec
    waiting, answered, running, asked = (trigger["metadata"] for trigger in spec["triggers"])
    assert all(each["metadata"]["ignoreNullValues"] == "false" for each in spec["triggers"])
    workers = '{namespace="serving",pod=~"demo-inference-[a-z0-9]+(-[a-z0-9]{5})?"}'
    # Workers without a figure yet are 0; no worker that is scraped is no answer.
    none = f" or sum(0 * (up{workers} == 1))"
    assert waiting["query"] == f"sum(transformer_serving_waiting_tokens{workers}){none}"
    assert waiting["threshold"] == "6000"
    assert answered["threshold"] == "8400"
    assert answered["query"] == f"sum(rate(transformer_serving_tokens_total{workers}[1m])){none}"
    assert running["query"] == f"sum(transformer_serving_running_streams{workers}){none}"
    assert "transformer_serving_request_duration_seconds_count{" in asked["query"]
    assert asked["query"].endswith(none)


def test_only_a_triton_that_scales_to_zero_is_woken_by_requests() -> None:
    objects = rendered(CLEARML, {"triton": {"autoscaling": KEDA}})
    assert len(one(objects, "ScaledObject", "demo-triton")["spec"]["triggers"]) == 3


@pytest.mark.parametrize("vllm", [False, True])
@pytest.mark.parametrize("least", [0, 1])
def test_texts_in_generation_scale_and_keep_a_triton(vllm: bool, least: int) -> None:
    """They are neither among the tokens that wait nor among those that are answered."""
    scaled = {**KEDA, "minReplicas": least, "runningStreams": 128}
    triton = {"vllm": vllm, "gpus": 1, "autoscaling": scaled}
    spec = one(rendered(CLEARML, {"triton": triton}), "ScaledObject", "demo-triton")["spec"]
    (running,) = (
        each
        for each in spec["triggers"]
        if "transformer_serving_running_streams{" in each["metadata"]["query"]
    )
    assert running["metricType"] == "AverageValue"
    assert running["metadata"]["threshold"] == "128"
    # Any number above 0 keeps the last one, as none is said.
    assert "activationThreshold" not in running["metadata"]


@pytest.mark.parametrize(("drain", "grace"), [(0, 55), (5, 60), ("7.5", 63), (120, 175)])
def test_a_pod_is_given_the_time_that_leaving_takes(drain: float | str, grace: int) -> None:
    settings = {"TRANSFORMER_SERVING_DRAIN_SECONDS": drain}
    objects = rendered(CLEARML, {"inference": {"settings": settings}})
    spec = pods(objects)["demo-inference"]["spec"]
    assert spec["terminationGracePeriodSeconds"] == grace
    # As long as the gateway takes by itself.
    assert grace >= float(drain) + float(GRACEFUL_SECONDS.default) + LEAVE_S
    settings["TRANSFORMER_SERVING_GRACEFUL_SECONDS"] = "600"
    longer = rendered(CLEARML, {"inference": {"settings": settings}})
    assert pods(longer)["demo-inference"]["spec"]["terminationGracePeriodSeconds"] == grace + 570
    rollout = one(objects, "Deployment", "demo-inference")["spec"]["strategy"]["rollingUpdate"]
    assert rollout["maxUnavailable"] == 0


def test_probes_of_inference_are_the_health_routes() -> None:
    worker = container(rendered(CLEARML), "demo-inference")
    for probe, path in (("startup", "live"), ("readiness", "ready"), ("liveness", "live")):
        asked = worker[f"{probe}Probe"]["httpGet"]
        assert asked == {"path": f"/health/{path}", "port": "http", "scheme": "HTTP"}


def test_the_kubelet_waits_for_a_loop_that_stands_longer_than_the_gateway_does() -> None:
    """An endpoint that loads its model in the loop would else be ended at it, again and again."""
    liveness = container(rendered(CLEARML), "demo-inference")["livenessProbe"]
    # From the first answer that is missing to the last, the shortest that it can take.
    waits = liveness["periodSeconds"] * (liveness["failureThreshold"] - 1)
    # The rest is for the start of the worker in its place.
    assert 30 < waits - (_LOOP_HUNG_S + _HUNG_S) < 90


def test_with_tls_the_kubelet_asks_over_tls_and_with_callers_certificates_health_py() -> None:
    tls = {"access": {"tlsSecret": "tls"}}
    worker = container(rendered(CLEARML, tls), "demo-inference")
    assert worker["readinessProbe"]["httpGet"]["scheme"] == "HTTPS"
    objects = rendered(CLEARML, tls, {"access": {"callersSecret": "callers"}})
    worker = container(objects, "demo-inference")
    script = "/opt/transformer-serving/health.py"
    assert worker["readinessProbe"]["exec"]["command"][1] == script
    for name in ("python", "triton"):
        text = (ROOT / "docker" / name / "Dockerfile").read_text("utf-8")
        assert "docker/health.py /opt/transformer-serving/" in text
    data = one(objects, "ConfigMap", "demo-inference")["data"]
    folders = {mount["mountPath"] for mount in worker["volumeMounts"]}
    for name in ("TLS_CERT", "TLS_KEY", "TLS_CLIENT_CA", "HEALTH_CERT", "HEALTH_KEY"):
        assert data[f"TRANSFORMER_SERVING_{name}"].rpartition("/")[0] in folders


def test_a_private_key_is_mounted_where_it_is_used_only() -> None:
    objects = rendered(CLEARML, {"access": {"tlsSecret": "tls"}})
    mounts = container(objects, "demo-triton")["volumeMounts"]
    assert "/run/tls" not in {mount["mountPath"] for mount in mounts}


def test_triton_starts_when_its_models_have_and_has_shared_memory() -> None:
    objects = rendered(CLEARML, {"triton": {"startupSeconds": 61}})
    triton = container(objects, "demo-triton")
    startup = triton["startupProbe"]
    assert startup["exec"]["command"][2] == "transformer_serving.engine.controller.first_loads"
    assert startup["failureThreshold"] * startup["periodSeconds"] >= 61
    volumes = {each["name"]: each for each in pods(objects)["demo-triton"]["spec"]["volumes"]}
    assert volumes["shared-memory"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "1Gi"}


def test_the_kubelet_lets_the_container_begin_a_new_triton_for_one_that_hangs() -> None:
    liveness = container(rendered(CLEARML), "demo-triton")["livenessProbe"]
    assert liveness["periodSeconds"] * liveness["failureThreshold"] >= (
        2 * triton_container._TRITON_SILENCE_S
    )


def test_a_triton_serves_until_nobody_is_sent_there() -> None:
    """The rest of its grace is for the calls that run, whatever the first part is."""
    for seconds in (0, 40, 90):
        objects = rendered(CLEARML, {"triton": {"leaveSeconds": seconds}})
        spec = pods(objects)["demo-triton"]["spec"]
        hook = container(objects, "demo-triton")["lifecycle"]["preStop"]["exec"]["command"]
        assert hook == ["sleep", str(seconds)]
        grace = spec["terminationGracePeriodSeconds"]
        assert grace - seconds >= 50
        exits = {"settings": {"TRANSFORMER_SERVING_TRITON_EXIT_SECONDS": 600}}
        objects = rendered(CLEARML, {"triton": {"leaveSeconds": seconds, **exits}})
        longer = pods(objects)["demo-triton"]["spec"]["terminationGracePeriodSeconds"]
        assert longer - grace == 600 - float(TRITON_EXIT_SECONDS.default)


def test_a_triton_that_hangs_is_not_waited_for() -> None:
    """It ends no call, and the kubelet would run the hook of one that leaves, too."""
    longer = {"leaveSeconds": 90, "settings": {"TRANSFORMER_SERVING_TRITON_EXIT_SECONDS": 600}}
    for triton in ({}, longer):
        liveness = container(rendered(CLEARML, {"triton": triton}), "demo-triton")["livenessProbe"]
        assert liveness["terminationGracePeriodSeconds"] == 10


def test_gpus_are_a_limit_beside_the_others() -> None:
    objects = rendered(CLEARML, {"triton": {"gpus": 2, "strategy": "Recreate"}})
    limits = container(objects, "demo-triton")["resources"]["limits"]
    assert limits == {"nvidia.com/gpu": 2, "memory": "8Gi"}
    assert one(objects, "Deployment", "demo-triton")["spec"]["strategy"] == {"type": "Recreate"}
    without = container(rendered(CLEARML), "demo-triton")["resources"]["limits"]
    assert "nvidia.com/gpu" not in without


@pytest.mark.parametrize(
    "resource", ["nvidia.com/mig-1g.10gb", "nvidia.com/gpu.shared", "amd.com/gpu"]
)
def test_a_slice_of_a_gpu_is_a_limit_by_its_own_name(resource: str) -> None:
    triton = {"vllm": True, "resources": {"limits": {resource: 1}}}
    limits = container(rendered(CLEARML, {"triton": triton}), "demo-triton")["resources"]["limits"]
    assert limits == {resource: 1, "memory": "8Gi"}


def test_triton_is_headless_and_found_where_the_workers_look() -> None:
    objects = rendered(CLEARML)
    spec = one(objects, "Service", "demo-triton")["spec"]
    assert spec["clusterIP"] == "None"
    ports = {each["name"]: each["port"] for each in spec["ports"]}
    data = one(objects, "ConfigMap", "demo-inference")["data"]
    assert data["TRANSFORMER_SERVING_TRITON_HTTP"] == f"demo-triton:{ports['http']}"
    assert data["TRANSFORMER_SERVING_TRITON_GRPC"] == f"demo-triton:{ports['grpc']}"
    assert data["CLEARML_DEFAULT_TRITON_GRPC_ADDR"] == f"demo-triton:{ports['grpc']}"


@pytest.mark.parametrize(("minutes", "grace"), [(1, 150), (0.1, 42), (2.5, 330)])
def test_the_previous_bundle_serves_on_for_more_than_both_polls(minutes: float, grace: int) -> None:
    objects = rendered(CLEARML, {"pollMinutes": minutes})
    triton = one(objects, "ConfigMap", "demo-triton")["data"]
    assert float(triton["CLEARML_TRITON_POLL_FREQ"]) == minutes
    worker = one(objects, "ConfigMap", "demo-inference")["data"]
    assert float(worker["CLEARML_SERVING_POLL_FREQ"]) == minutes
    assert int(triton["TRANSFORMER_SERVING_GRACE_SECONDS"]) == grace > 2 * 60 * minutes


def test_keys_come_from_a_secret_and_stand_nowhere_else() -> None:
    objects = rendered(CLEARML, {"credentials": {"CLEARML_API_SECRET_KEY": "only-in-the-secret"}})
    assert not [each["kind"] for each in objects if "only-in-the-secret" in str(each)]
    encoded = b64encode(b"only-in-the-secret").decode()
    assert [each["kind"] for each in objects if encoded in str(each)] == ["Secret"]
    own = rendered({**CLEARML, "credentials": {}, "existingSecret": "mine"})
    assert "Secret" not in kinds(own)
    for name in ("demo-inference", "demo-triton"):
        assert {"secretRef": {"name": "mine"}} in container(own, name)["envFrom"]


def test_a_key_that_is_no_longer_given_leaves_the_secret() -> None:
    """`stringData` is only ever merged into what the Secret has, so a key would stay in it."""
    given = {**CLEARML["credentials"], "AWS_SECRET_ACCESS_KEY": "yes: 1 ü"}
    secret = one(rendered(CLEARML, {"credentials": given}), "Secret", "demo-credentials")
    assert "stringData" not in secret
    assert {name: b64decode(text).decode() for name, text in secret["data"].items()} == given


def test_new_settings_or_keys_are_new_pods() -> None:
    def replaced(*layers: dict[str, Any], base: dict[str, Any] = CLEARML) -> list[bool]:
        """Inference's pods, Triton's."""
        old, new = pods(rendered(base)), pods(rendered(base, *layers))
        names = ("demo-inference", "demo-triton")
        return [old[name]["metadata"] != new[name]["metadata"] for name in names]

    assert replaced({"pollMinutes": 2}) == [True, True]
    assert replaced({"credentials": {"CLEARML_API_ACCESS_KEY": "B"}}) == [True, True]
    # What only one part reads leaves the other's pods, and Triton's models, where they are.
    waiting = {"settings": {"TRANSFORMER_SERVING_MAX_WAIT_S": 1}}
    assert replaced({"inference": waiting}) == [True, False]
    taken = {"settings": {"TRANSFORMER_SERVING_ENDPOINTS": "a*"}}
    assert replaced({"triton": taken}) == [False, True]
    # A made key differs in every rendering without a cluster; it is no reason for new pods.
    assert replaced(base=LOCAL) == [False, False]


def test_new_keys_of_the_control_plane_reach_all_that_ask_it() -> None:
    def told(secret: str) -> dict[str, Any]:
        given = {"credentials": {"CLEARML_API_SECRET_KEY": secret}}
        every = pods(rendered(LOCAL, given)).items()
        return {name: pod["metadata"]["annotations"] for name, pod in every}

    old, new = told("old"), told("new")
    assert set(old) == {"demo-control-plane", "demo-inference", "demo-triton"}
    assert not [name for name in old if old[name] == new[name]]


def test_without_an_account_there_is_a_control_plane_with_a_volume() -> None:
    objects = rendered(LOCAL)
    spec = one(objects, "StatefulSet", "demo-control-plane")["spec"]
    assert spec["replicas"] == 1
    assert spec["volumeClaimTemplates"][0]["spec"]["accessModes"] == ["ReadWriteOnce"]
    mounts = container(objects, "demo-control-plane")["volumeMounts"]
    kept = {each["mountPath"]: each["subPath"] for each in mounts if each["name"] == "data"}
    assert set(kept) == {str(control_plane.DATA), str(control_plane.SHARED)}
    assert len(set(kept.values())) == 2
    for part in ("inference", "triton"):
        data = one(objects, "ConfigMap", f"demo-{part}")["data"]
        assert data["CLEARML_API_HOST"] == "http://demo-control-plane:8008"
        assert data["CLEARML_SERVING_TASK_ID_FILE"] == "/run/local/serving-id"
        (first,) = pods(objects)[f"demo-{part}"]["spec"]["initContainers"]
        assert first["args"] == ["find-service"]
    assert not kinds(rendered(CLEARML)) & {"StatefulSet"}


@pytest.mark.parametrize("part", ["inference", "triton", "local"])
def test_every_pod_can_be_placed(part: str) -> None:
    """Also the control plane's, which all others wait for."""
    placed = {
        "nodeSelector": {"kubernetes.io/arch": "amd64"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "high",
    }
    every = pods(rendered(LOCAL, {part: placed}))
    spec = every[f"demo-{'control-plane' if part == 'local' else part}"]["spec"]
    assert {name: spec[name] for name in placed} == placed
    elsewhere = [pod["spec"] for pod in every.values() if pod["spec"] is not spec]
    assert not [name for name in placed for other in elsewhere if name in other]


def test_triton_is_reached_by_inference_alone() -> None:
    objects = rendered(CLEARML)
    policy = one(objects, "NetworkPolicy", "demo-triton")["spec"]
    inference, figures = policy["ingress"]
    (peer,) = inference["from"]
    labels = pods(objects)["demo-inference"]["metadata"]["labels"]
    assert peer["podSelector"]["matchLabels"].items() <= labels.items()
    assert [each["port"] for each in inference["ports"]] == ["http", "grpc"]
    assert [each["port"] for each in figures["ports"]] == ["metrics"]


def ports_outside(objects: list[Manifest]) -> set[int]:
    """That the workers reach wherever they are."""
    spec = one(objects, "NetworkPolicy", "demo-inference")["spec"]
    return {each["port"] for rule in spec["egress"] if "to" not in rule for each in rule["ports"]}


@pytest.mark.parametrize(
    ("http", "grpc", "named"),
    [
        ("demo-triton:8000", "demo-triton.serving.svc:8001", set()),
        ("demo-triton:8000,gpu-triton:8000", "", {8000}),
        ("http://gpu-triton:8000/, 10.0.0.7:9000", "gpu-triton:8001", {8000, 8001, 9000}),
        ("demo-triton.other.svc:8000", "", {8000}),
        ("unix:/run/triton:8000", "[fd00::7]:8001", {8001}),
    ],
)
def test_tritons_of_other_releases_are_let_out_to(http: str, grpc: str, named: set[int]) -> None:
    settings = {"TRANSFORMER_SERVING_TRITON_HTTP": http, "TRANSFORMER_SERVING_TRITON_GRPC": grpc}
    without = ports_outside(rendered(CLEARML))
    assert ports_outside(rendered(CLEARML, {"inference": {"settings": settings}})) == {
        *without, *named,
    }  # fmt: skip


def test_what_is_asked_outside_are_clearmls_ports() -> None:
    spec = one(rendered(CLEARML), "NetworkPolicy", "demo-triton")["spec"]
    ports = {each["port"] for rule in spec["egress"] for each in rule["ports"]}
    assert ports == {53, 443, 8008, 80}


def test_metrics_do_not_pass_the_front_door() -> None:
    objects = rendered(
        CLEARML,
        {
            "ingress": {"enabled": True, "host": "serving.example", "tlsSecret": "front"},
            "route": {"enabled": True, "parentRefs": [{"name": "public"}]},
        },
    )
    rules = one(objects, "Ingress", "demo-inference")["spec"]["rules"]
    paths = [each["path"] for each in rules[0]["http"]["paths"]]
    assert "/serve" in paths
    assert not {"/", "/metrics"} & set(paths)
    rules = one(objects, "HTTPRoute", "demo-inference")["spec"]["rules"]
    matches = [match["path"]["value"] for rule in rules for match in rule["matches"]]
    assert matches == paths


def public_paths(*layers: dict[str, Any]) -> list[str]:
    """Of the Ingress; the HTTPRoute's are the same."""
    front = {
        "ingress": {"enabled": True, "host": "a.example"},
        "route": {"enabled": True, "parentRefs": [{"name": "public"}]},
    }
    objects = rendered(CLEARML, front, *layers)
    (rule,) = one(objects, "Ingress", "demo-inference")["spec"]["rules"]
    paths = [each["path"] for each in rule["http"]["paths"]]
    rules = one(objects, "HTTPRoute", "demo-inference")["spec"]["rules"]
    assert [match["path"]["value"] for each in rules for match in each["matches"]] == paths
    return paths


def test_every_route_of_callers_passes_the_front_door() -> None:
    paths = public_paths()
    # For a browser that reaches the Service, as the page at / is.
    own = {"/page/endpoints"}
    for route in ROUTES:
        passes = any(f"{route.path}/".startswith(f"{path}/") for path in paths)
        assert passes == (route.path not in own), route.path
    assert GENERATE not in paths
    named = {"inference": {"settings": {"TRANSFORMER_SERVING_GENERATE_ENDPOINT": "stories"}}}
    assert public_paths(named) == [*paths, GENERATE]
    # Once, also where it is given.
    assert public_paths(named, {"publicPaths": [GENERATE, "/v1"]}) == [GENERATE, "/v1"]


def test_the_most_paths_are_as_many_as_a_route_takes() -> None:
    """16 rules of 8 matches, with those that settings add; an ingress takes more."""
    both = {f"TRANSFORMER_SERVING_{name}_ENDPOINT": "texts" for name in ("GENERATE", "ROOT")}
    adding = {"inference": {"settings": both}}
    paths = [f"/serve/{number}" for number in range(128)]
    route = {"route": {"enabled": True, "parentRefs": [{"name": "public"}]}}
    for given, rest in (({}, []), (adding, ["/generate", "/"])):
        layer = {"publicPaths": paths[: 128 - len(rest)], **given}
        assert public_paths(layer) == [*layer["publicPaths"], *rest]
        (rules,) = (
            each["spec"]["rules"]
            for each in rendered(CLEARML, route, layer)
            if each["kind"] == "HTTPRoute"
        )
        assert [len(each["matches"]) for each in rules] == [8] * 16
    ingress = {"ingress": {"enabled": True, "host": "a.example"}}
    objects = rendered(CLEARML, ingress, {"publicPaths": paths}, adding)
    (rule,) = one(objects, "Ingress", "demo-inference")["spec"]["rules"]
    assert len(rule["http"]["paths"]) == 130


def test_the_root_passes_alone() -> None:
    """What is below it is everything: figures, the pages, what is the host's."""
    front = {
        "ingress": {"enabled": True, "host": "a.example"},
        "route": {"enabled": True, "parentRefs": [{"name": "public"}]},
    }
    named = {"inference": {"settings": {"TRANSFORMER_SERVING_ROOT_ENDPOINT": "masks"}}}
    assert public_paths(named) == [*public_paths(), "/"]
    objects = rendered(CLEARML, front, named)
    (rule,) = one(objects, "Ingress", "demo-inference")["spec"]["rules"]
    kinds = {each["path"]: each["pathType"] for each in rule["http"]["paths"]}
    assert [path for path, kind in kinds.items() if kind != "Prefix"] == ["/"]
    assert kinds["/"] == "Exact"
    rules = one(objects, "HTTPRoute", "demo-inference")["spec"]["rules"]
    matches = [match for each in rules for match in each["matches"]]
    exact = [match for match in matches if match["path"]["type"] != "PathPrefix"]
    assert exact == [{"path": {"type": "Exact", "value": "/"}, "method": "POST"}]


def test_prometheus_is_let_in_where_only_some_callers_are() -> None:
    callers = [{"namespaceSelector": {"matchLabels": {"name": "shop"}}}]
    prometheus = [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]
    chosen = {"networkPolicy": {"callers": callers, "prometheus": prometheus}}
    read = {"monitoring": {"podMonitors": True}, "access": {"metricsKeySecret": "key"}}
    grpc = {"inference": {"settings": {"TRANSFORMER_SERVING_GRPC_PORT": 8001}}}

    def let_in(*layers: dict[str, Any]) -> list[tuple[list[str], Any]]:
        spec = one(rendered(CLEARML, *layers), "NetworkPolicy", "demo-inference")["spec"]
        return [([each["port"] for each in r["ports"]], r.get("from")) for r in spec["ingress"]]

    ours = one(rendered(CLEARML), "NetworkPolicy", "demo-inference")["spec"]["podSelector"]
    own = (["http"], [{"podSelector": ours}])
    assert let_in(chosen, read, grpc) == [
        (["http", "grpc"], callers), own, (["http"], prometheus),
    ]  # fmt: skip
    # Nobody reads figures, or everybody is let in.
    assert let_in(chosen) == [(["http"], callers), own]
    assert let_in(read, {"networkPolicy": {"prometheus": prometheus}}) == [(["http"], None)]


def lets(policy: Manifest, way: str, labels: dict[str, str], port: int, name: str) -> bool:
    """Whether a policy lets to or from the pods with these labels, at that port of theirs."""
    for rule in policy["spec"][way]:
        peers = rule.get("from" if way == "ingress" else "to", [{"podSelector": {}}])
        chosen = [
            peer["podSelector"].get("matchLabels", {}) for peer in peers if "podSelector" in peer
        ]
        is_there = bool({each["port"] for each in rule["ports"]} & {port, name})
        if is_there and any(each.items() <= labels.items() for each in chosen):
            return True
    return False


@pytest.mark.parametrize("callers", [[], [{"namespaceSelector": {"matchLabels": {"a": "b"}}}]])
@pytest.mark.parametrize("base", [CLEARML, LOCAL], ids=["keys", "open"])
def test_an_endpoints_code_reaches_the_others(base: dict[str, Any], callers: list[Any]) -> None:
    """By clearml-serving's `send_request`; packets that are dropped would hold it for 480 s."""
    objects = rendered(base, {"networkPolicy": {"callers": callers}})
    data = one(objects, "ConfigMap", "demo-inference")["data"]
    asked = urlsplit(data["CLEARML_DEFAULT_BASE_SERVE_URL"])
    service_ = one(objects, "Service", str(asked.hostname))["spec"]
    (port,) = [each for each in service_["ports"] if each["port"] == asked.port]
    pod = pods(objects)["demo-inference"]
    labels = pod["metadata"]["labels"]
    assert service_["selector"].items() <= labels.items()
    (own,) = [
        each["containerPort"]
        for each in pod["spec"]["containers"][0]["ports"]
        if each["name"] == port["targetPort"]
    ]
    policy = one(objects, "NetworkPolicy", "demo-inference")
    assert lets(policy, "egress", labels, own, port["targetPort"])
    assert lets(policy, "ingress", labels, own, port["targetPort"])
    # Triton's pods have no business there.
    triton = one(objects, "NetworkPolicy", "demo-triton")
    assert not lets(triton, "egress", labels, own, port["targetPort"])


def test_a_port_of_grpc_is_opened_everywhere_at_once() -> None:
    settings = {"TRANSFORMER_SERVING_GRPC_PORT": 8001}
    objects = rendered(CLEARML, {"inference": {"settings": settings}})
    assert one(objects, "ConfigMap", "demo-inference")["data"][next(iter(settings))] == "8001"
    ports = container(objects, "demo-inference")["ports"]
    assert {"name": "grpc", "containerPort": 8001, "protocol": "TCP"} in ports
    ports = one(objects, "Service", "demo-inference")["spec"]["ports"]
    assert [each["name"] for each in ports] == ["http", "grpc"]
    policy = one(objects, "NetworkPolicy", "demo-inference")["spec"]
    assert [each["port"] for each in policy["ingress"][0]["ports"]] == ["http", "grpc"]


@pytest.mark.parametrize(
    ("given", "port"),
    [("8e3", 8000), ("+8001", 8001), ("8001.0", 8001), (8001.0, 8001), ("08001", 8001),
     ("0", None), ("00", None), ("0.0", None), ("", None), ("+0", None)],
)  # fmt: skip
def test_a_port_of_grpc_is_read_as_the_gateway_reads_it(given: Any, port: int | None) -> None:
    name = "TRANSFORMER_SERVING_GRPC_PORT"
    objects = rendered(CLEARML, {"inference": {"settings": {name: given}}})
    told = one(objects, "ConfigMap", "demo-inference")["data"][name]
    assert GRPC_PORT.whole({name: told}) == (port or 0)
    opened = [["http", 8080], *([] if port is None else [["grpc", port]])]
    ports = container(objects, "demo-inference")["ports"]
    assert [[each["name"], each["containerPort"]] for each in ports] == opened
    ports = one(objects, "Service", "demo-inference")["spec"]["ports"]
    assert [[each["name"], each["port"]] for each in ports] == opened


def test_large_numbers_keep_their_digits() -> None:
    settings = {"TRANSFORMER_SERVING_BODY_MEMORY_BYTES": 134217728}
    data = one(
        rendered(CLEARML, {"inference": {"settings": settings}}), "ConfigMap", "demo-inference"
    )["data"]
    assert data["TRANSFORMER_SERVING_BODY_MEMORY_BYTES"] == "134217728"


def test_prometheus_shows_the_key_for_metrics() -> None:
    monitored = {"monitoring": {"podMonitors": True, "labels": {"release": "prometheus"}}}
    objects = rendered(CLEARML, monitored, {"access": {"metricsKeySecret": "metrics-key"}})
    for part, port in (("inference", "http"), ("triton", "metrics")):
        monitor = one(objects, "PodMonitor", f"demo-{part}")
        assert monitor["metadata"]["labels"]["release"] == "prometheus"
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        assert endpoint["port"] == port
        assert endpoint["authorization"]["credentials"]["name"] == "metrics-key"
    assert "PrometheusRule" not in kinds(objects)


@pytest.mark.parametrize(
    ("name", "authority"), [("", ""), ("serving.example", ""), ("serving.example", "own-ca")]
)
def test_prometheus_looks_at_the_certificate_that_it_was_told_of(name: str, authority: str) -> None:
    """The Secret of a public authority's certificate, and that of kubectl, has no ca.crt."""
    access = {"access": {"tlsSecret": "tls", "metricsKeySecret": "metrics-key"}}
    told = {"serverName": name, "caSecret": authority}
    monitored = {"monitoring": {"podMonitors": True, **told}}
    objects = rendered(CLEARML, access, monitored)
    (endpoint,) = one(objects, "PodMonitor", "demo-inference")["spec"]["podMetricsEndpoints"]
    ca = {"ca": {"secret": {"name": authority, "key": "ca.crt"}}} if authority else {}
    looks = {"serverName": name, **ca} if name else {"insecureSkipVerify": True}
    assert endpoint["tlsConfig"] == looks


def test_each_part_has_a_budget_and_is_spread() -> None:
    objects = rendered(CLEARML)
    for part in ("inference", "triton"):
        budget = one(objects, "PodDisruptionBudget", f"demo-{part}")["spec"]
        assert budget["maxUnavailable"] == 1
        pod = pods(objects)[f"demo-{part}"]
        assert budget["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
        keys = [each["topologyKey"] for each in pod["spec"]["topologySpreadConstraints"]]
        assert keys == ["kubernetes.io/hostname", "topology.kubernetes.io/zone"]


@pytest.mark.parametrize(("version", "policy"), [("1.26", None), ("1.27", "AlwaysAllow")])
def test_a_pod_that_is_not_ready_holds_no_drain_up(version: str, policy: str | None) -> None:
    """Before 1.27 the API server drops the field, or does not know it."""
    objects = rendered(CLEARML, kubernetes=version)
    for part in ("inference", "triton"):
        budget = one(objects, "PodDisruptionBudget", f"demo-{part}")["spec"]
        assert budget.get("unhealthyPodEvictionPolicy") == policy


def test_vllm_is_another_image_whose_controller_has_a_python_of_its_own() -> None:
    compose = service("vllm.yaml", "triton")
    objects = rendered(CLEARML, {"triton": {"vllm": True, "gpus": 1}})
    triton = container(objects, "demo-triton")
    assert triton["image"] == image_of("vllm.yaml", "triton")
    assert [*triton["command"], *triton["args"]] == [*compose["entrypoint"], *compose["command"]]
    python = compose["build"]["args"]["CONTROLLER_ENVIRONMENT"] + "/bin/python3"
    for probe in ("startupProbe", "readinessProbe"):
        assert triton[probe]["exec"]["command"][0] == python
    data = one(objects, "ConfigMap", "demo-triton")["data"]
    assert compose["environment"].items() <= data.items()
    other = rendered(CLEARML)
    assert "command" not in container(other, "demo-triton")
    assert not set(compose["environment"]) & set(one(other, "ConfigMap", "demo-triton")["data"])


@pytest.mark.parametrize("part", ["inference", "triton"])
def test_a_collector_of_traces_is_let_out_to(part: str) -> None:
    traced = {part: {"settings": {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector.traces:4318"}}}
    for base in (CLEARML, LOCAL):
        spec = one(rendered(base, traced), "NetworkPolicy", f"demo-{part}")["spec"]
        assert 4318 in {each["port"] for rule in spec["egress"] for each in rule["ports"]}
        spec = one(rendered(base), "NetworkPolicy", f"demo-{part}")["spec"]
        assert 4318 not in {each["port"] for rule in spec["egress"] for each in rule["ports"]}


@pytest.mark.parametrize(("minutes", "seconds"), [(60, "3600"), (7.5, "450"), (0, None)])
def test_tasks_of_pods_that_are_gone_are_deleted(minutes: float, seconds: str | None) -> None:
    data = one(rendered(CLEARML, {"keepTasksMinutes": minutes}), "ConfigMap", "demo-triton")["data"]
    assert data.get("TRANSFORMER_SERVING_KEEP_TASKS_SECONDS") == seconds


@pytest.mark.parametrize(
    ("size", "limit"), [("20Gi", "20401094656"), ("1.5G", "1425000000"), ("64Ti", "66850306968780")]
)
@pytest.mark.parametrize("storage_class", ["", "fast"])
def test_a_triton_keeps_below_the_size_of_its_store(
    size: str, limit: str, storage_class: str
) -> None:
    """Over it the kubelet would end the pod, and each one in its place."""
    store = {"size": size, "storageClassName": storage_class}
    objects = rendered(CLEARML, {"triton": {"store": store}})
    data = one(objects, "ConfigMap", "demo-triton")["data"]
    assert data[STORE_BYTES_VARIABLE] == limit
    volumes = {each["name"]: each for each in pods(objects)["demo-triton"]["spec"]["volumes"]}
    assert f"'{size}'" in str(volumes["state"])


def test_room_on_the_nodes_disk_may_be_asked_for() -> None:
    """By the value that the store's class names; by default small nodes have a Triton, too."""
    (told,) = re.findall(r"triton\.resources\.requests\.([\w-]+)", VALUES.read_text("utf-8"))
    given = {"triton": {"resources": {"requests": {told: "20Gi"}}}}
    requests = container(rendered(CLEARML, given), "demo-triton")["resources"]["requests"]
    assert requests == {"cpu": "2", "memory": "4Gi", "ephemeral-storage": "20Gi"}


def test_the_state_of_inference_has_a_size() -> None:
    for values, size in (({}, "2Gi"), ({"inference": {"stateSize": "512Mi"}}, "512Mi")):
        (state,) = (
            each
            for each in pods(rendered(CLEARML, values))["demo-inference"]["spec"]["volumes"]
            if each["name"] == "state"
        )
        assert state["emptyDir"] == {"sizeLimit": size}


def test_tritons_may_share_what_they_fetch() -> None:
    objects = rendered(CLEARML, {"triton": {"store": {"sharedClaim": "models"}}})
    folder = one(objects, "ConfigMap", "demo-triton")["data"]["TRANSFORMER_SERVING_MODEL_CACHE"]
    volumes = pods(objects)["demo-triton"]["spec"]["volumes"]
    claim = {"name": "models", "persistentVolumeClaim": {"claimName": "models"}}
    assert claim in volumes
    mounts = container(objects, "demo-triton")["volumeMounts"]
    assert {"name": "models", "mountPath": folder} in mounts
    # The repository stays each pod's own.
    assert {"name": "state", "mountPath": "/var/lib/transformer-serving"} in mounts
    without = one(rendered(CLEARML), "ConfigMap", "demo-triton")["data"]
    assert "TRANSFORMER_SERVING_MODEL_CACHE" not in without
