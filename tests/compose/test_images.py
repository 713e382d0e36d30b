"""The images by themselves: what is in them, what is not, and what their entrypoint does."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compose.conftest import ROOT, env_file
from tests.compose.figures import ComposeFigures
from tests.compose.machine import run
from tests.compose.stand_ins import triton_python
from transformer_serving.contract.gate.release import kit_version
from transformer_serving.desk.versions.lock import read_lock

ENTRYPOINT = ("--entrypoint", "python3")
SCRIPT = "/opt/transformer-serving/entrypoint.py"
SERVICES = ("inference", "triton", "control-plane")
# A small package that no image holds.
EXTRA = "iniconfig==2.3.1"


def ran(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["docker", "run", "--rm", "--read-only", "--cap-drop=ALL", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.parametrize("service", SERVICES)
def test_an_image_says_what_it_is_and_is_nobody(
    images: dict[str, str], service: str, figures: ComposeFigures
) -> None:
    (row,) = json.loads(run("docker", "image", "inspect", images[service]))
    figures.size(service, row["Size"])
    assert row["Config"]["User"] == "10001:10001"
    assert row["Config"]["Labels"]["org.opencontainers.image.version"] == kit_version()
    assert row["Config"]["Labels"]["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert row["Config"]["Healthcheck"]["Test"][0] == "CMD"


@pytest.mark.parametrize("service", SERVICES)
def test_no_build_secret_is_left(
    images: dict[str, str], build_secrets: dict[str, str], service: str
) -> None:
    probe = (
        "import pathlib as p; print([n for n in ('/etc/pip.conf', '/run/ca-bundle.crt')"
        " if p.Path(n).exists() and p.Path(n).read_bytes()])"
    )
    done = ran(*ENTRYPOINT, images[service], "-c", probe)
    assert done.stdout.strip() == "[]", done.stderr
    history = run("docker", "history", "--no-trunc", "--format", "{{.CreatedBy}}", images[service])
    for line in Path(build_secrets["PIP_CONF"]).read_text().splitlines():
        assert " = " not in line or line not in history


def test_frameworks_are_not_in_the_inference_image(images: dict[str, str]) -> None:
    code = (
        "import importlib.util as u; "
        "print([n for n in ('torch', 'transformers', 'openvino') if u.find_spec(n)])"
    )
    assert ran(*ENTRYPOINT, images["inference"], "-c", code).stdout.strip() == "[]"


@pytest.mark.parametrize("service", ["inference", "triton"])
def test_without_credentials_it_ends_and_says_which(images: dict[str, str], service: str) -> None:
    names = "CLEARML_API_ACCESS_KEY CLEARML_SERVING_TASK_ID"
    done = ran("-e", f"TRANSFORMER_SERVING_REQUIRED={names}", images[service])
    assert done.returncode == 1
    assert "CLEARML_API_ACCESS_KEY, CLEARML_SERVING_TASK_ID not set" in done.stderr


def test_a_secret_comes_from_its_file(images: dict[str, str], tmp_path: Path) -> None:
    secret = tmp_path / "key"
    secret.write_text("of-a-file\n")
    code = (
        "from os import environ as e; "
        "print(e['CLEARML_API_SECRET_KEY'], e.get('AWS_DEFAULT_REGION'))"
    )
    options = (
        "-v", f"{secret}:/run/secrets/key:ro", "-e", "CLEARML_API_SECRET_KEY_FILE=/run/secrets/key",
        "-e", "AWS_DEFAULT_REGION=",
    )  # fmt: skip
    tail = (images["inference"], SCRIPT, "python3", "-c", code)
    assert ran(*options, *ENTRYPOINT, *tail).stdout.split() == ["of-a-file", "None"]
    given = ran(*options, "-e", "CLEARML_API_SECRET_KEY=given", *ENTRYPOINT, *tail)
    assert given.stdout.split() == ["given", "None"]


def test_an_image_of_another_triton_is_refused(images: dict[str, str]) -> None:
    for name, value in (("TRITON_SERVER_VERSION", "2.52.0"), ("TRT_VERSION", "10.6.0.26")):
        done = ran("-e", f"{name}={value}", images["triton"])
        assert done.returncode == 1
        assert f"{value} is not the pinned" in done.stderr


def test_a_build_on_another_triton_ends(
    images: dict[str, str], build_secrets: dict[str, str], tmp_path: Path
) -> None:
    override = tmp_path / "other.yaml"
    override.write_text("services: {triton: {build: {args: {TRITON_VERSION: 9.9.9}}}}\n")
    path = env_file(tmp_path / "build.env", build_secrets)
    options = ["--env-file", str(path), "-f", "compose/compose.yaml", "-f", str(override)]
    done = subprocess.run(
        ["docker", "compose", *options, "build", "triton"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert "Triton 2.51.0 is not the pinned 9.9.9" in done.stdout + done.stderr


def test_our_backends_lie_beside_the_images_own(images: dict[str, str]) -> None:
    code = "import os; print(sorted(os.listdir('/opt/tritonserver/backends')))"
    listed = ran(*ENTRYPOINT, images["triton"], "-c", code).stdout
    assert "'openvino', 'openvino_generate', 'openvino_text', 'python'" in listed
    again = ran(
        *ENTRYPOINT, images["triton"], "-m", "transformer_serving.engine.image_backends",
        "/opt/tritonserver/backends",
    )  # fmt: skip
    assert "backend 'openvino_text' is already in" in again.stderr


def test_the_triton_image_runs_its_lock_on_its_own_python(images: dict[str, str]) -> None:
    lock = read_lock()
    if triton_python(lock) is None:
        pytest.skip(f"no Python {lock.image.python} here; name one with TRITON_PYTHON")
    told = ran(*ENTRYPOINT, images["triton"], "--version").stdout
    assert told.startswith(f"Python {lock.image.python.rsplit('.', 1)[0]}.")
    checked = ran(*ENTRYPOINT, images["triton"], "-m", "pip", "check")
    assert checked.returncode == 0, checked.stdout


@pytest.fixture
def volume(engine: None) -> Iterator[str]:
    name = run("docker", "volume", "create").strip()
    yield name
    run("docker", "volume", "rm", name)


def test_extra_packages_are_installed_once_into_the_volume(
    images: dict[str, str], build_secrets: dict[str, str], volume: str, tmp_path: Path
) -> None:
    code = "import iniconfig; print(iniconfig.__file__)"
    tail = (*ENTRYPOINT, images["inference"], SCRIPT, "python3", "-c", code)
    options = (
        "-e", f"CLEARML_EXTRA_PYTHON_PACKAGES={EXTRA}", "-v", f"{volume}:/var/lib/extra-packages",
        "--tmpfs", "/tmp",
    )  # fmt: skip
    # Another user reads it there.
    configuration = Path(shutil.copy(build_secrets["PIP_CONF"], tmp_path))
    configuration.chmod(0o644)
    index = (
        "-v", f"{configuration}:/etc/pip.conf:ro",
        "-v", f"{build_secrets['CA_BUNDLE']}:/run/ca-bundle.crt:ro",
    )  # fmt: skip
    first = ran(*options, *index, *tail)
    assert first.stdout.startswith("/var/lib/extra-packages/"), first.stderr
    again = ran(*options, "--network=none", *tail)
    assert again.stdout == first.stdout
    without = ran("-e", f"CLEARML_EXTRA_PYTHON_PACKAGES={EXTRA}", *tail)
    assert "needs a volume at /var/lib/extra-packages" in without.stderr
    assert "No module named 'iniconfig'" in ran(*tail).stderr
