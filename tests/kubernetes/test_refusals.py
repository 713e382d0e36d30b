"""Values that must be refused, each by a sentence that names the value and what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import helm_python
import pytest

from tests.kubernetes.chart import CLEARML, LOCAL, chart_that_is_told, merged, rendered
from transformer_serving.contract.signatures import TRUSTED_KEYS_VARIABLE, read_trusted_keys

ALERTS = {"monitoring": {"podMonitors": True, "rules": True}, "access": {"open": True}}
TOGETHER: dict[str, tuple[dict[str, Any], str]] = {
    "no server": ({"access": {"open": True}}, "clearml.CLEARML_WEB_HOST is empty"),
    "no service": (
        {**CLEARML, "clearml": {**CLEARML["clearml"], "CLEARML_SERVING_TASK_ID": ""}},
        "the id that 'clearml-serving create' printed",
    ),
    "no keys of ClearML": ({**CLEARML, "credentials": {}}, "name a Secret that has it"),
    "two places for keys": ({**CLEARML, "existingSecret": "mine"}, "both set"),
    "two control planes": (
        {**LOCAL, "clearml": {"CLEARML_API_HOST": "https://a.example"}},
        "set local.enabled=false",
    ),
    "nobody is kept out": ({**CLEARML, "access": {}}, "access.keysSecret, or set access.open=true"),
    "open and closed": (
        {**CLEARML, "access": {"open": True, "keysSecret": "keys"}}, "leave one out",
    ),
    "callers without TLS": (
        {**CLEARML, "access": {"open": True, "callersSecret": "c"}}, "needs access.tlsSecret",
    ),
    "a certificate's name without TLS": (
        {
            **CLEARML,
            "access": {"open": True},
            "monitoring": {"podMonitors": True, "serverName": "serving.example"},
        },
        "monitoring.serverName needs access.tlsSecret",
    ),
    "an authority without a certificate's name": (
        {
            **CLEARML,
            "access": {"open": True, "tlsSecret": "tls"},
            "monitoring": {"podMonitors": True, "caSecret": "tls"},
        },
        "monitoring.caSecret needs monitoring.serverName",
    ),
    "TLS twice": (
        {
            **CLEARML,
            "access": {"open": True, "tlsSecret": "tls"},
            "ingress": {"enabled": True, "host": "a.example"},
        },
        "TLS ends there",
    ),
    "figures without a key": (
        {**CLEARML, "monitoring": {"podMonitors": True}}, "needs access.metricsKeySecret",
    ),
    "minimum above maximum": (
        {**CLEARML, "inference": {"autoscaling": {"minReplicas": 11}}},
        "inference.autoscaling.minReplicas is 11 and maxReplicas 10",
    ),
    "KEDA without Prometheus": (
        {**CLEARML, "triton": {"autoscaling": {"enabled": True}}},
        "needs triton.autoscaling.prometheus",
    ),
    "rates of a minute, of a figure a minute": (
        {
            **CLEARML,
            "access": {"open": True},
            "monitoring": {"podMonitors": True, "interval": "1m"},
            "triton": {"autoscaling": {"enabled": True, "prometheus": "http://p"}},
        },
        "monitoring.interval is 1m, and triton.autoscaling looks at rates of a minute",
    ),
    "a share of no CPU": (
        {**CLEARML, "inference": {"resources": {"requests": {"cpu": None}}}},
        "needs inference.resources.requests.cpu",
    ),
    "a share of a limit of none": (
        {**CLEARML, "inference": {"resources": {"requests": None, "limits": {"cpu": "0m"}}}},
        "needs inference.resources.requests.cpu",
    ),
    **{
        f"more paths than a route takes, with {setting}": (
            {
                **CLEARML,
                "route": {"enabled": True, "parentRefs": [{"name": "public"}]},
                "publicPaths": [f"/serve/{number}" for number in range(128)],
                "inference": {"settings": {f"TRANSFORMER_SERVING_{setting}_ENDPOINT": "texts"}},
            },
            "_ROOT_ENDPOINT, are 129, and a route takes 128: give fewer",
        )
        for setting in ("GENERATE", "ROOT")
    },
    "one port twice": (
        {**CLEARML, "inference": {"settings": {"TRANSFORMER_SERVING_GRPC_PORT": "8080"}}},
        "take another, such as 8001",
    ),
    "one port twice, in other words": (
        {**CLEARML, "inference": {"settings": {"TRANSFORMER_SERVING_GRPC_PORT": "+8080.0"}}},
        "take another, such as 8001",
    ),
    "no port": (
        {**CLEARML, "inference": {"settings": {"TRANSFORMER_SERVING_GRPC_PORT": "65536"}}},
        "TRANSFORMER_SERVING_GRPC_PORT is '65536': give a port of at most 65535",
    ),
    "ingress without a host": ({**CLEARML, "ingress": {"enabled": True}}, "needs ingress.host"),
    "alerts without figures": (
        {**CLEARML, "monitoring": {"rules": True}}, "needs monitoring.podMonitors",
    ),
    "figures that callers' policy keeps from Prometheus": (
        {
            **CLEARML,
            "monitoring": {"podMonitors": True},
            "access": {"open": True},
            "networkPolicy": {"callers": [{"podSelector": {}}]},
        },
        "needs networkPolicy.prometheus",
    ),
    "alerts that a Triton serves, and none that has to": (
        {
            **CLEARML,
            **ALERTS,
            "triton": {
                "autoscaling": {"enabled": True, "prometheus": "http://p", "minReplicas": 0}
            },
        },
        "set triton.autoscaling.minReplicas to 1",
    ),
    "another release's Triton, and none that has to": (
        {
            **CLEARML,
            "triton": {
                "autoscaling": {"enabled": True, "prometheus": "http://p", "minReplicas": 0}
            },
            "networkPolicy": {"tritonCallers": [{"podSelector": {}}]},
        },
        "another release ask, whose requests start no Triton",
    ),
    "tasks of the living": ({**CLEARML, "keepTasksMinutes": 1}, "give 5 or more, or 0 for never"),
    "vLLM without a GPU": ({**CLEARML, "triton": {"vllm": True}}, "needs triton.gpus"),
    "vLLM on none of another vendor's": (
        {**CLEARML, "triton": {"vllm": True, "resources": {"limits": {"amd.com/gpu": 0}}}},
        "or a GPU's resource in triton.resources.limits",
    ),
    "less memory than is asked for": (
        {**CLEARML, "triton": {"resources": {"limits": {"memory": "512Mi"}}}},
        "triton.resources.requests.memory is 4Gi and triton.resources.limits.memory 512Mi",
    ),
    "less of a CPU than is asked for": (
        {**CLEARML, "inference": {"resources": {"limits": {"cpu": "500m"}}}},
        "inference.resources.requests.cpu is 1 and inference.resources.limits.cpu 500m",
    ),
    "memory in words": (
        {**LOCAL, "local": {"enabled": True, "resources": {"limits": {"memory": "much"}}}},
        "local.resources.limits.memory is 'much', which is no quantity",
    ),
    **{
        f"{part}.resources.{kind}.{name} of {given}": (
            {**LOCAL, part: {**LOCAL.get(part, {}), "resources": {kind: {name: given}}}},
            f"{part}.resources.{kind}.{name} is {said}",
        )
        for part, kind, name, given, said in (
            ("triton", "requests", "cpu", "two", "'two', which is no quantity"),
            ("local", "requests", "cpu", "0,1", "'0,1', which is no quantity"),
            ("inference", "requests", "memory", True, "'true', which is no quantity"),
            ("triton", "limits", "cpu", "-1", "'-1', which is no quantity"),
            ("triton", "requests", "memroy", "4Gi", "no resource: give cpu, memory, "),
            ("triton", "limits", "nvidia.com/gpu", 0.5, "0.5, and a device is given whole"),
            ("triton", "requests", "nvidia.com/gpu", 2, "2 and has no limit"),
            ("triton", "requests", "hugepages-2Mi", "4Mi", "4Mi and has no limit"),
        )
    },
    **{
        f"resources of {asks} below {limits}": (
            {**LOCAL, "triton": {"resources": {"requests": asks, "limits": limits}, "gpus": gpus}},
            f"triton.resources.{said}",
        )
        for asks, limits, gpus, said in (
            ({}, {"cpu": 0}, 0, "requests.cpu is 2 and triton.resources.limits.cpu 0: the first"),
            (
                {"ephemeral-storage": "20Gi"}, {"ephemeral-storage": "10Gi"}, 0,
                "requests.ephemeral-storage is 20Gi and triton.resources.limits.ephemeral-storage "
                "10Gi: the first must not be more",
            ),
            (
                {"nvidia.com/gpu": 2}, {}, 1,
                "requests.nvidia.com/gpu is 2 and triton.resources.limits.nvidia.com/gpu 1: of "
                "such a resource they must be the same",
            ),
            (
                {"hugepages-2Mi": "2Mi"}, {"hugepages-2Mi": "4Mi"}, 0,
                "requests.hugepages-2Mi is 2Mi and triton.resources.limits.hugepages-2Mi 4Mi: of",
            ),
        )
    },
    "two numbers of GPUs": (
        {**LOCAL, "triton": {"gpus": 4, "resources": {"limits": {"nvidia.com/gpu": 1}}}},
        "triton.gpus is 4 and triton.resources.limits.nvidia.com/gpu 1: leave one out",
    ),
    "route without a gateway": ({**CLEARML, "route": {"enabled": True}}, "needs route.parentRefs"),
}  # fmt: skip
# In base64, of 32 bytes.
KEY = "A" * 43 + "="
ALONE: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown value": ({"replicaCount": 2}, "'replicaCount' not allowed"),
    "an unknown setting": ({"inference": {"settings": {"TIMEOUT": 1}}}, "'TIMEOUT' not allowed"),
    "a setting out of bounds": (
        {"inference": {"settings": {"TRANSFORMER_SERVING_GRPC_PORT": 70_000}}},
        "'/inference/settings/TRANSFORMER_SERVING_GRPC_PORT'",
    ),
    **{
        f"{part}: {name} is {value!r}": (
            {part: {"settings": {f"TRANSFORMER_SERVING_{name}": value}}},
            f"'/{part}/settings/TRANSFORMER_SERVING_{name}'",
        )
        for part, name, value in (
            ("inference", "MAX_WAIT_S", 0),
            ("inference", "TIMEOUT_S", "30s"),
            ("inference", "CALLS_IN_FLIGHT", 0),
            ("inference", "MAX_STREAMS", -1),
            ("inference", "TRANSPORT", "pigeon"),
            ("inference", "DRAIN_SECONDS", "abc"),
            ("inference", "GRPC_PORT", 8001.5),
            ("inference", "GRPC_PORT", "8001.5"),
            ("triton", "TRITON_EXIT_SECONDS", 0),
            ("triton", "TRITON_EXIT_SECONDS", "abc"),
        )
    },
    **{
        f"trusted keys: {keys}": ({"trustedKeys": keys}, "'/trustedKeys'")
        for keys in (
            "release:AAAA",
            f"release={KEY}",
            f"a:{KEY},b:{KEY}",
            f"a:{KEY} b",
            f"a b:{KEY}",
            f"{'a' * 65}:{KEY}",
        )
    },
    "a text for a number": ({"inference": {"replicas": "two"}}, "got string, want integer"),
    "negative replicas": ({"triton": {"replicas": -1}}, "'/triton/replicas'"),
    "no size": ({"triton": {"store": {"size": "much"}}}, "'/triton/store/size'"),
    "no size of inference": ({"inference": {"stateSize": "1 Gi"}}, "'/inference/stateSize'"),
    "no strategy": ({"triton": {"strategy": "BlueGreen"}}, "'/triton/strategy'"),
    "a registry without its image": (
        {"images": {"triton": "registry.example:5000/"}},
        "'/images/triton'",
    ),
    "no image": ({"images": {"triton": "Triton Image"}}, "'/images/triton'"),
    "a registry with a scheme": (
        {"images": {"registry": "https://registry.example"}},
        "'/images/registry'",
    ),
    **{
        f"an address of ClearML that is {address}": (
            {"clearml": {"CLEARML_FILES_HOST": address}},
            "'/clearml/CLEARML_FILES_HOST'",
        )
        for address in ("files.clearml.example:8081", "https://", "//files.clearml.example")
    },
    **{
        f"a host that is {host}": ({"ingress": {"host": host}}, "'/ingress/host'")
        for host in ("https://a.example", "a.example:8443", "A.example", "a.example/texts")
    },
    **{
        f"a route's host that is '{host}'": (
            {"route": {"hostnames": ["b.example", host]}},
            "'/route/hostnames/1'",
        )
        for host in ("https://a.example", "a.example:8443", "")
    },
    **{
        f"{name} that say nothing": (
            {"networkPolicy": {name: [{"podSelector": {}}, {}]}},
            f"'/networkPolicy/{name}/1'",
        )
        for name in ("callers", "prometheus", "tritonCallers")
    },
    "a peer that is an address and a pod": (
        {"networkPolicy": {"callers": [{"ipBlock": {"cidr": "10.0.0.0/8"}, "podSelector": {}}]}},
        "'/networkPolicy/callers/0'",
    ),
    "a peer that is an address and a pod, beside none": (
        {
            "networkPolicy": {
                "callers": [
                    {
                        "ipBlock": {"cidr": "10.0.0.0/8"},
                        "namespaceSelector": {},
                        "podSelector": None,
                    }
                ]
            }
        },
        "'/networkPolicy/callers/0'",
    ),
    "a peer of nothing but nulls": (
        {"networkPolicy": {"callers": [{"podSelector": None, "namespaceSelector": None}]}},
        "'/networkPolicy/callers/0'",
    ),
    "more paths than a route's rules take": (
        {"publicPaths": [f"/serve/{number}" for number in range(129)]},
        "'/publicPaths'",
    ),
    **{
        f"outside: {path}": ({"publicPaths": ["/serve", path]}, "'/publicPaths/1'")
        for path in ("/", "//", "/metrics", "/metrics/", "//metrics//")
    },
    "polls without a pause": ({"pollMinutes": 0}, "'/pollMinutes'"),
    "a value that is gone": ({"triton": {"leaveSeconds": None}}, "missing property 'leaveSeconds'"),
    "a part that is gone": ({"networkPolicy": None}, "missing property 'networkPolicy'"),
    "rules in words": ({"monitoring": {"rules": "all"}}, "got string, want boolean"),
    "a label that is no text": (
        {"monitoring": {"dashboardLabels": {"grafana_dashboard": 1}}},
        "'/monitoring/dashboardLabels/grafana_dashboard'",
    ),
    "a claim that is no name": (
        {"triton": {"store": {"sharedClaim": "My Models"}}},
        "'/triton/store/sharedClaim'",
    ),
    "a Prometheus without a scheme": (
        {"triton": {"autoscaling": {"prometheus": "prometheus:9090"}}},
        "'/triton/autoscaling/prometheus'",
    ),
}


@pytest.mark.parametrize("case", TOGETHER)
def test_values_that_do_not_go_together(case: str) -> None:
    values, sentence = TOGETHER[case]
    with pytest.raises(helm_python.HelmError) as refused:
        rendered(values)
    assert sentence in str(refused.value)


@pytest.mark.parametrize("case", ALONE)
def test_values_that_are_wrong_by_themselves(case: str) -> None:
    values, sentence = ALONE[case]
    with pytest.raises(helm_python.HelmError) as refused:
        rendered(CLEARML, values)
    assert sentence in str(refused.value)


@pytest.mark.parametrize("keys", ["", f"a:{KEY}", f"a.b_c-1:{KEY} b:+/9z{KEY[4:]}", f" a:{KEY}\n"])
def test_trusted_keys_are_taken_as_the_containers_read_them(keys: str) -> None:
    assert rendered(CLEARML, {"trustedKeys": keys})
    read_trusted_keys({TRUSTED_KEYS_VARIABLE: keys})


@pytest.mark.parametrize(
    ("asked", "limit"), [(1, "1"), ("100m", 0.5), ("0.5", "500m"), ("1e3", "1k"), (2, None)]
)
def test_a_limit_may_be_written_otherwise(asked: object, limit: object) -> None:
    resources = {"requests": {"cpu": asked}, "limits": {"cpu": limit}}
    assert rendered(CLEARML, {"triton": {"resources": resources}})


@pytest.mark.parametrize(
    ("asks", "limits"),
    [
        ({"memory": 4294967296}, {"memory": 8589934592}),
        ({"cpu": "51m"}, {"cpu": 0.051}),
        ({"nvidia.com/gpu": 2, "hugepages-2Mi": "2048Ki"}, {"hugepages-2Mi": "2Mi"}),
        ({"nvidia.com/gpu": "2"}, {"nvidia.com/gpu": 2, "example.com/nic": "1"}),
        ({"ephemeral-storage": "20Gi"}, {"memory": None}),
        (None, None),
    ],
)
def test_resources_that_an_api_server_takes_are_taken(asks: object, limits: object) -> None:
    triton = {"gpus": 2, "resources": {"requests": asks, "limits": limits}}
    assert rendered(CLEARML, {"triton": triton})


@pytest.mark.parametrize("interval", ["20s", "1m"])
def test_rates_of_who_reads_figures_otherwise_are_theirs_to_judge(interval: str) -> None:
    """Without podMonitors nobody goes by the interval."""
    scaled = {"triton": {"autoscaling": {"enabled": True, "prometheus": "http://p"}}}
    monitoring = {"podMonitors": interval == "20s", "interval": interval}
    assert rendered(
        CLEARML, scaled, {"monitoring": monitoring}, {"access": {"metricsKeySecret": "m"}}
    )


CLAIMED = {
    "a larger volume": (
        {"size": "20Gi"},
        "local.size is 20Gi, and Kubernetes keeps the 10Gi that the StatefulSet was made with: "
        "enlarge the claim data-demo-control-plane-0 itself",
    ),
    "another class": (
        {"storageClassName": "fast"},
        "local.storageClassName is 'fast', and Kubernetes keeps the ''",
    ),
}


def with_claim(folder: Path) -> helm_python.Chart:
    """The chart in a cluster that has its StatefulSet."""
    (plane,) = (each for each in rendered(LOCAL) if each["kind"] == "StatefulSet")
    asked = 'lookup "apps/v1" "StatefulSet" .Release.Namespace $name'
    found = json.dumps(json.dumps(plane))
    return chart_that_is_told(folder, "_quantities.tpl", asked, f"fromJson {found}")


@pytest.mark.parametrize("case", CLAIMED)
def test_what_a_statefulset_claimed_stays(tmp_path: Path, case: str) -> None:
    """The API server would refuse it when the other objects are changed already."""
    values, sentence = CLAIMED[case]
    with pytest.raises(helm_python.HelmError) as refused:
        with_claim(tmp_path).render(merged(LOCAL, {"local": values}), name="demo")
    assert sentence in str(refused.value)
    assert "kubectl delete statefulset demo-control-plane --cascade=orphan" in str(refused.value)


def test_a_claim_of_the_same_size_is_no_change(tmp_path: Path) -> None:
    with with_claim(tmp_path) as chart:
        assert chart.render(merged(LOCAL, {"local": {"size": "10240Mi"}}), name="demo")


@pytest.mark.parametrize(
    ("modes", "triton", "refused"),
    [
        (["ReadWriteOnce"], {}, "a claim of ReadWriteOnce, which a pod on another node waits for"),
        (["ReadWriteOncePod", "ReadOnlyMany"], {}, "a claim of ReadWriteOncePod, ReadOnlyMany, "),
        (["ReadWriteOnce"], {"strategy": "Recreate", "replicas": 2}, "give one of ReadWriteMany"),
        (["ReadWriteOnce"], {"strategy": "Recreate"}, None),
        (["ReadWriteOnce", "ReadWriteMany"], {"replicas": 3}, None),
    ],
)
def test_a_shared_claim_is_one_that_several_nodes_mount(
    tmp_path: Path, modes: list[str], triton: dict[str, Any], refused: str | None
) -> None:
    """The pod that an update begins would wait for it for good, and the old one for that pod."""
    asked = 'lookup "v1" "PersistentVolumeClaim" .Release.Namespace $name'
    found = json.dumps(json.dumps({"spec": {"accessModes": modes}}))
    values = merged(CLEARML, {"triton": {"store": {"sharedClaim": "models"}, **triton}})
    with chart_that_is_told(tmp_path, "_checks.tpl", asked, f"fromJson {found}") as chart:
        if refused is None:
            assert chart.render(values, name="demo")
            return
        with pytest.raises(helm_python.HelmError) as error:
            chart.render(values, name="demo")
    assert "triton.store.sharedClaim is 'models', a claim of " in str(error.value)
    assert refused in str(error.value)


def test_a_release_with_too_long_a_name() -> None:
    with pytest.raises(helm_python.HelmError, match="may have 40 characters and has 41"):
        rendered(CLEARML, name="a" * 41)
    assert rendered(CLEARML, name="a" * 40)


@pytest.mark.parametrize("name", ["1demo", "prod.eu"])
def test_a_release_whose_services_had_no_name(name: str) -> None:
    with pytest.raises(helm_python.HelmError) as refused:
        rendered(CLEARML, name=name)
    assert f"the release's name is '{name}'" in str(refused.value)
    proposed = f"r-{name.replace('.', '-')}"
    assert f"such as '{proposed}'" in str(refused.value)
    assert rendered(CLEARML, name=proposed)


@pytest.mark.parametrize(
    "values",
    [
        {"images": {"registry": "registry.example:5000/team/"}},
        {"images": {"registry": "my_team"}},
        {"clearml": {"CLEARML_FILES_HOST": "s3://bucket/serving"}},
        {"clearml": {"CLEARML_FILES_HOST": "azure://account.blob.core.windows.net/serving"}},
        {"ingress": {"host": "*.texts.example"}},
        {"route": {"hostnames": ["a.example", "*.b.example"]}},
        {"networkPolicy": {"callers": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}},
        *(
            {"networkPolicy": {name: [{"podSelector": pods, "namespaceSelector": spaces}]}}
            for name in ("callers", "tritonCallers")
            for pods, spaces in (({}, None), (None, {}), ({}, {}))
        ),
    ],
)
def test_names_of_hosts_stores_and_peers_that_are_taken(values: dict[str, Any]) -> None:
    assert rendered(CLEARML, values)


def test_the_control_planes_pod_has_a_label_of_its_name_and_ten_characters() -> None:
    """controller-revision-hash, of 63 at most; a longer one is no pod."""
    with pytest.raises(helm_python.HelmError, match="may have 38 characters and has 39"):
        rendered(LOCAL, name="a" * 39)
    (control_plane,) = (
        each for each in rendered(LOCAL, name="a" * 38) if each["kind"] == "StatefulSet"
    )
    assert len(control_plane["metadata"]["name"]) + len("-") + 10 <= 63
