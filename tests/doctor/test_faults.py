"""Each planted fault is found by its check with its fix, and nothing is found where all is well."""

from __future__ import annotations

import dataclasses
import http.server
import json
import re
import shlex
import socket
import ssl
import sysconfig
import threading
import time
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest

from tests.contract.bundles import write_bundle
from tests.contract.plans import Plan, build
from tests.doctor.conftest import PIN, READY, ROOT, Scene, answering
from tests.gateway.certificates import Authority
from transformer_serving.contract.pip_line import pip_line
from transformer_serving.desk.command_line import command_line
from transformer_serving.desk.compose.variables import HOST_NAME
from transformer_serving.desk.doctor import containers
from transformer_serving.desk.doctor.containers import PROBE, check_variables
from transformer_serving.desk.doctor.finding import FAILURE, OK, SKIPPED, WARNING, Finding
from transformer_serving.desk.doctor.machine import check_disk, check_libpython, check_ports
from transformer_serving.desk.doctor.subject import Subject
from transformer_serving.desk.doctor.table import CHECKS, examine
from transformer_serving.desk.doctor.triton import check_triton
from transformer_serving.desk.local.health import PartStatus
from transformer_serving.engine.controller.status import BEFORE_IT

PONG = json.dumps({"meta": {"result_code": 200}, "data": {}}).encode()


def faults(subject: Subject, status: str = FAILURE) -> dict[str, str]:
    """The checks with that status and what they say, fix included, which is never empty."""
    found: dict[str, str] = {}
    for named in examine(subject):
        if named.finding.status == status:
            assert named.finding.fix
            said = f"{named.finding.why}; {named.finding.fix}"
            found[named.check] = "\n".join(filter(None, (found.get(named.check), said)))
    return found


def only(subject: Subject, check: str) -> str:
    """What the one failing check says; no other check may fail with it."""
    found = faults(subject)
    assert list(found) == [check], found
    return found[check]


def having(scene: Scene, **environment: str) -> Subject:
    values = {**scene.subject.environment, **environment}
    return dataclasses.replace(scene.subject, environment=values)


def test_a_healthy_environment_is_silent(scene: Scene) -> None:
    named = list(examine(scene.subject))
    assert {row.check for row in named} == {check.name for check in CHECKS}
    loud = [row for row in named if row.finding.status not in (OK, SKIPPED)]
    # But for the scene's Triton, which is at a port.
    assert [row.check for row in loud] == ["triton"]
    skipped = {row.finding.why for row in named if row.finding.status == SKIPPED}
    assert skipped == {
        "no --env-file",
        "demo-triton-1: it has no Python to ask with",
        "the stack is down; start it: transformer-serving up --state "
        + shlex.quote(str(scene.subject.state)),
        "no embedded control plane has stored anything here",
        "no CLEARML_DEFAULT_BASE_SERVE_URL: give --env-file, or start a stack",
    }


def test_1_python_too_old(scene: Scene) -> None:
    subject = dataclasses.replace(scene.subject, python=(3, 9))
    assert "Python 3.9, the kit needs 3.11 to 3.13" in only(subject, "python")


def test_1_no_shared_library_of_that_python(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_config_var", lambda name: None)
    monkeypatch.setattr("ctypes.util.find_library", lambda name: None)
    said = only(scene.subject, "libpython")
    assert re.search(
        r"no shared libpython3\.\d+\.so was .*; apt-get install libpython3\.\d+,", said
    )
    (said_of_a_file,) = check_libpython(dataclasses.replace(scene.subject, from_file=True))
    assert said_of_a_file.status == SKIPPED


def test_2_a_package_that_is_not_the_locks(scene: Scene, tmp_path: Path) -> None:
    metadata = tmp_path / "site" / "clearml_serving-1.3.0.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("Metadata-Version: 2.1\nName: clearml-serving\nVersion: 1.3.0\n")
    before = [str(tmp_path / "site"), *scene.subject.package_path]
    said = only(dataclasses.replace(scene.subject, package_path=before), "packages")
    assert "clearml-serving is 1.3.0, the lock has 1.3.5" in said
    assert pip_line("--no-deps clearml-serving==1.3.5") in said
    nothing = dataclasses.replace(scene.subject, package_path=[str(tmp_path)])
    assert "is not installed" in only(nothing, "packages")


def test_3_a_taken_port(scene: Scene) -> None:
    assert scene.subject.record is not None
    with socket.socket() as other:
        other.bind(("127.0.0.1", scene.subject.record.ports.triton_metrics))
        other.listen()
        said = only(scene.subject, "ports")
    assert f"{scene.subject.record.ports.triton_metrics} (triton_metrics)" in said
    assert "--port-base" in said


def test_3_a_taken_port_of_a_stack_that_runs(scene: Scene) -> None:
    """Its other ports are its own, and it keeps them until it is down."""
    part = PartStatus("prometheus", None, 0, None, "fatal", None, 0.0)
    subject = dataclasses.replace(scene.subject)
    with socket.create_server(("127.0.0.1", 0)) as other:
        part = dataclasses.replace(part, port=other.getsockname()[1])
        vars(subject).update(running=True, parts=(part,))
        (said,) = check_ports(subject)
    down, up = (command_line(words, subject.state) for words in ("down", "up --port-base N"))
    assert said.status == FAILURE
    assert said.fix == f"stop that program, or move all ports: {down}, then {up}"


def test_4_a_full_disk(scene: Scene) -> None:
    more_than_there_is = dataclasses.replace(scene.subject, disk_needed=1 << 60)
    assert "GiB are needed" in only(more_than_there_is, "disk")
    # The stack of a file keeps its data elsewhere: what is free here says nothing of it.
    of_a_file = dataclasses.replace(more_than_there_is, record=None, from_file=True)
    (said,) = check_disk(of_a_file)
    assert said.status == SKIPPED
    assert "--state" in said.why
    (said,) = check_disk(dataclasses.replace(of_a_file, is_state_named=True))
    assert said.status == FAILURE


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"CLEARML_SERVING_POLL_FREQ": "0.3", "CLEARML_TRITON_POLL_FREQ": "0.2"}, "set 60, or"),
        # Compose's own poll of the workers beside it.
        ({"CLEARML_TRITON_POLL_FREQ": "0.5"}, "set 66, or none"),
        ({"CLEARML_TRITON_POLL_FREQ": "often"}, "CLEARML_TRITON_POLL_FREQ must be a number"),
        ({"TRANSFORMER_SERVING_STOP_SECONDS": "20"}, "set that to 30 or more"),
        ({}, ""),
    ],
)
def test_5_variables_with_which_no_triton_starts(
    scene: Scene, given: dict[str, str], said: str
) -> None:
    """As an upgrade finds them: of an older kit a my.env has that grace."""
    values = {"TRANSFORMER_SERVING_GRACE_SECONDS": "30", **given}
    environment = {**scene.subject.environment, **values}
    subject = dataclasses.replace(scene.subject, environment=environment, from_file=True)
    (found,) = check_variables(subject)
    assert found.status == (FAILURE if said else OK)
    assert said in found.why
    (of_no_file,) = check_variables(dataclasses.replace(subject, from_file=False))
    assert of_no_file.status == SKIPPED


def test_5_compose_too_old(scene: Scene) -> None:
    scene.docker(compose="2.17.3")
    assert "2.17.3 is older than 2.25.0" in only(scene.subject, "compose")


def test_6_a_driver_older_than_the_pin_needs(scene: Scene) -> None:
    scene.gpu(driver="430.30.02")
    assert f"driver 430.30.02 is older than {PIN.driver_min}" in only(scene.subject, "driver")


def test_7_a_gpu_too_old_for_the_pin(scene: Scene) -> None:
    scene.gpu(capability="5.2")
    found = faults(dataclasses.replace(scene.subject, bundle=None))
    assert list(found) == ["gpu"]
    assert f"compute capability 5.2, release {PIN.release} needs" in found["gpu"]


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'Failed to initialize NVML: Driver/library version mismatch'\necho more\nexit 18",
         "Failed to initialize NVML: Driver/library version mismatch"),
        ("echo 'NVIDIA A10, 560.35.03, 8.6'\necho 'Unable to determine the device handle'\nexit 15",
         "Unable to determine the device handle"),
        ("echo 'No devices were found' >&2\nexit 6", "No devices were found"),
        ("exit 0", "no GPU"),
    ],
    ids=["mismatch", "lost", "none", "silent"],
)  # fmt: skip
def test_7_a_driver_whose_gpu_cannot_be_asked(scene: Scene, script: str, said: str) -> None:
    scene.program("nvidia-smi", f"#!/bin/sh\n{script}\n")
    driver = scene.folder / "version"
    driver.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  560.35.03  Fri Aug 16\n")
    found = only(dataclasses.replace(scene.subject, driver_file=driver), "gpu")
    assert found.startswith(f"a driver is loaded, and nvidia-smi says: {said}; restart the machine")


def test_8_an_api_that_does_not_answer(scene: Scene) -> None:
    subject = dataclasses.replace(
        having(scene, CLEARML_API_HOST="http://127.0.0.1:9"), record=None, from_file=True
    )
    found = faults(subject)
    assert list(found) == ["api", "containers"]
    assert "CLEARML_API_HOST http://127.0.0.1:9 is not reachable" in found["api"]


def test_9_the_web_server_instead_of_the_api(scene: Scene) -> None:
    page = b"<!doctype html><title>ClearML</title>"
    with answering(lambda path: (200, page, {"Content-Type": "text/html"})) as web:
        said = faults(having(scene, CLEARML_API_HOST=web))["api"]
    assert "answers 200, but not as the ClearML API" in said
    assert "8008" in said


def test_10_credentials_that_are_refused_or_missing(scene: Scene) -> None:
    wrong = having(scene, CLEARML_API_SECRET_KEY="of yesterday")
    said = only(wrong, "credentials")
    assert "refuses the credentials with 401" in said
    assert "of yesterday" not in said
    missing = having(scene, CLEARML_API_ACCESS_KEY="")
    assert "CLEARML_API_ACCESS_KEY is not set" in only(missing, "credentials")


@pytest.mark.parametrize("status", [500, 503])
def test_10_a_server_that_is_ill_needs_no_new_keys(scene: Scene, status: int) -> None:
    """Its answers are those of ClearML's API; the ping is well."""
    ill = json.dumps({"meta": {"result_code": status, "result_msg": "no database"}}).encode()

    def reply(path: str) -> tuple[int, bytes, dict[str, str]]:
        return (status, ill, {}) if path.startswith("/auth.login") else (200, PONG, {})

    with answering(reply) as server:
        said = faults(having(scene, CLEARML_API_HOST=server))["credentials"]
    assert f"answers {status}" in said
    assert "its log" in said
    assert "make new keys" not in said


@pytest.mark.parametrize(
    ("status", "body", "fix"),
    [
        (500, PONG, "its log"),
        (502, b"bad gateway", "start the API server"),
        (503, b"<html>no server</html>", "start the API server"),
        (403, b"<html>forbidden</html>", "let this machine in"),
    ],
    ids=["api", "gateway", "proxy", "forbidden"],
)
def test_10_an_api_behind_a_proxy_is_not_taken_for_the_web_server(
    scene: Scene, status: int, body: bytes, fix: str
) -> None:
    with answering(lambda path: (status, body, {})) as proxy:
        said = faults(having(scene, CLEARML_API_HOST=proxy))["api"]
    assert f"answers {status}" in said
    assert fix in said
    assert "8008" not in said


def test_11_a_file_server_that_is_down(scene: Scene) -> None:
    with answering(lambda path: (502, b"bad gateway", {})) as proxy:
        found = faults(having(scene, CLEARML_FILES_HOST=proxy))
    assert list(found) == ["files", "containers"]
    assert "answers 502" in found["files"]


def test_12_a_file_server_that_only_the_host_reaches(scene: Scene) -> None:
    scene.docker(files="http://127.0.0.1:9")
    said = only(scene.subject, "containers")
    assert "demo-inference-2: CLEARML_FILES_HOST is not reachable from inside" in said
    assert "demo-inference-1" not in said
    assert "localhost in a container is the container" in said


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        return


def test_12_a_file_server_whose_authority_the_containers_do_not_know(
    scene: Scene, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    pair = authority.sign("files")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.cert, pair.key)
    with http.server.HTTPServer(("127.0.0.1", 0), _Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        serving = threading.Thread(target=server.serve_forever, args=(0.05,))
        serving.start()
        try:
            scene.docker(files=f"https://127.0.0.1:{server.server_port}")
            said = only(scene.subject, "containers")
            trusting = faults(having(scene, SSL_CERT_FILE=str(authority.cert)))
        finally:
            server.shutdown()
            serving.join()
    assert "REQUESTS_CA_BUNDLE and SSL_CERT_FILE" in said
    assert "localhost" not in said
    assert trusting == {}


def test_12_a_container_is_asked_past_the_proxy_as_its_program_asks(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its entrypoint, which tells the program alone: here one that is beside it, one not, and
    those of other versions."""

    def unreachable(subject: Subject, entrypoint: str) -> set[str]:
        probe = PROBE.replace(containers.ENTRYPOINT, entrypoint)
        monkeypatch.setattr(containers, "PROBE", probe)
        found = containers.check_containers(subject)
        return {row.why.split(" is not")[0] for row in found if row.status == FAILURE}

    ours, none = str(ROOT / "docker" / "entrypoint.py"), "/nowhere"
    dead = having(scene, http_proxy="http://127.0.0.1:9")
    assert unreachable(dead, ours) == set()
    without = unreachable(dead, none)
    assert "demo-inference-1: CLEARML_API_HOST" in without
    other = tmp_path / "other_entrypoint.py"
    for text in ("", "def leave_out_proxies(environment, more): ...\n"):
        other.write_text(text)
        assert unreachable(dead, str(other)) == without
    scene.docker(files="http://127.0.0.1:9")
    with answering(lambda path: (403, b"none of our sites", {})) as proxy:
        refusing = having(scene, http_proxy=proxy)
        assert unreachable(refusing, none) == set()
        assert unreachable(refusing, ours) == {"demo-inference-2: CLEARML_FILES_HOST"}


def test_13_a_clock_an_hour_off(scene: Scene) -> None:
    def reply(path: str) -> tuple[int, bytes, dict[str, str]]:
        return 200, PONG, {"Date": formatdate(time.time() - 3600, usegmt=True)}

    with answering(reply) as late:
        found = faults(having(scene, CLEARML_API_HOST=late))
    # The answer may come a second later than its date.
    assert re.search(r"360[0-9] s behind", found["clock"])


def test_14_a_triton_that_is_not_the_pins(scene: Scene) -> None:
    body = json.dumps({"version": "2.42.0"}).encode()
    with answering(lambda path: (200, body, {})) as other:
        address = other.removeprefix("http://")
        subject = having(scene, TRANSFORMER_SERVING_TRITON_HTTP=address)
        assert "Triton is 2.42.0, the pin" in only(subject, "triton")
        of_a_file = dataclasses.replace(subject, record=None, from_file=True)
        assert PIN.image in only(of_a_file, "triton")
    inside = having(scene, TRANSFORMER_SERVING_TRITON_HTTP="no-such-container:8000")
    of_a_file = dataclasses.replace(inside, record=None, from_file=True)
    assert "a name inside a container network" in faults(of_a_file, WARNING)["triton"]
    nobody = having(scene, TRANSFORMER_SERVING_TRITON_HTTP="127.0.0.1:9")
    assert "Triton does not answer" in only(nobody, "triton")
    nowhere = having(scene, TRANSFORMER_SERVING_TRITON_HTTP="triton")
    assert "an address of Triton must be host:port" in only(nowhere, "triton")


def test_14_a_triton_that_follows_from_clearml_servings_address(scene: Scene) -> None:
    """As the workers take it, where nothing else is said."""

    def found(address: str) -> Finding:
        subject = having(
            scene, TRANSFORMER_SERVING_TRITON_HTTP="", CLEARML_DEFAULT_TRITON_GRPC_ADDR=address
        )
        return next(iter(check_triton(dataclasses.replace(subject, record=None, from_file=True))))

    assert found("no-such-container:8001").status == SKIPPED
    nobody = found("127.0.0.9:8001")
    assert "does not answer at 127.0.0.9:8000" in nobody.why
    assert nobody.fix == "start Triton or correct CLEARML_DEFAULT_TRITON_GRPC_ADDR"
    none_follows = found("ipv4:127.0.0.1:8001")
    assert "TRANSFORMER_SERVING_TRITON_HTTP is empty, and CLEARML_DEFAULT" in none_follows.why
    assert none_follows.fix == "set or correct TRANSFORMER_SERVING_TRITON_HTTP"


def test_14_one_of_several_tritons(scene: Scene, triton: str) -> None:
    """As the gateway's workers read their addresses."""
    well = having(scene, TRANSFORMER_SERVING_TRITON_HTTP=f"{triton}/, {triton}")
    assert not faults(well)
    half = having(scene, TRANSFORMER_SERVING_TRITON_HTTP=f"{triton},127.0.0.1:9")
    assert "Triton does not answer at 127.0.0.1:9" in only(half, "triton")


def test_15_an_endpoint_that_is_not_ready_or_not_there(scene: Scene) -> None:
    reason = (
        "load failed: The engine plan file is not compatible with this version of TensorRT, "
        "expecting library version 10.5.0.18 got 10.4.0.26, please rebuild."
    )
    scene.endpoints(READY, {**READY, "endpoint": "bad", "ready": False, "reason": reason})
    said = only(scene.subject, "endpoints")
    assert "endpoint bad is not ready" in said
    problem = {"ready": False, "failure": None, "backend": None, "reason": "taken; choose another"}
    scene.endpoints({**READY, "endpoint": "ill", **problem})
    assert only(scene.subject, "endpoints") == "endpoint ill is not ready: taken; choose another"
    scene.endpoints(READY, {**READY, "endpoint": "bad", "ready": False, "reason": reason})
    assert "10.4.0.26 is in release 24.09" in said
    good = dataclasses.replace(scene.subject, endpoint="good")
    assert not faults(good)
    none = dataclasses.replace(scene.subject, endpoint="ugly")
    assert "there is no endpoint 'ugly'; there are: bad, good" in only(none, "endpoints")
    scene.endpoints()
    assert "there are: none" in only(none, "endpoints")
    # What a controller in a container writes is not on this machine.
    assert "endpoints" not in faults(dataclasses.replace(none, record=None, from_file=True))


def test_16_an_engine_that_does_not_fit_the_server(
    scene: Scene, endpoint_fields: dict[str, Any]
) -> None:
    version = scene.subject.state / "triton" / "models" / "good" / "77"
    plan = build(Plan("10.4.0.26", 239, "7.5"))
    write_bundle(scene.folder / "old", endpoint_fields, engine="tensorrt", content=plan)
    version.parent.mkdir(parents=True)
    version.symlink_to(scene.folder / "old" / "model")
    named = dataclasses.replace(scene.subject, from_file=True, is_state_named=True)
    said = only(named, "endpoints")
    assert f"by TensorRT 10.4.0.26, the image pin {PIN.release} has {PIN.tensorrt}" in said
    assert f"compute capability 7.5, the image pin {PIN.release} has 8.6" in said
    assert "the embedded Triton has no TensorRT" not in said
    assert "the embedded Triton has no TensorRT" in only(scene.subject, "endpoints")


def test_17_a_bundle_that_the_gate_refuses(scene: Scene) -> None:
    assert scene.subject.bundle is not None
    tokenizer = scene.subject.bundle / "tokenizer.json"
    tokenizer.write_text("{ }")
    assert "'tokenizer.json' is not the one of the manifest" in only(scene.subject, "bundle")
    tokenizer.write_text("{}")
    scene.gpu(capability="9.0")
    said = only(dataclasses.replace(scene.subject), "bundle")
    assert f"compute capability 8.6, the image pin {PIN.release} has 9.0" in said


def test_18_a_log_with_a_known_error(scene: Scene) -> None:
    assert scene.subject.log is not None
    line = "E1120 logging.cc:40] Magic tag does not match\n"
    scene.subject.log.write_text(line * 3)
    assert "the file is no plan" in only(scene.subject, "log")
    assert "(3 times)" in only(scene.subject, "log")
    missing = dataclasses.replace(scene.subject, log=scene.folder / "nothing.log")
    assert "No such file" in only(missing, "log")


@pytest.mark.parametrize(
    ("engine", "keys", "is_told"),
    [("20.10.24", "", True), ("27.5.1", "", True), ("28.0.0", "", False), ("27.5.1", "k", False)],
)
def test_a_docker_whose_loopback_others_reach(
    scene: Scene, engine: str, keys: str, *, is_told: bool
) -> None:
    scene.docker(engine=engine)
    subject = having(scene, TRANSFORMER_SERVING_KEYS_FOLDER=keys)
    of_a_file = dataclasses.replace(subject, record=None, from_file=True)
    assert ("older than 28.0" in faults(of_a_file, WARNING).get("docker", "")) is is_told
    # The embedded stack publishes nothing.
    assert "docker" not in faults(subject, WARNING)


@pytest.mark.parametrize(
    ("client", "engine"),
    [("podman version 4.9.3", "4.9.3"), ("Docker version 28.2.2, build e6534b4", "dev"),
     ("Docker version 28.2.2, build e6534b4", "")],
)  # fmt: skip
def test_what_has_no_number_of_dockers_is_not_called_an_old_docker(
    scene: Scene, client: str, engine: str
) -> None:
    scene.docker(client=client, engine=engine)
    of_a_file = dataclasses.replace(having(scene), record=None, from_file=True)
    assert "docker" not in faults(of_a_file, WARNING)


def test_what_may_still_work_is_a_warning(scene: Scene) -> None:
    scene.gpu(driver="535.104.05")
    scene.endpoints({**READY, "reason": "the new bundle did not load"})
    scene.docker()
    names = dataclasses.replace(
        having(
            scene,
            CLEARML_API_HOST=f"http://{HOST_NAME}:8008",
            CLEARML_FILES_HOST="http://fileserver:8081",
        ),
        record=None,
        from_file=True,
        is_state_named=True,
    )
    found = faults(names, WARNING)
    assert "data-center GPUs only" in found["driver"]
    assert "serves its last good bundle, and what starts now answers 503" in found["endpoints"]
    back = command_line(f"rollback {READY['endpoint']}", scene.subject.state)
    assert f"; go back before anything is restarted: {back}; " in found["endpoints"]
    assert "a name inside a container network" in found["files"]
    # As 'containers' advises.
    assert "a name inside a container network" in found["api"]


def test_what_was_served_before_is_no_reason_to_go_back(scene: Scene) -> None:
    scene.endpoints({**READY, "failure": None, "reason": f"{BEFORE_IT}: no space"})
    said = faults(scene.subject, WARNING)["endpoints"]
    assert f"endpoint good serves what is asked for: {BEFORE_IT}: no space" in said
    assert "rollback" not in said
    assert "503" not in said


def test_a_stack_that_is_down_is_no_fault(scene: Scene) -> None:
    down = having(
        scene,
        CLEARML_API_HOST="http://127.0.0.1:9",
        CLEARML_FILES_HOST="http://127.0.0.1:9",
        TRANSFORMER_SERVING_TRITON_HTTP="",
    )
    scene.program("docker", "#!/bin/sh\nexit 1\n")
    assert not faults(down)


def test_without_gpu_and_docker_nothing_fails(scene: Scene) -> None:
    for program in scene.programs.iterdir():
        program.unlink()
    bare = having(scene, PATH=str(scene.programs))
    assert not faults(bare)
    # Of the scene's Triton, which is at a port.
    assert list(faults(bare, WARNING)) == ["triton"]
    driver = scene.folder / "version"
    driver.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  410.91.03  Wed Oct 27\n")
    assert "410.91.03 is older than" in only(
        dataclasses.replace(bare, driver_file=driver), "driver"
    )
