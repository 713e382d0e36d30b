"""The endpoint in containers, as one story: started, asked, stopped, rolled, killed, taken down.

The order counts: the stack is one, and each test leaves it serving.
"""

from __future__ import annotations

import http.client
import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tritonclient.grpc import InferenceServerClient
from tritonclient.utils import InferenceServerException

from tests.compose.conftest import (
    ROOT,
    SEED,
    Compose,
    health,
    kill,
    kill_tritonserver,
    started,
    wait_for,
    wait_until_answered,
)
from tests.compose.figures import ComposeFigures
from tests.compose.load import HEADERS, Load
from tests.compose.machine import inspected, run
from tests.stack.intruder import grpc_calls, http_calls, send
from tests.stack.small_bundles import TEXT, Parts, answer_of, write_small
from transformer_serving.desk.bundle.folder import open_bundle
from transformer_serving.desk.deploy.golden import ask

ENDPOINT = "transformer_model"
CLIENTS = 8


def test_the_seeds_request_is_answered(stack: Compose, bundles: Path) -> None:
    golden = open_bundle(bundles / ENDPOINT).manifest.golden
    reply = ask(stack.url(ENDPOINT), SEED)
    assert reply.status == 200
    assert set(reply.body) == {"label", "score"}
    assert ask(stack.url(ENDPOINT), golden.request).body["label"] == golden.answer["label"]
    texts = ask(stack.url(ENDPOINT), {"text": ["A lovely evening.", "Cold food, rude waiter."]})
    assert [row["label"] for row in texts.body] == ["POSITIVE", "NEGATIVE"]


def test_services_started_in_the_order_of_their_health(stack: Compose) -> None:
    (triton,) = stack.containers("triton")
    (balancer,) = stack.containers("balancer")
    (service,) = stack.run("ps", "--all", "--quiet", "serving-service").split()
    inference = stack.containers("inference")
    assert len(inference) == 3
    state = inspected(service)["State"]
    assert isinstance(state, dict)
    assert state["ExitCode"] == 0
    assert state["FinishedAt"] < started(triton)
    for container in inference:
        assert started(triton) < started(container) < started(balancer)
    assert all(health(container) == "healthy" for container in (triton, balancer, *inference))


def test_only_the_front_door_and_the_control_plane_are_published(stack: Compose) -> None:
    published = set()
    for container in stack.all_containers():
        ports = inspected(container)["NetworkSettings"]["Ports"]  # type: ignore[index]
        for port, bindings in ports.items():
            published |= {(port, row["HostIp"]) for row in bindings or []}
    assert published == {("8080/tcp", "127.0.0.1"), ("8008/tcp", "127.0.0.1")}


def test_up_again_changes_nothing(stack: Compose) -> None:
    before = {container: started(container) for container in serving(stack)}
    stack.up("--scale", "inference=3")
    assert {container: started(container) for container in serving(stack)} == before


def serving(stack: Compose) -> list[str]:
    services = ("control-plane", "triton", "inference", "balancer")
    return [container for name in services for container in stack.containers(name)]


def test_no_secret_is_in_environments_or_logs(stack: Compose) -> None:
    environment = stack.environment()
    secrets = [environment["CLEARML_API_ACCESS_KEY"], environment["CLEARML_API_SECRET_KEY"]]
    assert all(len(secret) >= 20 for secret in secrets)
    dumps = [json.dumps(inspected(container)) for container in stack.all_containers()]
    dumps.append(stack.run("logs", "--no-color"))
    dumps.append(stack.run("config"))
    assert not any(secret in dump for secret in secrets for dump in dumps)


def test_who_reaches_triton_can_have_it_infer_and_nothing_else(stack: Compose) -> None:
    """As another container of its network: by its address there."""
    (triton,) = stack.containers("triton")
    (network,) = inspected(triton)["NetworkSettings"]["Networks"].values()  # type: ignore[index]
    address, marker = str(network["IPAddress"]), "/tmp/intruder-ran"
    for method, path, body in http_calls(marker):
        assert send((address, 8000), method, path, body, "Host: t\r\n")[0] == 403, path
    assert (
        send((address, 8000), "GET", f"/v2/models/{ENDPOINT}/ready", b"", "Host: t\r\n")[0] == 200
    )
    client = InferenceServerClient(f"{address}:8001")
    for name, arguments in grpc_calls(marker).items():
        with pytest.raises(InferenceServerException, match="protocol is restricted"):
            getattr(client, name)(**arguments, client_timeout=30)
    assert client.is_model_ready(ENDPOINT)
    client.close()
    assert send((address, 8002), "GET", "/metrics", b"", "Host: t\r\n")[0] == 0
    assert b"nv_inference" in send((address, 8003), "GET", "/metrics", b"", "Host: t\r\n")[1]
    run("docker", "exec", triton, "test", "!", "-e", marker)
    assert stack.status(ENDPOINT) == 200


def test_an_orderly_stop_under_load_fails_no_request(
    stack: Compose, figures: ComposeFigures
) -> None:
    leaving = stack.containers("inference")[0]
    with Load(stack.port, ENDPOINT, CLIENTS) as load:
        wait_until_answered(load)
        run("docker", "stop", "--time", "120", leaving)
        wait_until_answered(load)
    figures.load("orderly stop of one of three inference containers", load)
    assert inspected(leaving)["State"]["ExitCode"] == 0  # type: ignore[index]
    assert load.failed == 0, load.seen
    run("docker", "start", leaving)
    wait_for(lambda: health(leaving) == "healthy", "the stopped container is back")


def test_rolling_the_inference_containers_fails_no_request(
    stack: Compose, figures: ComposeFigures
) -> None:
    before = set(stack.containers("inference"))
    with Load(stack.port, ENDPOINT, CLIENTS) as load:
        wait_until_answered(load)
        run("compose/roll.sh", "inference", *stack.arguments(), cwd=ROOT)
        wait_until_answered(load)
    figures.load("rolling update of three inference containers", load)
    after = set(stack.containers("inference"))
    assert len(after) == 3
    assert not before & after
    assert load.failed == 0, load.seen
    # The new containers are what compose itself would have started.
    stack.up("--scale", "inference=3")
    assert set(stack.containers("inference")) == after


def test_a_killed_worker_fails_only_what_was_in_flight_there(
    stack: Compose, figures: ComposeFigures
) -> None:
    victim = stack.containers("inference")[0]
    since = started(victim)
    with Load(stack.port, ENDPOINT, CLIENTS) as load:
        wait_until_answered(load)
        kill(victim)
        wait_until_answered(load, 400)
    figures.load("kill -9 of one of three inference containers", load)
    # Each client had one request on its way at most, and only some of them there.
    assert load.failed <= CLIENTS, load.seen
    wait_for(lambda: started(victim) != since, "Docker starts it again")
    wait_for(lambda: health(victim) == "healthy", "the killed container is back")


def test_triton_killed_is_503_with_retry_after_and_comes_back(
    stack: Compose, figures: ComposeFigures
) -> None:
    (triton,) = stack.containers("triton")
    since = started(triton)
    kill_tritonserver(triton)
    code, retry_after = wait_for(lambda: unavailable(stack), "the engine is seen to be away")
    assert code == "unavailable"
    assert int(retry_after) >= 1
    killed = time.monotonic()
    wait_for(lambda: stack.status(ENDPOINT) == 200, "the engine is back")
    figures.recovery("tritonserver killed", time.monotonic() - killed)
    assert started(triton) == since  # started again in place


def unavailable(stack: Compose) -> tuple[str, str] | None:
    """Code and Retry-After of a 503; None for any other answer."""
    connection = http.client.HTTPConnection("127.0.0.1", stack.port, timeout=90)
    connection.request("POST", f"/serve/{ENDPOINT}", json.dumps(SEED), HEADERS)
    answer = connection.getresponse()
    body = json.loads(answer.read())
    connection.close()
    return (body["code"], answer.headers["retry-after"]) if answer.status == 503 else None


def test_a_killed_triton_container_comes_back_with_its_models(
    stack: Compose, figures: ComposeFigures
) -> None:
    """Also with the control plane away: what it served last lies in its own volume."""
    (triton,) = stack.containers("triton")
    since = started(triton)
    stack.run("stop", "control-plane")
    kill(triton)
    killed = time.monotonic()
    wait_for(lambda: started(triton) != since, "Docker starts it again")
    wait_for(lambda: stack.status(ENDPOINT) == 200, "the engine is back")
    figures.recovery("its whole container killed", time.monotonic() - killed)
    stack.up("--scale", "inference=3")


def test_new_bundles_under_load_fail_no_request_and_mix_nothing(
    stack: Compose, tmp_path: Path, figures: ComposeFigures
) -> None:
    """A new engine, then a new tokenizer, labels and preprocess code; and back to the first."""
    right: set[tuple[int, str, str]] = set()

    def deploy(parts: Parts) -> None:
        bundle = write_small(tmp_path / str(len(right)), parts)
        version, label = str(bundle.manifest.bundle_version), str(answer_of(parts)["label"])
        right.add((200, version, label))
        stack.deploy(bundle.folder, "rolled")

    first = Parts(engine="openvino")
    other = Parts(engine="openvino", labels=("uno", "due", "tre"), rotated=3, revision="other")
    deploy(first)
    with Load(stack.port, "rolled", CLIENTS, text=TEXT) as load:
        wait_until_answered(load)
        for parts in (replace(first, scale=-1.0), other, first):
            deploy(parts)
            wait_until_answered(load, 100)
    figures.load("rolling update of a model, of a preprocess, and back", load)
    assert load.failed == 0, load.seen
    assert set(load.seen) == right
    assert len({label for _, _, label in right}) == 3


def test_restart_brings_everything_back(stack: Compose) -> None:
    stack.run("restart", "triton", "inference", "balancer")
    again = serving(stack)
    wait_for(lambda: all(health(one) == "healthy" for one in again), "healthy again")
    wait_for(lambda: stack.status(ENDPOINT) == 200, "the endpoint answers again")


def test_down_and_up_serves_what_was_deployed(stack: Compose) -> None:
    stack.run("down")
    assert stack.all_containers() == []
    stack.up("--scale", "inference=2")
    wait_for(lambda: stack.status(ENDPOINT) == 200, "the endpoint answers again")


@pytest.fixture
def two_tritons(stack: Compose) -> list[str]:
    stack.run("up", "--detach", "--no-recreate", "--scale", "inference=2", "--scale", "triton=2")
    both = stack.containers("triton")
    assert len(both) == 2
    wait_for(lambda: all(answers(one) >= 0 for one in both), "both have the model")
    return both


# Nothing from one that has only just been started.
FIGURES_OF_TRITON = """
import urllib.request
try:
    print(urllib.request.urlopen("http://127.0.0.1:8002/metrics", timeout=30).read().decode())
except OSError:
    pass
"""


def answers(triton: str) -> int:
    """Successful inferences of one Triton, by its own count; -1 before it has the model."""
    page = run("docker", "exec", triton, "python3", "-c", FIGURES_OF_TRITON)
    counts = [
        int(float(line.rsplit(" ", 1)[1]))
        for line in page.splitlines()
        if line.startswith("nv_inference_request_success{") and f'"{ENDPOINT}"' in line
    ]
    return sum(counts) if counts else -1


@pytest.mark.spare
def test_two_tritons_share_the_load_and_one_may_go(
    stack: Compose, two_tritons: list[str], figures: ComposeFigures
) -> None:
    first, second = two_tritons
    with Load(stack.port, ENDPOINT, CLIENTS) as load:
        wait_for(lambda: answers(first) > 50 and answers(second) > 50, "both are asked")
        run("docker", "stop", "--time", "60", second)
        wait_until_answered(load)
    figures.load("orderly stop of one of two Tritons", load)
    assert load.failed == 0, load.seen
