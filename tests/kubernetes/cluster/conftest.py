"""A real cluster of one node, the chart installed on it, and clients outside of it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import helm_python
import pytest

from tests.compose.conftest import build_secrets, bundles, images, wait_for
from tests.compose.machine import ROOT
from tests.kubernetes.chart import CHART, NAMESPACE
from tests.kubernetes.cluster.binaries import binaries
from tests.kubernetes.cluster.components import Cluster, failed_containers, unmount
from tests.kubernetes.cluster.figures import FIGURES, ClusterFigures
from tests.kubernetes.cluster.machine import engine_for_pods, pod_network
from tests.kubernetes.cluster.metrics import Metrics
from tests.kubernetes.cluster.names import Names
from tests.kubernetes.cluster.outside import ENDPOINT, deploy, status
from tests.kubernetes.cluster.release import NAME, Release, for_older, make_volume

# Of tests/compose: the same images and bundles.
__all__ = ["build_secrets", "bundles", "images"]
STATE = ROOT / "build" / "kubernetes" / "state"


@pytest.fixture(scope="session")
def engine() -> Iterator[None]:
    with engine_for_pods():
        yield


@pytest.fixture(scope="session")
def cluster(engine: None) -> Iterator[Cluster]:
    # A run that was killed leaves its mounts.
    unmount(STATE)
    if STATE.exists():
        shutil.rmtree(STATE)
    STATE.mkdir(parents=True)
    running = Cluster(STATE, binaries(), pod_network())
    try:
        running.start()
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="session")
def names(cluster: Cluster) -> Iterator[Names]:
    served = Names(cluster.api, cluster.address)
    served.start()
    yield served
    served.close()


@pytest.fixture(scope="session")
def metrics(cluster: Cluster) -> Iterator[Metrics]:
    served = Metrics(cluster)
    served.start()
    yield served
    served.stop()


@pytest.fixture(scope="session")
def figures(cluster: Cluster) -> Iterator[ClusterFigures]:
    """What the tests measure; written where `make kubernetes-figures` takes it from."""
    found = ClusterFigures(cluster.version())
    yield found
    found.write(FIGURES)


@pytest.fixture(scope="session")
def serving(release: Release, bundles: Path) -> Release:
    """The release with an endpoint, deployed from outside."""
    deploy(release, bundles / ENDPOINT, ENDPOINT)
    wait_for(lambda: status(release) == 200, "the Service's address answers")
    return release


@pytest.fixture(scope="session")
def release(
    cluster: Cluster,
    names: Names,
    images: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Release]:
    """Installed with `--wait`; what the tests left of it is taken away."""
    make_volume(cluster, "data")
    chart = for_older(CHART, tmp_path_factory.mktemp("chart") / "chart")
    helm = helm_python.Config(kubeconfig_path=cluster.kubeconfig, namespace=NAMESPACE)
    installed = Release(cluster, helm, chart)
    try:
        installed.install()
    except Exception as error:
        error.add_note(failed_containers())
        raise
    # Helm waits for what the Deployment has at first; the autoscaler brings the second pod.
    installed.settled("inference", 2)
    yield installed
    helm.uninstall(NAME, ignore_not_found=True, timeout=120)
    helm.close()
