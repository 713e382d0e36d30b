"""Autoscalers of the cluster's own controllers: inference on CPU, Triton on tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.compose.conftest import wait_for, wait_until_answered
from tests.kubernetes.chart import NAMESPACE
from tests.kubernetes.cluster.components import Cluster
from tests.kubernetes.cluster.figures import ClusterFigures
from tests.kubernetes.cluster.metrics import Metrics
from tests.kubernetes.cluster.outside import load
from tests.kubernetes.cluster.release import NAME, Release, is_ready
from tests.kubernetes.cluster.waiting import Prometheus, WaitingTokens, autoscaler, scaled_object


@pytest.fixture
def up_to_four(serving: Release, metrics: Metrics) -> Iterator[None]:
    """Of inference; the tests after this one count on two."""
    wait_for(lambda: len(metrics.measured(NAMESPACE)) >= 4, "figures of every pod")
    serving.upgrade({"inference": {"autoscaling": {"maxReplicas": 4}}})
    yield
    serving.upgrade()
    serving.settled("inference", 2)


def test_the_autoscaler_adds_and_removes_pods_and_fails_no_request(
    serving: Release, up_to_four: None, figures: ClusterFigures
) -> None:
    with load(serving) as sent:
        wait_for(lambda: len(ready(serving)) == 4, "four pods under load")
        wait_until_answered(sent)
    figures.load("the autoscaler goes from 2 to 4", sent)
    assert sent.failed == 0, sent.seen
    with load(serving, clients=2, pause_s=0.5) as sent:
        wait_for(lambda: len(serving.names("inference")) == 2, "two pods when there is less", 500)
        serving.settled("inference", 2)
    figures.load("and back to 2, with 4 requests a second", sent)
    assert sent.failed == 0, sent.seen


def ready(serving: Release) -> list[dict[str, Any]]:
    return [pod for pod in serving.pods("inference") if is_ready(pod)]


def test_tritons_are_added_and_removed_by_the_tokens_that_prometheus_counts(
    serving: Release, cluster: Cluster, figures: ClusterFigures
) -> None:
    """The queries and rules are the ScaledObject's; what KEDA does with them is done here."""
    scaled = scaled_object(maxReplicas=2, tokensPerSecond=300, scaleDownSeconds=15)
    queries = [row["metadata"]["query"] for row in scaled["spec"]["triggers"]]
    prometheus = Prometheus(cluster)
    for query in queries:
        prometheus.wait(query)
    tokens = WaitingTokens(cluster, prometheus, queries)
    tokens.start()
    path = f"/apis/autoscaling/v2beta2/namespaces/{NAMESPACE}/horizontalpodautoscalers"
    try:
        tokens.allow()
        cluster.api.create(path, autoscaler(scaled))
        with load(serving) as sent:
            serving.settled("triton", 2)
            wait_until_answered(sent)
        figures.load("Triton's autoscaler goes from 1 to 2", sent)
        assert sent.failed == 0, sent.seen
        with load(serving, clients=2, pause_s=0.5) as sent:
            wait_for(
                lambda: len(serving.names("triton")) == 1, "one Triton when there is less", 500
            )
            serving.settled("triton", 1)
        figures.load("and back to 1, with 4 requests a second", sent)
        assert sent.failed == 0, sent.seen
    finally:
        serving.kubectl(
            "delete", "--ignore-not-found", "hpa", autoscaler(scaled)["metadata"]["name"]
        )
        tokens.stop()
        prometheus.close()
        # It may have asked for another one just before its end; the tests after this count on one.
        serving.kubectl("scale", f"deployment/{NAME}-triton", "--replicas=1")
        serving.settled("triton", 1)
