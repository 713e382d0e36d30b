"""Objects of KEDA, the Prometheus operator and the Gateway API against their own types.

The validators are npm packages, installed once below build/kubernetes; Node.js is needed. They
refuse wrong types and what is missing, and let a field pass that they do not know.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.kubernetes.chart import ROOT, Manifest, kinds, rendered
from tests.kubernetes.test_schemas import CUSTOM, RELEASES, TLS

pytestmark = [pytest.mark.long, pytest.mark.by_hand]
SOURCES = Path(__file__).parent / "validators"
FOLDER = ROOT / "build" / "kubernetes" / "validators"


@pytest.fixture(scope="module")
def validators() -> Path:
    """The folder to run the script in, made or found made from the same list."""
    wanted = SOURCES / "package.json"
    digest = hashlib.sha256(wanted.read_bytes()).hexdigest()
    stamp = FOLDER / "list.sha256"
    if not stamp.is_file() or stamp.read_text() != digest:
        shutil.rmtree(FOLDER, ignore_errors=True)
        FOLDER.mkdir(parents=True)
        shutil.copy(wanted, FOLDER)
        command = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"]
        subprocess.run(command, cwd=FOLDER, check=True, timeout=600)
        stamp.write_text(digest)
    shutil.copy(SOURCES / "validate.mjs", FOLDER)
    return FOLDER


def faults(objects: list[Manifest], folder: Path) -> list[str]:
    done = subprocess.run(
        ["node", "validate.mjs"], cwd=folder, input=json.dumps(objects), capture_output=True,
        text=True, timeout=120, check=True,
    )  # fmt: skip
    return [fault for fault in json.loads(done.stdout) if fault is not None]


def custom(release: str) -> list[Manifest]:
    monitored = {"monitoring": {"podMonitors": True}, "access": {"metricsKeySecret": "metrics"}}
    objects = rendered(RELEASES[release], monitored)
    return [each for each in objects if each["kind"] in CUSTOM]


def test_every_object_is_what_its_operator_takes(validators: Path) -> None:
    objects = custom("everything")
    assert kinds(objects) == CUSTOM
    assert faults(objects, validators) == []


def test_a_gateway_that_speaks_tls_is_monitored(validators: Path) -> None:
    objects = custom("tls")
    configured = [each["spec"]["podMetricsEndpoints"][0].get("tlsConfig") for each in objects]
    callers = TLS["access"]["callersSecret"]
    assert configured[0]["cert"]["secret"]["name"] == callers
    assert faults(objects, validators) == []


def test_the_validators_see_a_wrong_type(validators: Path) -> None:
    objects = custom("everything")
    for object_ in objects:
        object_["spec"] = "none"
    assert len(faults(objects, validators)) == len(CUSTOM) + 1
