"""The end of a release, and its way from an older chart and back; the last tests of the cluster."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

from tests.compose.conftest import wait_for, wait_until_answered
from tests.kubernetes.chart import NAMESPACE
from tests.kubernetes.cluster.components import Cluster
from tests.kubernetes.cluster.figures import ClusterFigures
from tests.kubernetes.cluster.names import KEPT_S, Names
from tests.kubernetes.cluster.outside import ENDPOINT, deploy, load
from tests.kubernetes.cluster.release import (
    NAME,
    Release,
    chart_of,
    first_commit,
    for_older,
    make_volume,
)

CLAIM = f"data-{NAME}-control-plane-0"
# What each namespace has of the cluster's own.
_OWN = re.compile(r"ConfigMap/kube-root-ca.crt|ServiceAccount/default|Secret/default-token-\w+")


def test_uninstalling_leaves_the_data_alone_and_nothing_else(
    release: Release, cluster: Cluster
) -> None:
    release.uninstall()
    wait_for(lambda: objects(cluster) == {("PersistentVolumeClaim", CLAIM)}, "nothing else is left")
    cluster.kubectl("--namespace", NAMESPACE, "delete", "pvc", CLAIM)
    assert objects(cluster) == set()


def objects(cluster: Cluster) -> set[tuple[str, str]]:
    """All of the namespace, of every kind that the API server stores, but events."""
    kinds = cluster.kubectl(
        "api-resources", "--namespaced", "--verbs=list", "--output=name"
    ).split()
    asked = [kind for kind in kinds if not re.search(r"^events|metrics\.k8s\.io$", kind)]
    rows = cluster.kubectl(
        "--namespace", NAMESPACE, "get", ",".join(asked), "--ignore-not-found", "--output=json"
    )
    found = json.loads(rows)["items"] if rows.strip() else []
    pairs = {(row["kind"], row["metadata"]["name"]) for row in found}
    return {pair for pair in pairs if not _OWN.fullmatch("/".join(pair))}


def test_the_first_chart_is_upgraded_and_the_new_one_rolled_back(
    release: Release, names: Names, bundles: Path, tmp_path: Path, figures: ClusterFigures
) -> None:
    """The chart's first commit stands for the version before.

    Its Triton leaves after 8 s, which no chart after it can change: under a DNS server that keeps
    answers for longer, the workers would have nobody to ask. So this one keeps none on that way.
    """
    make_volume(release.cluster, "first")
    newest = release.chart
    first = for_older(chart_of(first_commit(), tmp_path), tmp_path / "first")
    release.install(first)
    deploy(release, bundles / ENDPOINT, ENDPOINT)
    names.keep(0)
    with load(release) as sent:
        wait_until_answered(sent)
        release.upgrade(chart=newest)
        settle(release)
        wait_until_answered(sent)
    figures.load("`helm upgrade` from the first chart", sent)
    assert sent.failed == 0, sent.seen
    names.keep(KEPT_S)
    with load(release) as sent:
        wait_until_answered(sent)
        release.rollback()
        settle(release)
        wait_until_answered(sent)
    figures.load("`helm rollback` to it", sent)
    assert sent.failed == 0, sent.seen
    assert [row["status"] for row in release.helm.history(NAME)][-1] == "deployed"
    release.uninstall()


def settle(release: Release) -> None:
    """Until the pods of before are gone, and the workers' DNS has forgotten them."""
    for component, count in (("inference", 2), ("triton", 1)):
        release.settled(component, count)
    time.sleep(KEPT_S)
