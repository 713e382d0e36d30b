"""Every object against the strict schemas of each Kubernetes version, and Helm's own lint."""

from __future__ import annotations

import functools
import json
import re
from importlib.resources import files
from typing import Any

import helm_python
import pytest
from hypothesis import assume, given, settings, strategies
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from tests.kubernetes.chart import CHART, CLEARML, LOCAL, Manifest, chart, merged, pods, rendered

VERSIONS = [f"1.{minor}" for minor in range(25, 38)]
# Of others than Kubernetes: tests/kubernetes/test_custom_resources.py.
CUSTOM = {"ScaledObject", "PodMonitor", "PrometheusRule", "HTTPRoute"}
EVERYTHING: dict[str, Any] = {
    "googleSecret": "google",
    "trustedKeys": f"release:{'A' * 43}=",
    "images": {"registry": "registry.example", "pullSecrets": ["pull"]},
    "inference": {
        "service": {"type": "LoadBalancer", "annotations": {"a": "b"}},
        "settings": {"TRANSFORMER_SERVING_GRPC_PORT": 8001},
        "extraEnv": [{"name": "OTEL_SERVICE_NAME", "value": "serving"}],
        "podAnnotations": {"a": "b"},
        "nodeSelector": {"pool": "cpu"},
        "priorityClassName": "high",
    },
    "triton": {
        "gpus": 1,
        "runtimeClassName": "nvidia",
        "store": {"size": "100Gi", "storageClassName": "fast", "sharedClaim": "models"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "affinity": {"nodeAffinity": {}},
        "maxUnavailable": "50%",
        "autoscaling": {
            "enabled": True,
            "minReplicas": 1,
            "prometheus": "http://prometheus:9090",
            "authentication": "prometheus",
        },
    },
    "networkPolicy": {
        "callers": [{"namespaceSelector": {"matchLabels": {"name": "callers"}}}],
        "prometheus": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}],
        "extraEgress": [{"ports": [{"port": 4318, "protocol": "TCP"}]}],
    },
    "monitoring": {
        "podMonitors": True,
        "rules": True,
        "dashboards": True,
        "ruleGroups": [{"name": "mine", "rules": [{"record": "a:b", "expr": "1"}]}],
    },
    "ingress": {"enabled": True, "className": "nginx", "host": "a.example", "tlsSecret": "front"},
    "route": {
        "enabled": True,
        "parentRefs": [{"name": "public", "namespace": "gateways"}],
        "hostnames": ["a.example"],
    },
    "access": {"metricsKeySecret": "metrics"},
}
VLLM = {"triton": {"vllm": True, "gpus": 1}}
TLS = {"access": {"tlsSecret": "tls", "callersSecret": "callers"}}
TO_ZERO = {"triton": {"autoscaling": {**EVERYTHING["triton"]["autoscaling"], "minReplicas": 0}}}
RELEASES: dict[str, dict[str, Any]] = {
    "local": LOCAL,
    "clearml": CLEARML,
    "everything": merged(CLEARML, EVERYTHING),
    "everything-local": merged(EVERYTHING, LOCAL),
    "tls": merged(CLEARML, TLS),
    "vllm": merged(CLEARML, VLLM),
    "to-zero": merged(CLEARML, TO_ZERO),
}


@functools.cache
def schema_text(version: str, name: str) -> Any:
    folder = files("kubernetes_validate") / "kubernetes-json-schema"
    return json.loads((folder / f"v{version}.0-local-strict" / name).read_text("utf-8"))


@functools.cache
def validator(version: str, api_version: str, kind: str) -> Draft202012Validator:
    """Raises FileNotFoundError for what that version does not have."""
    group = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", api_version)
    schema = schema_text(version, f"{kind.lower()}-{group}.json")
    definitions = Resource.from_contents(schema_text(version, "_definitions.json"))
    registry: Registry[Any] = definitions @ Registry()
    return Draft202012Validator(schema, registry=registry)


def faults(object_: Manifest, version: str) -> list[str]:
    found = validator(version, object_["apiVersion"], object_["kind"]).iter_errors(object_)
    where = f"{object_['kind']} {object_['metadata']['name']}"
    return [f"{where} {'/'.join(map(str, fault.path))}: {fault.message}" for fault in found]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("release", RELEASES)
def test_every_object_is_what_that_version_takes(release: str, version: str) -> None:
    objects = rendered(RELEASES[release], kubernetes=version)
    known = [each for each in objects if each["kind"] not in CUSTOM]
    assert len(known) > 10
    assert [fault for each in known for fault in faults(each, version)] == []


@pytest.mark.parametrize("name", ["no", "true", "null"])
def test_names_that_yaml_reads_otherwise_stay_names(name: str) -> None:
    """Unquoted they are a truth, nothing or a number, which Helm refuses by no name of a value."""
    number = "2026"
    named = {
        "existingSecret": number,
        "googleSecret": number,
        "images": {"registry": "", "inference": number, "triton": number, "pullSecrets": [number]},
        "access": {"keysSecret": number, "metricsKeySecret": number},
        "triton": {
            "priorityClassName": number,
            "runtimeClassName": number,
            "store": {"storageClassName": number, "sharedClaim": number},
        },
        "ingress": {"className": number, "tlsSecret": number},
    }
    own = {"local": {"storageClassName": number}, "images": {"controlPlane": number}}
    secrets = ("keysSecret", "metricsKeySecret", "tlsSecret", "callersSecret")
    tls = {
        "access": dict.fromkeys(secrets, number),
        "monitoring": {"podMonitors": True, "serverName": "a.example", "caSecret": number},
    }
    for layers in (
        ({**CLEARML, "credentials": {}}, EVERYTHING, named),
        (LOCAL, own, named, {"access": {"open": False}}),
        (CLEARML, tls),
    ):
        objects = rendered(*layers, name=name, namespace=number)
        known = [each for each in objects if each["kind"] not in CUSTOM]
        assert [fault for each in known for fault in faults(each, VERSIONS[-1])] == []
        assert {each["metadata"]["namespace"] for each in objects} == {number}


def test_the_schemas_see_a_field_in_the_wrong_place() -> None:
    """The official chart's fault: nodeSelector inside the container."""
    object_ = next(each for each in rendered(CLEARML) if each["kind"] == "Deployment")
    object_["spec"]["template"]["spec"]["containers"][0]["nodeSelector"] = {}
    assert "nodeSelector" in faults(object_, VERSIONS[-1])[0]


@pytest.mark.parametrize("release", ["local", "clearml", "everything"])
def test_lint_is_clean(release: str) -> None:
    found = helm_python.lint(CHART, RELEASES[release])
    # An icon would be fetched from elsewhere.
    said = [each["error"] for each in found["messages"]]
    assert said == ["icon is recommended"]


def some(*names: str) -> strategies.SearchStrategy[dict[str, Any]]:
    return strategies.fixed_dictionaries({}, optional={name: OPTIONS[name] for name in names})


BOOLEANS = strategies.booleans()
OPTIONS: dict[str, strategies.SearchStrategy[Any]] = {
    "inference": strategies.fixed_dictionaries(
        {},
        optional={
            "replicas": strategies.integers(0, 9),
            "autoscaling": strategies.fixed_dictionaries({"enabled": BOOLEANS}),
            "maxUnavailable": strategies.sampled_from([0, 2, "25%"]),
            "settings": strategies.fixed_dictionaries(
                {},
                optional={
                    "TRANSFORMER_SERVING_DRAIN_SECONDS": strategies.sampled_from([0, 2.5, "9"]),
                    "TRANSFORMER_SERVING_GRPC_PORT": strategies.sampled_from([0, "0", 8001, "9"]),
                    "TRANSFORMER_SERVING_MAX_WAITING_TOKENS": strategies.integers(1, 10**9),
                },
            ),
        },
    ),
    "triton": strategies.fixed_dictionaries(
        {},
        optional={
            "gpus": strategies.integers(0, 8),
            "strategy": strategies.sampled_from(["RollingUpdate", "Recreate"]),
            "startupSeconds": strategies.integers(30, 9999),
            "store": strategies.fixed_dictionaries(
                {
                    "storageClassName": strategies.sampled_from(["", "fast"]),
                    "sharedClaim": strategies.sampled_from(["", "models"]),
                }
            ),
            "autoscaling": strategies.fixed_dictionaries(
                {
                    "enabled": BOOLEANS,
                    "minReplicas": strategies.integers(0, 4),
                    "prometheus": strategies.just("http://prometheus:9090"),
                }
            ),
        },
    ),
    "networkPolicy": strategies.fixed_dictionaries({"enabled": BOOLEANS}),
    "monitoring": strategies.sampled_from(
        [
            {"podMonitors": True, "dashboards": True},
            {"podMonitors": True, "rules": True},
            {"dashboards": True},
        ]
    ),
    "route": strategies.just({"enabled": True, "parentRefs": [{"name": "public"}]}),
    "ingress": strategies.just({"enabled": True, "host": "a.example"}),
    "pollMinutes": strategies.floats(0.01, 60),
    "googleSecret": strategies.sampled_from(["", "google"]),
}


@pytest.mark.slow
@settings(max_examples=40)
@given(values=some(*OPTIONS), base=strategies.sampled_from([LOCAL, CLEARML]))
def test_options_go_together(values: dict[str, Any], base: dict[str, Any]) -> None:
    scaled = values.get("triton", {}).get("autoscaling", {"minReplicas": 1})
    # These are refused: test_refusals.py.
    assume(not (scaled["minReplicas"] == 0 and values.get("monitoring", {}).get("rules")))
    objects = rendered(base, {"access": {"metricsKeySecret": "metrics"}}, values)
    known = [each for each in objects if each["kind"] not in CUSTOM]
    assert [fault for each in known for fault in faults(each, VERSIONS[-1])] == []
    names = [(each["kind"], each["metadata"]["name"]) for each in objects]
    assert len(names) == len(set(names))
    for pod in pods(objects).values():
        chosen = pod["metadata"]["labels"]
        assert chosen["app.kubernetes.io/instance"] == "demo"
        for each in (*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]):
            # Helm's server-side apply refuses a name that comes twice.
            given = [variable["name"] for variable in each.get("env", ())]
            assert len(given) == len(set(given))
        mounts = [mount["mountPath"] for mount in pod["spec"]["containers"][0]["volumeMounts"]]
        assert len(mounts) == len(set(mounts))


def test_newer_clusters_are_not_refused() -> None:
    """The official chart's other fault: an upper bound that Helm holds every cluster to."""
    assert chart().metadata["kubeVersion"] == ">=1.25.0-0"
