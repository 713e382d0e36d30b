"""What waits in a serving service that nobody serves, and routes and settings that lead to nothing;
with clearml-serving's own commands, as people type them."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from tests.doctor.conftest import ACCESS, SECRET
from transformer_serving.desk.clearml_tools.cli import ClearmlCli
from transformer_serving.desk.doctor.finding import OK, SKIPPED, WARNING, Finding
from transformer_serving.desk.doctor.services import _of_route, check_services
from transformer_serving.desk.doctor.subject import Subject
from transformer_serving.desk.doctor.triton import check_endpoints
from transformer_serving.desk.local import services
from transformer_serving.desk.local.record import Ports, StackRecord, clearml_environment
from transformer_serving.desk.local.services import Arm, Route, Services, read_services
from transformer_serving.desk.local.supervision import Supervisor
from transformer_serving.gateway.settings import GENERATE_ENDPOINT, ROOT_ENDPOINT

# Of the SDK's own copy of pyhocon.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
LEADS = "what leads to an endpoint leads to one that is there"


def add(cli: ClearmlCli, endpoint: str, *arguments: str) -> None:
    cli.run("model", "add", "--engine", "custom", "--endpoint", endpoint, *arguments)


@pytest.fixture(scope="module")
def record(control_plane: str) -> StackRecord:
    """Of a stack whose serving service is new, and has the endpoint `good`, and `good` of 2."""
    ports = Ports(control_plane=int(control_plane.rsplit(":", 1)[1]))
    record = StackRecord(ports, ACCESS, SECRET)
    record = record.with_serving_id(ClearmlCli(clearml_environment(record)).create_service("own"))
    cli = ClearmlCli(clearml_environment(record), record.serving_id)
    add(cli, "good")
    add(cli, "good", "--version", "2")
    return record


@pytest.fixture
def cli(record: StackRecord) -> ClearmlCli:
    return ClearmlCli(clearml_environment(record), record.serving_id)


@pytest.fixture
def subject(record: StackRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Subject:
    (tmp_path / "supervisor.pid").write_text("1")
    monkeypatch.setattr(Supervisor, "is_up", lambda _: True)
    monkeypatch.setattr(Supervisor, "environment", lambda _: {})
    return Subject(tmp_path, clearml_environment(record), record)


def warned(subject: Subject, of: str) -> list[Finding]:
    """What is said of that; the control plane is that of all these tests."""
    found = list(check_services(subject))
    assert {one.status for one in found} <= {OK, WARNING}
    assert (found == [Finding(OK, LEADS)]) == all(one.status == OK for one in found)
    return [one for one in found if of in one.why]


def test_endpoints_of_a_service_that_is_not_served_are_named(
    record: StackRecord, subject: Subject
) -> None:
    """The sequence of clearml-serving's own page: create, then model add with the id of that."""
    other = ClearmlCli(clearml_environment(record)).create_service("one more")
    # An empty one is nothing to be told of.
    assert not warned(subject, "serving service")
    add(ClearmlCli(clearml_environment(record), other), "lost")
    (found,) = warned(subject, "serving service")
    assert f"service 'one more' ({other}) has endpoints that nobody serves: lost;" in found.why
    assert str(record.serving_id) in found.why
    assert f"clearml-serving --id {other} model remove --endpoint NAME" in found.fix


def test_a_route_to_what_is_not_there_is_named(
    record: StackRecord, subject: Subject, cli: ClearmlCli
) -> None:
    half = ["--weights", "0.5", "0.5", "--input-endpoints", "good"]
    cli.run("model", "canary", "--endpoint", "split", *half, "good/2")
    cli.run("model", "canary", "--endpoint", "typed", *half, "nothere")
    cli.run(
        "model", "canary", "--endpoint", "newest", "--weights", "0.9", "0.1",
        "--input-endpoint-prefix", "good",
    )  # fmt: skip
    (found,) = warned(subject, "canary route")
    assert "route typed names nothere, which is not there: its share, weight 0.5" in found.why
    found_there = read_services(record)
    assert found_there is not None
    arms = {
        route.endpoint: [(arm.endpoint, arm.weight, arm.is_there) for arm in route.arms]
        for route in found_there.routes
    }
    assert arms == {
        "split": [("good", 0.5, True), ("good/2", 0.5, True)],
        "typed": [("good", 0.5, True), ("nothere", 0.5, False)],
        "newest": [("good/2", 0.9, True), ("good", 0.1, True)],
    }


@pytest.mark.parametrize(
    ("route", "why"),
    [
        (Route("r", None, (Arm("a", 0.5, False), Arm("b", 0.5, False))), "a, b: none is there"),
        (Route("r", "x", ()), "no endpoint begins with x"),
        (
            Route("r", None, ()),
            "it has a prefix beside its endpoints, or not one number as weight for each of them",
        ),
        (
            Route("r", None, (Arm("a", 0.0, True), Arm("b", 1.0, False))),
            "a: there, and without a weight",
        ),
    ],
    ids=["none there", "prefix", "weights", "no weight"],
)
def test_a_route_that_leads_nowhere_says_why(route: Route, why: str) -> None:
    (found,) = _of_route(route)
    assert found.why == f"canary route r leads nowhere: {why}"


def test_a_route_of_an_endpoints_name_is_not_ended_by_a_removal() -> None:
    """`model remove` takes the endpoint of that name."""
    route = Route("r", None, (Arm("r", 1.0, True), Arm("r/2", 1.0, False)))
    (found,) = _of_route(route, is_endpoint=True)
    assert "model remove" not in str(found.fix)
    assert "model canary --endpoint r --weights 1 --input-endpoints r" in str(found.fix)
    (found,) = _of_route(route)
    assert "model remove --endpoint r," in str(found.fix)


def test_what_the_controller_has_nothing_of_is_no_fault_of_its_rows(
    subject: Subject, cli: ClearmlCli
) -> None:
    """An engine beside Triton, or a route: the gateway serves both."""
    half = ["--weights", "0.5", "0.5", "--input-endpoints", "good", "good/2"]
    cli.run("model", "canary", "--endpoint", "halves", *half)

    def said(endpoint: str) -> Finding:
        # What follows is of the controller, which does not run here.
        return next(iter(check_endpoints(replace(subject, endpoint=endpoint))))

    assert (said("good/2").status, said("halves").status) == (SKIPPED, SKIPPED)
    assert "the engine of 'good/2' is not Triton" in said("good/2").why
    assert "'halves' is a canary route" in said("halves").why
    assert "there is no endpoint 'nothere'" in said("nothere").why


def test_a_setting_that_names_nothing_is_named(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = {ROOT_ENDPOINT.name: "good/2", GENERATE_ENDPOINT.name: "god"}
    monkeypatch.setattr(Supervisor, "environment", lambda _: started)
    (found,) = warned(subject, "_ENDPOINT")
    assert f"{GENERATE_ENDPOINT.name} names god, and no such endpoint is there: 404" in found.why
    assert "there are: good, good/2" in found.fix


@pytest.mark.parametrize(
    "canary",
    ["[1]", '"r" {weights = [a], load_endpoints = [b]}', "r = 1", "r {weights = 1}", "{"],
    ids=["list", "words", "value", "one weight", "cut"],
)
def test_what_no_command_has_written_ends_nothing(canary: str) -> None:
    endpoints = '{"a": {"serving_url": "a"}}'
    task = {"configuration": {"canary": {"value": canary}, "endpoints": {"value": endpoints}}}
    own = Services(task, ())
    assert own.endpoints == ("a",)
    assert not [arm for route in own.routes for arm in route.arms]


def test_a_control_plane_that_says_nothing_is_not_waited_for(
    record: StackRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "_TIMEOUT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        ports = replace(record.ports, control_plane=silent.getsockname()[1])
        assert services.read_services(replace(record, ports=ports)) is None


def test_a_control_plane_without_the_task_that_is_served_says_nothing(
    record: StackRecord,
) -> None:
    """Nothing is there of what its settings and routes name, as far as it tells."""
    assert read_services(record.with_serving_id("0" * 32)) is None


def test_without_a_control_plane_nothing_is_said(subject: Subject) -> None:
    assert subject.record is not None
    gone = replace(subject.record, ports=replace(subject.record.ports, control_plane=9))
    (found,) = check_services(replace(subject, record=gone))
    assert found.status == SKIPPED
