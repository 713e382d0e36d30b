"""The chart on a real cluster, as one story: installed, asked, rolled, killed, drained.

The order counts: the cluster is one, and each test leaves it serving.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.compose.conftest import kill, kill_tritonserver, started, wait_for, wait_until_answered
from tests.compose.machine import run
from tests.kubernetes.cluster.components import NODE, Cluster
from tests.kubernetes.cluster.figures import DRAIN, DRAINED_TRITONS, ClusterFigures
from tests.kubernetes.cluster.names import Names
from tests.kubernetes.cluster.outside import CLIENTS, ENDPOINT, PORT, forwarded, load, status
from tests.kubernetes.cluster.release import Release, container_id, is_ready, leaves, restarts
from tests.kubernetes.cluster.start_times import inference_steps, replaced, triton_steps
from transformer_serving.desk.bundle.folder import open_bundle

PARTS = ("inference", "triton")


def test_what_is_deployed_from_outside_is_answered(serving: Release, bundles: Path) -> None:
    golden = open_bundle(bundles / ENDPOINT).manifest.golden
    with forwarded(serving, inference=PORT) as ports:
        url = f"http://127.0.0.1:{ports['inference']}/serve/{ENDPOINT}"
        answer = run(
            "curl", "--silent", "--fail", "-X", "POST", url, "-H", "Content-Type: application/json",
            "-d", json.dumps(golden.request),
        )  # fmt: skip
    assert json.loads(answer)["label"] == golden.answer["label"]


def test_pods_are_confined_and_know_no_token(serving: Release) -> None:
    pods = [pod for name in ("inference", "triton", "control-plane") for pod in serving.pods(name)]
    assert len(pods) == 4
    for pod in pods:
        name = pod["metadata"]["name"]
        assert serving.kubectl("exec", name, "--", "id", "-u").strip() == "10001"
        look = "test ! -e /var/run/secrets/kubernetes.io && ! touch /opt/written 2> /dev/null"
        serving.kubectl("exec", name, "--", "sh", "-c", look)


def test_a_rolling_update_of_inference_fails_no_request(
    serving: Release, figures: ClusterFigures
) -> None:
    before = serving.names("inference")
    with load(serving) as sent:
        wait_until_answered(sent)
        serving.restart("inference")
        serving.rolled_out("inference")
        wait_until_answered(sent)
    figures.load("rolling update of inference", sent)
    assert not before & serving.names("inference")
    assert sent.failed == 0, sent.seen


def test_a_rolling_update_of_triton_fails_no_request(
    serving: Release, names: Names, figures: ClusterFigures
) -> None:
    """Also where the workers' DNS server learns of it as late as one does."""
    before = serving.names("triton")
    with load(serving) as sent:
        wait_until_answered(sent)
        names.hold()
        serving.restart("triton")
        wait_for(lambda: any(map(leaves, serving.pods("triton"))), "the old one leaves")
        names.let_go()
        serving.rolled_out("triton")
        wait_until_answered(sent)
    figures.load("rolling update of Triton", sent)
    assert not before & serving.names("triton")
    assert sent.failed == 0, sent.seen


def test_a_deleted_pod_fails_no_request(serving: Release, figures: ClusterFigures) -> None:
    victim = sorted(serving.names("inference"))[0]
    with load(serving) as sent:
        wait_until_answered(sent)
        serving.kubectl("delete", "pod", victim)
        serving.settled("inference", 2)
        wait_until_answered(sent)
    figures.load("`kubectl delete pod` of one of two of inference", sent)
    assert sent.failed == 0, sent.seen


def test_a_killed_pod_fails_only_what_was_in_flight_there(
    serving: Release, figures: ClusterFigures
) -> None:
    victim = serving.pods("inference")[0]
    with load(serving) as sent:
        wait_until_answered(sent)
        kill(container_id(victim))
        wait_until_answered(sent, 400)
        wait_for(lambda: restarted(serving, victim), "started again")
        serving.settled("inference", 2)
    figures.load("kill -9 of one of two of inference", sent)
    # Each client had one request on its way at most; the Service may name the dead one for a
    # moment to those who connect anew.
    assert sent.failed <= 2 * CLIENTS, sent.seen


def test_a_killed_tritonserver_comes_back_in_its_pod(
    serving: Release, figures: ClusterFigures
) -> None:
    (pod,) = serving.pods("triton")
    since = started(container_id(pod))
    kill_tritonserver(container_id(pod))
    wait_for(lambda: status(serving) == 503, "the engine is seen to be away")
    killed = time.monotonic()
    wait_for(lambda: status(serving) == 200, "the engine is back")
    figures.recovery("tritonserver killed", time.monotonic() - killed)
    (after,) = serving.pods("triton")
    assert after["metadata"]["name"] == pod["metadata"]["name"]
    assert started(container_id(after)) == since
    serving.settled("triton", 1)


def test_a_killed_container_of_triton_comes_back_with_its_models(
    serving: Release, figures: ClusterFigures
) -> None:
    (pod,) = serving.pods("triton")
    kill(container_id(pod))
    killed = time.monotonic()
    wait_for(lambda: restarted(serving, pod), "started again")
    wait_for(lambda: status(serving) == 200, "the engine is back")
    figures.recovery("its container killed", time.monotonic() - killed)
    serving.settled("triton", 1)


def test_a_killed_kubelet_is_no_matter_to_requests(
    serving: Release, cluster: Cluster, figures: ClusterFigures
) -> None:
    """For the seconds until its node's supervisor has started it again."""
    before = containers(serving)
    with load(serving) as sent:
        wait_until_answered(sent)
        cluster.kill_kubelet()
        wait_until_answered(sent, 1000)
        last = cluster.heartbeat()
        cluster.start_kubelet()
        wait_for(lambda: cluster.heartbeat() != last, "the new kubelet says that it is there")
        serving.settled("inference", 2)
        serving.settled("triton", 1)
        wait_until_answered(sent)
    figures.load("kill -9 of the node's kubelet, started again", sent)
    assert containers(serving) == before
    assert sent.failed == 0, sent.seen


def test_a_lost_node_leaves_no_address(
    serving: Release, cluster: Cluster, figures: ClusterFigures
) -> None:
    """A node whose kubelet stays away: nobody is sent to its pods, until it is back."""
    # The controllers look every 5 s. Of a node that they saw not ready before it went away, as one
    # is whose kubelet was just started, they do not mark the pods.
    wait_for(lambda: cluster.ready_for() > 15, "the node is seen to be ready")
    cluster.kill_kubelet()
    try:
        # First: a kubelet that was started just before may have found its pods not ready.
        wait_for(lambda: cluster.node_status() == "Unknown", "the node is seen to be away")
        wait_for(lambda: not any(map(serving.ready_addresses, PARTS)), "no address is left")
    finally:
        cluster.start_kubelet()
    back = time.monotonic()
    wait_for(lambda: status(serving) == 200, "the node serves again")
    figures.recovery("a lost node back", time.monotonic() - back)
    for name, count in zip(PARTS, (2, 1), strict=True):
        serving.settled(name, count)
        assert len(serving.ready_addresses(name)) == count


def restarted(serving: Release, before: dict[str, Any]) -> bool:
    """A container of the same pod runs in the place of the one before."""
    name = before["metadata"]["name"]
    pods = [*serving.pods("inference"), *serving.pods("triton")]
    (pod,) = [one for one in pods if one["metadata"]["name"] == name]
    return restarts(pod) > restarts(before) and is_ready(pod)


def containers(serving: Release) -> set[str]:
    """Containers that serve, by Docker's ids: another one after a restart."""
    pods = serving.pods("inference") + serving.pods("triton")
    return {container_id(pod) for pod in pods}


@pytest.fixture
def two_tritons(serving: Release) -> Iterator[None]:
    serving.upgrade({"triton": {"replicas": DRAINED_TRITONS}})
    serving.settled("triton", DRAINED_TRITONS)
    yield
    serving.upgrade()
    serving.settled("triton", 1)


def test_a_drain_takes_one_pod_at_a_time(
    serving: Release, two_tritons: None, cluster: Cluster, figures: ClusterFigures
) -> None:
    """Of each Deployment: on this one node no other can take its place, so the second one stays."""
    with load(serving) as sent:
        wait_until_answered(sent)
        drain = cluster.kubectl_command(
            "drain", NODE, "--delete-emptydir-data", "--ignore-daemonsets", "--timeout=60s"
        )
        done = subprocess.run(drain, capture_output=True, text=True, check=False)
        left = {name: [pod for pod in serving.pods(name) if is_ready(pod)] for name in PARTS}
        cluster.kubectl("uncordon", NODE)
        for name in PARTS:
            serving.settled(name, 2)
        wait_until_answered(sent)
    figures.load(DRAIN, sent)
    assert done.returncode != 0
    assert "disruption budget" in done.stderr, done.stderr
    assert {name: len(pods) for name, pods in left.items()} == dict.fromkeys(PARTS, 1)
    assert sent.failed == 0, sent.seen


def test_how_long_a_pod_takes_to_start(serving: Release, figures: ClusterFigures) -> None:
    """Measured, with nothing asserted: the parts are a table of docs/kubernetes.md."""
    serving.settled("inference", 2)
    inference = replaced(serving, "inference", inference_steps())
    serving.settled("inference", 2)
    figures.start("inference", inference)
    triton = replaced(serving, "triton", triton_steps(ENDPOINT))
    serving.settled("triton", 1)
    figures.start("triton", triton)
    assert list(inference)[-1] == list(triton)[-1] == "ready"
