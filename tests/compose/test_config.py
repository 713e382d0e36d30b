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

from preprocess.settings import read_settings
from tests.compose.conftest import ROOT
from tests.compose.documents import DOCUMENT
from tests.compose.machine import run
from tests.compose.stock import STOCK_PATH, stock_file
from tests.doctor.test_env_file import LINES, SHELL
from tests.loaded_file import loaded_file
from transformer_serving.contract.gate.release import kit_version
from transformer_serving.contract.settings.stop import STOP_SECONDS
from transformer_serving.desk.compose.variables import settings
from transformer_serving.desk.env_file import read_env_file
from transformer_serving.engine.container_commands import KEEP_TASKS_VARIABLE, commands
from transformer_serving.gateway.access import PUBLISHED, TLS_CERT

MONITORING = "-f compose/monitoring.yaml"
ON_STOCK = f"-f ../{STOCK_PATH} -f compose/clearml-serving.yaml"
# Of compose.yaml's containers, what those on clearml-serving's own file have no use for.
LOCAL_PROFILE = {
    "CLEARML_API_ACCESS_KEY_FILE", "CLEARML_API_SECRET_KEY_FILE", "CLEARML_SERVING_TASK_ID_FILE",
    "TRANSFORMER_SERVING_LOCAL_API",
}  # fmt: skip
WATCHERS = ("prometheus", "alertmanager", "grafana")


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
        "--env-file my.env", "--env-file docker/example.env"
    )
    printed = run("docker", "compose", *command.split(), "config", "--format", "json", cwd=ROOT)
    values: dict[str, Any] = json.loads(printed)
    return values


def published(services: dict[str, Any]) -> int:
    """How many ports are, each on this machine's own address."""
    ports = [port for service in services.values() for port in service.get("ports", [])]
    # Grafana's in clearml-serving's own file, which our override leaves as it is.
    ports = [port for port in ports if port["published"] != "3000" or "host_ip" in port]
    assert {port["host_ip"] for port in ports} == {"127.0.0.1"}
    return len(ports)


def test_the_docs_name_every_file_of_ours() -> None:
    text = " ".join(documented())
    for path in (ROOT / "compose").glob("*.yaml"):
        assert f"compose/{path.name}" in text


@pytest.mark.parametrize("options", documented())
def test_a_documented_combination(engine: None, tmp_path: Path, options: str) -> None:
    services = config(options, tmp_path)["services"]
    assert published(services) <= (5 if MONITORING in options else 2)
    gpu = any("gpu" in name for name in options.split())
    for name, service in services.items():
        devices = (
            service["deploy"]["resources"].get("reservations", {}) if "deploy" in service else {}
        )
        assert bool(devices) == (gpu and name.endswith("triton"))


@pytest.mark.parametrize(
    "extra",
    ["", "-f compose/scale.yaml", "-f compose/gpu.yaml", "-f compose/vllm.yaml", MONITORING],
)
def test_every_service_is_confined(engine: None, tmp_path: Path, extra: str) -> None:
    options = f"-f compose/compose.yaml {extra} --profile local"
    for name, service in config(options, tmp_path)["services"].items():
        confined(name, service)


@pytest.mark.parametrize("options", ["-f compose/compose.yaml -f compose/scale.yaml", ON_STOCK])
def test_docker_waits_as_long_as_the_containers_are_told(
    engine: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: str
) -> None:
    for seconds, shown in (("", "1m0s"), ("660", "11m0s")):
        monkeypatch.setenv(STOP_SECONDS.name, seconds)
        services = config(options, tmp_path)["services"]
        told = {
            name: service["environment"][STOP_SECONDS.name]
            for name, service in services.items()
            if STOP_SECONDS.name in service.get("environment", {})
        }
        assert set(told.values()) == {seconds or STOP_SECONDS.default}
        parts = ("inference", "triton", "balancer")
        assert set(told) == {name for name in services if name.split("-")[-1] in parts}
        assert {services[name]["stop_grace_period"] for name in told} == {shown}


@pytest.mark.parametrize(
    "options",
    ["-f compose/compose.yaml --profile local",
     "-f compose/compose.yaml -f compose/gpu.yaml -f compose/vllm.yaml", ON_STOCK],
)  # fmt: skip
def test_every_image_of_the_kit_is_of_the_operators_tag(
    engine: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: str
) -> None:
    for tag, shown in (("", kit_version()), ("before", "before")):
        monkeypatch.setenv("TRANSFORMER_SERVING_IMAGE_TAG", tag)
        services = config(options, tmp_path)["services"].values()
        ours = [row for row in services if row.get("image", "").startswith("transformer-serving/")]
        assert len(ours) >= 2
        assert {row["image"].partition(":")[2] for row in ours} == {shown}
        # Nobody here owns that name where images are pulled from.
        assert {row["pull_policy"] for row in ours} == {"never"}


def test_what_docker_says_of_itself_is_not_what_spans_say(engine: None, tmp_path: Path) -> None:
    """It gives compose OTEL_RESOURCE_ATTRIBUTES, which goes before the file of --env-file."""
    file = tmp_path / "my.env"
    file.write_text("TRANSFORMER_SERVING_RESOURCE_ATTRIBUTES=deployment.environment=prod\n")
    for options in ("-f compose/compose.yaml", ON_STOCK):
        services = config(f"--env-file {file} {options}", tmp_path)["services"]
        for name in (name for name in services if name.endswith(("inference", "triton"))):
            said = services[name]["environment"]["OTEL_RESOURCE_ATTRIBUTES"]
            assert said == "deployment.environment=prod", name


def test_on_the_stock_file_ours_are_confined_as_everywhere(engine: None, tmp_path: Path) -> None:
    theirs, ours = config(ON_STOCK, tmp_path), config("-f compose/compose.yaml", tmp_path)
    for name in ("inference", "triton"):
        found, known = theirs["services"][f"clearml-serving-{name}"], ours["services"][name]
        confined(name, found)
        assert found["tmpfs"] == known["tmpfs"]
        assert found["init"] is True
        assert found["stop_grace_period"] == known["stop_grace_period"]
        limits = found["deploy"]["resources"]["limits"]
        assert limits == known["deploy"]["resources"]["limits"]


def confined(name: str, service: dict[str, Any]) -> None:
    assert service["read_only"] is True, name
    assert service["cap_drop"] == ["ALL"], name
    assert service["security_opt"] == ["no-new-privileges:true"], name
    assert service["logging"]["options"] == {"max-size": "10m", "max-file": "5"}, name
    limits = service["deploy"]["resources"]["limits"]
    assert int(limits["memory"]) > 0, name
    assert limits["pids"] > 0, name
    wanted = "no" if name == "serving-service" else "unless-stopped"
    assert service["restart"] == wanted, name


@pytest.mark.parametrize(
    ("options", "given", "seconds"),
    [
        ("-f compose/compose.yaml --profile local", {}, 3600),
        ("-f compose/compose.yaml --profile local", {KEEP_TASKS_VARIABLE: "0"}, 0),
        ("-f compose/compose.yaml --profile local", {KEEP_TASKS_VARIABLE: "450"}, 450),
        ("-f compose/compose.yaml --profile local", {"CLEARML_INFERENCE_TASK_ID": "f00"}, 0),
        ("-f compose/compose.yaml", {"CLEARML_API_HOST": "https://api"}, 0),
        (ON_STOCK, {}, 0),
    ],
    ids=["local", "local-never", "local-other", "local-one-task", "elsewhere", "stock"],
)
def test_tasks_of_dead_workers_are_deleted_on_the_kits_own_control_plane(
    engine: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: str,
    given: dict[str, str], seconds: int,
) -> None:  # fmt: skip
    """A server of somebody's own keeps them unless its owner says otherwise."""
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    services = config(options, tmp_path)["services"]
    (triton,) = (service for name, service in services.items() if name.endswith("triton"))
    # As the entrypoint hands them on.
    environment = {name: value for name, value in triton["environment"].items() if value}
    loaded_file(ROOT / "docker" / "entrypoint.py", "entrypoint").read_secrets(environment)
    assert f"--keep-tasks-seconds={seconds}" in commands(environment, tmp_path, "secret")[1]


def test_the_number_of_containers_is_the_env_files_and_makes_no_other_containers(
    engine: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a further one would have all that run replaced."""
    options = "-f compose/compose.yaml -f compose/scale.yaml"
    hashes = set()
    for number, shown in (("", 1), ("3", 3)):
        for part in ("INFERENCE", "TRITON"):
            monkeypatch.setenv(f"{part}_CONTAINERS", number)
        services = config(options, tmp_path)["services"]
        assert {services[name]["scale"] for name in ("inference", "triton")} == {shown}
        words = ["docker", "compose", *options.split(), "config", "--hash", "inference,triton"]
        hashes.add(run(*words, cwd=ROOT))
    assert len(hashes) == 1


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
    # Its own, for the code of endpoints in it.
    assert environment["CLEARML_DEFAULT_BASE_SERVE_URL"] == "https://127.0.0.1:8080/serve"


@pytest.mark.parametrize("address", ["serving.example", "localhost", "::1"])
def test_compose_takes_no_name_to_publish_on(
    engine: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setenv("TRANSFORMER_SERVING_BIND", address)
    with pytest.raises(AssertionError, match="(?i)invalid ip address"):
        config("-f compose/compose.yaml", tmp_path)


def test_the_override_fits_the_stock_file(engine: None, tmp_path: Path) -> None:
    options = f"--env-file docker/example.env {ON_STOCK}"
    services = config(options, tmp_path)["services"]
    triton, inference = (services[f"clearml-serving-{name}"] for name in ("triton", "inference"))
    assert triton["image"].startswith("transformer-serving/triton:")
    assert triton["shm_size"] == str(1 << 30)
    assert triton["deploy"]["resources"]["reservations"]["devices"]
    assert [port["published"] for port in inference["ports"]] == ["8080"]
    assert inference["environment"]["CLEARML_DEFAULT_KAFKA_SERVE_URL"] == ""
    assert inference["security_opt"] == ["no-new-privileges:true"]
    # Kafka and ZooKeeper are of images that nobody can pull.
    assert set(inference["depends_on"]) == {"clearml-serving-triton"}
    assert "depends_on" not in triton


def test_on_the_stock_file_every_setting_arrives(
    engine: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the file that is copied to my.env, with values that no default has."""
    changed = {"CLEARML_SERVING_NUM_PROCESS": "3", "TRANSFORMER_SERVING_GRACE_SECONDS": "77"}
    changed |= {"TRANSFORMER_SERVING_MAX_STREAMS": "977", "TRANSFORMER_SERVING_ENDPOINTS": "a*"}
    for name, value in changed.items():
        monkeypatch.setenv(name, value)
    theirs = config(f"--env-file docker/example.env {ON_STOCK}", tmp_path)["services"]
    ours = config("--env-file docker/example.env -f compose/compose.yaml", tmp_path)["services"]
    for name in ("inference", "triton"):
        found, known = theirs[f"clearml-serving-{name}"], ours[name]
        assert set(known["environment"]) - LOCAL_PROFILE <= set(found["environment"])
        assert found.get("command") == known.get("command")
        for row in (*changed, *(each.name for each in settings().variables)):
            if row in known["environment"]:
                assert found["environment"][row] == known["environment"][row], row


@pytest.mark.parametrize("options", ["", "--env-file docker/example.env"])
def test_on_the_stock_file_triton_is_where_the_workers_look(
    engine: None, tmp_path: Path, options: str
) -> None:
    services = config(f"{options} {ON_STOCK}", tmp_path)["services"]
    triton = services["clearml-serving-triton"]
    (network,) = triton["networks"].values()
    known = {"clearml-serving-triton", triton["container_name"], *network["aliases"]}
    worker = services["clearml-serving-inference"]["environment"]
    read = read_settings(worker)
    ports = {
        worker["CLEARML_DEFAULT_TRITON_GRPC_ADDR"]: "8001",
        read.triton_grpc: "8001",
        read.triton: "8000",
    }
    for address, wanted in ports.items():
        host, _, port = address.partition(":")
        assert host in known, address
        assert port == wanted, address
    polls = [worker["CLEARML_SERVING_POLL_FREQ"], triton["environment"]["CLEARML_TRITON_POLL_FREQ"]]
    assert triton["environment"]["CLEARML_SERVING_POLL_FREQ"] == polls[0]
    # As the entrypoint hands them on.
    environment = {name: value for name, value in triton["environment"].items() if value}
    (grace,) = (
        word.removeprefix("--grace-seconds=")
        for word in commands(environment, tmp_path, "secret")[1]
        if word.startswith("--grace-seconds=")
    )
    assert float(grace) > 60 * sum(map(float, polls))


@pytest.mark.parametrize("options", ["-f compose/compose.yaml", ON_STOCK])
def test_another_triton_is_named_once(
    engine: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: str
) -> None:
    """What docker/example.env says of an empty address is so in every file."""
    monkeypatch.setenv("CLEARML_DEFAULT_TRITON_GRPC_ADDR", "gpus.example:8001")
    services = config(f"--env-file docker/example.env {options}", tmp_path)["services"]
    (worker,) = (row for name, row in services.items() if name.endswith("inference"))
    read = read_settings(worker["environment"])
    assert (read.triton, read.triton_grpc) == ("gpus.example:8000", "gpus.example:8001")


def test_no_package_is_installed_in_the_stock_files_triton(
    engine: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That file passes the variable to both; the volume for it is inference's alone."""
    monkeypatch.setenv("CLEARML_EXTRA_PYTHON_PACKAGES", "kafka-python lz4")
    services = config(ON_STOCK, tmp_path)["services"]
    for name, service in services.items():
        packages = service.get("environment", {}).get("CLEARML_EXTRA_PYTHON_PACKAGES")
        folders = {mount["target"] for mount in service.get("volumes", [])}
        assert bool(packages) == ("/var/lib/extra-packages" in folders), name


@pytest.mark.parametrize(
    "others", ["", "gpu", "gpu vllm", "grpc", "scale", "secrets", "gpu secrets scale"]
)
def test_monitoring_goes_with_every_other_file(
    engine: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: str
) -> None:
    key = tmp_path / "metrics_key"
    key.write_text("a key\n")
    monkeypatch.setenv("METRICS_KEY_PATH", str(key))
    files = " ".join(f"-f compose/{name}.yaml" for name in ("compose", *others.split()))
    alone = config(files, tmp_path)["services"]
    whole = config(f"{files} {MONITORING}", tmp_path)
    services = whole["services"]
    assert set(services) == {*alone, *WATCHERS}
    assert {name: services[name] for name in alone} == alone
    assert published({name: services[name] for name in WATCHERS}) == 3
    assert whole["secrets"]["metrics_key"]["file"] == str(key)
    assert not any("key" in str(services[name].get("volumes")) for name in WATCHERS)


def test_monitoring_takes_the_place_of_the_stock_files(
    engine: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the same names, in that file's own network; paths are given whole."""
    monkeypatch.setenv("MONITORING_FOLDER", str(ROOT / "compose" / "monitoring"))
    monkeypatch.setenv("METRICS_KEY_PATH", str(ROOT / "docker" / "no-metrics-key"))
    options = f"--env-file docker/example.env {ON_STOCK}"
    services = config(f"{options} {MONITORING}", tmp_path)["services"]
    assert published({name: services[name] for name in WATCHERS}) == 3
    for name in WATCHERS:
        assert list(services[name]["networks"]) == ["clearml-serving-backend"]
        assert services[name]["container_name"] == f"clearml-serving-{name}"
        assert services[name]["security_opt"] == ["no-new-privileges:true"]
        assert "depends_on" not in services[name]
        sources = {mount["source"] for mount in services[name]["volumes"]}
        assert not any("prometheus.yml" in one or "datasource" in one for one in sources)
    assert "--config.file=/etc/prometheus/prometheus.yaml" in services["prometheus"]["command"]


@pytest.mark.parametrize("line", LINES)
def test_an_env_file_is_read_by_doctor_as_by_compose(
    engine: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    for name, value in SHELL.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "my.env").write_text(f"ABOVE=above\nBOTH=above\n{line}\n")
    (tmp_path / "one.yaml").write_text("services: {one: {image: one, environment: {A: '${A}'}}}")
    command = ["docker", "compose", "--env-file", "my.env", "-f", "one.yaml", "config"]
    read = yaml.safe_load(run(*command, cwd=tmp_path))
    given = read["services"]["one"]["environment"]["A"]
    # Printed as a compose file, in which a $ is written twice.
    assert given.replace("$$", "$") == read_env_file(tmp_path / "my.env")["A"]


def test_hadolint_has_nothing_to_say() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    files = map(str, sorted((ROOT / "docker").glob("*/Dockerfile")))
    done = subprocess.run([hadolint, *files], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
