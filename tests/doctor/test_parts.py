"""What is said of an embedded stack whose parts are dead, hang, or have lost their port."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.doctor.conftest import READY, answering
from tests.free_ports import free_port
from transformer_serving.contract.stack_line import MARK
from transformer_serving.desk.command_line import command_line
from transformer_serving.desk.doctor.finding import FAILURE, OK, SKIPPED, Finding
from transformer_serving.desk.doctor.subject import Subject
from transformer_serving.desk.doctor.table import examine
from transformer_serving.desk.local.parts import PARTS
from transformer_serving.desk.local.record import Ports, StackRecord, clearml_environment
from transformer_serving.desk.local.supervision import WAITING, Process, Supervisor

TRITON = json.dumps({"version": "2.51.0"}).encode()


def reply(path: str) -> tuple[int, bytes, dict[str, str]]:
    """Of every part in one: it is ready, and without keys."""
    return 200, json.dumps({"ready": True, "endpoints": []}).encode(), {}


@dataclasses.dataclass
class Embedded:
    """A stack with a supervisor that says what the test wants, and listeners that answer."""

    subject: Subject
    processes: dict[str, Process]

    def controller(self, ago_s: float, error: str | None = None) -> None:
        path = self.subject.state / "triton" / "controller.json"
        path.parent.mkdir(exist_ok=True)
        own = {"pid": os.getpid(), "last_sync": time.time() - ago_s, "control_plane_error": error}
        path.write_text(json.dumps({"controller": own, "endpoints": [READY]}))

    def ports(self, **changed: int) -> None:
        assert self.subject.record is not None
        ports = dataclasses.replace(self.subject.record.ports, **changed)
        record = dataclasses.replace(self.subject.record, ports=ports)
        self.subject = dataclasses.replace(
            self.subject, record=record, environment=clearml_environment(record)
        )

    def found(self, check: str, status: str) -> list[Finding]:
        rows = [row.finding for row in examine(self.subject) if row.check == check]
        return [row for row in rows if row.status == status]

    def said(self, check: str, status: str) -> str:
        return "\n".join(row.why for row in self.found(check, status))


@pytest.fixture
def embedded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Embedded]:
    def port(address: str) -> int:
        return int(address.rsplit(":", 1)[1])

    with ExitStack() as servers:
        gateway, control_plane, *figures = (
            port(servers.enter_context(answering(reply))) for _ in range(4)
        )
        triton = port(servers.enter_context(answering(lambda path: (200, TRITON, {}))))
        record = StackRecord(
            Ports(gateway, control_plane, *figures),
            *("a", "s"),
            open_inference=triton,
        )
        state = tmp_path / "state"
        (state / "run").mkdir(parents=True)
        (state / "run" / "watchdog").touch()
        (state / "supervisor.pid").write_text("1")
        names = [part.name for part in PARTS]
        processes = {name: Process(name, "RUNNING", os.getpid(), 9.0) for name in names}
        monkeypatch.setattr(Supervisor, "is_up", lambda _: bool(processes))
        monkeypatch.setattr(Supervisor, "processes", lambda _: processes)
        environment: dict[str, Any] = {"PATH": "/nowhere", **clearml_environment(record)}
        found = Embedded(Subject(state, environment, record, usual_triton="127.0.0.1:9"), processes)
        found.controller(ago_s=0)
        yield found


def test_a_stack_that_is_well(embedded: Embedded) -> None:
    assert "all 5 parts of the stack are well" in embedded.said("parts", OK)
    assert embedded.said("endpoints", OK) == "endpoint good is ready"
    for check in ("parts", "ports", "triton", "endpoints", "gateway"):
        assert embedded.said(check, FAILURE) == ""


def test_a_controller_that_hangs(embedded: Embedded) -> None:
    embedded.controller(ago_s=1000)
    assert "controller: last synced 1000 s ago" in embedded.said("parts", FAILURE)
    assert "is not of now: last synced 1000 s ago" in embedded.said("endpoints", FAILURE)
    assert "as the controller last wrote" in embedded.said("endpoints", OK)


def test_a_controller_that_is_dead(embedded: Embedded) -> None:
    embedded.processes["controller"] = Process("controller", WAITING, None, 0.0)
    assert "controller: backoff" in embedded.said("parts", FAILURE)
    assert "is not of now: backoff" in embedded.said("endpoints", FAILURE)


def test_a_stranger_at_the_gateways_port(embedded: Embedded) -> None:
    embedded.processes["inference"] = Process("inference", WAITING, None, 0.0)
    with answering(lambda path: (404, b"{}", {})) as stranger:
        number = int(stranger.rsplit(":", 1)[1])
        embedded.ports(inference=number)
        assert "inference: backoff" in embedded.said("parts", FAILURE)
        assert f"port {number} (inference) is taken" in embedded.said("ports", FAILURE)
        assert "is not the stack's gateway" in embedded.said("gateway", FAILURE)


def test_a_stranger_at_the_port_of_tritons_figures(embedded: Embedded) -> None:
    """The usual port of any other Triton, with which ours does not come up."""
    embedded.processes["triton"] = Process("triton", WAITING, None, 0.0)
    assert embedded.subject.record is not None
    record = dataclasses.replace(embedded.subject.record, open_inference=None, sockets="/nowhere")
    embedded.subject = dataclasses.replace(embedded.subject, record=record)
    number = record.ports.triton_metrics
    assert f"port {number} (triton_metrics) is taken" in embedded.said("ports", FAILURE)
    embedded.ports(triton_metrics=free_port())
    assert embedded.said("ports", FAILURE) == ""


def test_a_stranger_at_the_port_of_the_controllers_figures(embedded: Embedded) -> None:
    """Which serves on without any, also once the stranger has left."""
    code = (
        "import socket, time; taken = socket.create_server(('127.0.0.1', 0)); "
        "print(taken.getsockname()[1], flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as stranger:
        assert stranger.stdout is not None
        number = int(stranger.stdout.readline())
        embedded.ports(controller_metrics=number)
        assert f"port {number} (controller_metrics) is taken" in embedded.said("ports", FAILURE)
        stranger.kill()
    embedded.subject = dataclasses.replace(embedded.subject)
    [said] = embedded.found("ports", FAILURE)
    assert f"the controller gives no figures at port {number}" in said.why
    assert "start the stack again" in said.fix


def test_a_controller_that_waits_for_its_control_plane_writes_of_now(embedded: Embedded) -> None:
    embedded.controller(ago_s=100, error="it does not answer")
    assert "controller: control plane: it does not answer" in embedded.said("parts", FAILURE)
    assert embedded.said("endpoints", FAILURE) == ""
    assert embedded.said("endpoints", OK) == "endpoint good is ready"
    long_ago = time.time() - 1000
    os.utime(embedded.subject.state / "triton" / "controller.json", (long_ago, long_ago))
    embedded.subject = dataclasses.replace(embedded.subject)
    assert "is not of now: last seen 1000 s ago" in embedded.said("endpoints", FAILURE)


def test_what_does_not_answer_in_the_stack_is_looked_up_in_its_log(embedded: Embedded) -> None:
    """Its addresses are no variables of the shell, where a correction of one would be dropped."""
    for name in ("control-plane", "inference"):
        embedded.processes[name] = Process(name, WAITING, None, 0.0)
    embedded.ports(inference=9, control_plane=9)
    for check, part in (
        ("api", "control-plane"),
        ("files", "control-plane"),
        ("gateway", "inference"),
    ):
        [said] = embedded.found(check, FAILURE)
        assert "is not reachable" in said.why
        assert said.fix == f"see '{command_line(f'logs {part}', embedded.subject.state)}'"


def test_a_triton_that_does_not_run(embedded: Embedded) -> None:
    assert embedded.subject.record is not None
    record = dataclasses.replace(embedded.subject.record, open_inference=None, sockets="/nowhere")
    embedded.subject = dataclasses.replace(embedded.subject, record=record)
    assert "triton: does not answer" in embedded.said("parts", FAILURE)
    assert "Triton does not run at unix:/nowhere/triton" in embedded.said("triton", FAILURE)


def test_a_stack_that_is_down_and_one_that_was_not_stopped(embedded: Embedded) -> None:
    embedded.processes.clear()
    assert "nothing of it runs any more" in embedded.said("parts", FAILURE)
    (embedded.subject.state / "supervisor.pid").unlink()
    embedded.subject = dataclasses.replace(embedded.subject)
    assert "is down; start it" in embedded.said("parts", SKIPPED)


def test_parts_without_a_supervisor_are_no_strangers_at_their_ports(embedded: Embedded) -> None:
    """`up --port-base` would end what serves, and move the stack for good."""
    embedded.processes.clear()
    state = embedded.subject.state
    part = subprocess.Popen(["sleep", "60"], env={**os.environ, MARK: str(state)})
    try:
        assert "no supervisor keeps the stack any more" in embedded.said("parts", FAILURE)
        assert "what is left of the stack may have them" in embedded.said("ports", SKIPPED)
        for check in ("ports", "triton", "gateway", "services"):
            assert embedded.said(check, FAILURE) == ""
        assert "down" not in embedded.said("services", SKIPPED)
    finally:
        part.kill()
        part.wait()
