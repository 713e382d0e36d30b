"""The compose files as Docker's own parser reads them, in every combination that the docs name."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.compose.conftest import ROOT
from tests.compose.documents import DOCUMENT
from tests.compose.machine import run
from tests.compose.stock import STOCK_PATH, stock_file
from transformer_serving.gateway.access import PUBLISHED, TLS_CERT


def documented() -> list[str]:
    """The options of every docker compose command in the docs, up to its own command."""
    text = DOCUMENT.read_text("utf-8").replace("\\\n", " ")
    found = re.findall(r"docker compose((?:\s+(?:-f|--env-file|--profile)\s+\S+)+)", text)
    return sorted({" ".join(options.split()) for options in found})


def config(options: str, folder: Path) -> dict[str, Any]:
    stock = folder / STOCK_PATH
    stock.parent.mkdir(parents=True, exist_ok=True)
    stock.write_text(yaml.safe_dump(stock_file()))
    command = options.replace(f"../{STOCK_PATH}", str(stock)).replace(
        "my.env", "docker/example.env"
    )
    printed = run("docker", "compose", *command.split(), "config", "--format", "json", cwd=ROOT)
    values: dict[str, Any] = json.loads(printed)
    return values


def test_the_docs_name_every_file_of_ours() -> None:
    text = " ".join(documented())
    for path in (ROOT / "compose").glob("*.yaml"):
        assert f"compose/{path.name}" in text


@pytest.mark.parametrize("options", documented())
def test_a_documented_combination(engine: None, tmp_path: Path, options: str) -> None:
    services = config(options, tmp_path)["services"]
    front = {port["host_ip"] for service in services.values() for port in service.get("ports", [])}
    assert front == {"127.0.0.1"}
    assert sum(len(service.get("ports", [])) for service in services.values()) <= 2
    gpu = any("gpu" in name for name in options.split())
    for name, service in services.items():
        devices = (
            service["deploy"]["resources"].get("reservations", {}) if "deploy" in service else {}
        )
        assert bool(devices) == (gpu and name.endswith("triton"))


@pytest.mark.parametrize("extra", ["", "-f compose/scale.yaml", "-f compose/gpu.yaml"])
def test_every_service_is_confined(engine: None, tmp_path: Path, extra: str) -> None:
    options = f"-f compose/compose.yaml {extra} --profile local"
    for name, service in config(options, tmp_path)["services"].items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["logging"]["options"] == {"max-size": "10m", "max-file": "5"}, name
        limits = service["deploy"]["resources"]["limits"]
        assert int(limits["memory"]) > 0, name
        assert limits["pids"] > 0, name
        wanted = "no" if name == "serving-service" else "unless-stopped"
        assert service["restart"] == wanted, name


@pytest.mark.parametrize("address", ["[::1]", "192.0.2.7"])
def test_the_front_door_is_told_where_it_is_published(
    engine: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setenv("TRANSFORMER_SERVING_BIND", address)
    monkeypatch.setenv("TRANSFORMER_SERVING_TLS_FOLDER", str(tmp_path))
    inference = config("-f compose/compose.yaml", tmp_path)["services"]["inference"]
    assert [port["host_ip"] for port in inference["ports"]] == [address.strip("[]")]
    environment = inference["environment"]
    assert environment[PUBLISHED] == address
    assert environment[TLS_CERT.name] == "/run/tls/tls.crt"
    assert environment["CLEARML_DEFAULT_BASE_SERVE_URL"] == f"https://{address}:8080/serve"


@pytest.mark.parametrize("address", ["serving.example", "localhost", "::1"])
def test_compose_takes_no_name_to_publish_on(
    engine: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setenv("TRANSFORMER_SERVING_BIND", address)
    with pytest.raises(AssertionError, match="(?i)invalid ip address"):
        config("-f compose/compose.yaml", tmp_path)


def test_the_override_fits_the_stock_file(engine: None, tmp_path: Path) -> None:
    options = f"--env-file docker/example.env -f ../{STOCK_PATH} -f compose/clearml-serving.yaml"
    services = config(options, tmp_path)["services"]
    triton, inference = (services[f"clearml-serving-{name}"] for name in ("triton", "inference"))
    assert triton["image"].startswith("transformer-serving/triton:")
    assert triton["shm_size"] == str(1 << 30)
    assert triton["deploy"]["resources"]["reservations"]["devices"]
    assert [port["published"] for port in inference["ports"]] == ["8080"]
    assert inference["environment"]["CLEARML_DEFAULT_KAFKA_SERVE_URL"] == ""
    assert inference["security_opt"] == ["no-new-privileges:true"]


def test_hadolint_has_nothing_to_say() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    files = map(str, sorted((ROOT / "docker").glob("*/Dockerfile")))
    done = subprocess.run([hadolint, *files], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
