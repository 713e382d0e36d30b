"""The front door on an address that others reach, as one story: refused, keys, TLS, the balancer.

The order counts: the stack is one, and each test leaves it serving.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from tritonclient import grpc
from tritonclient.utils import InferenceServerException

from tests.compose.conftest import (
    CLI,
    ROOT,
    SEED,
    Compose,
    env_file,
    health,
    small_stack,
    started,
    wait_for,
)
from tests.compose.machine import inspected, run
from tests.free_ports import free_ports
from tests.gateway.certificates import Authority, Pair, serial
from transformer_serving.contract.replacement import replace_file

ENDPOINT = "transformer_model"
SERVE = f"/serve/{ENDPOINT}"
CREDENTIALS = ("CLEARML_API_ACCESS_KEY", "CLEARML_API_SECRET_KEY", "CLEARML_SERVING_TASK_ID")


@dataclass
class FrontDoor:
    """A stack, what its env file says, and the two folders that it may mount."""

    stack: Compose
    said: dict[str, str]
    folder: Path
    authority: Authority
    keys: dict[str, str] = field(default_factory=dict)
    context: ssl.SSLContext | None = None

    def __post_init__(self) -> None:
        for name in ("keys", "tls"):
            (self.folder / name).mkdir(mode=0o755)

    @property
    def keys_file(self) -> Path:
        return self.folder / "keys" / "keys.json"

    def up(self, *options: str, **changes: str) -> None:
        self.said |= {f"TRANSFORMER_SERVING_{name}": value for name, value in changes.items()}
        env_file(self.stack.env_file, self.said)
        self.stack.up(*options)

    def key(self, name: str, *options: str) -> None:
        command = (CLI, "keys", "add", name, *options, "--file", str(self.keys_file))
        self.keys[name] = run(*command).strip()

    def put(self, pair: Pair, name: str = "tls") -> int:
        """In the place of the pair that is there, the key first; the new one's serial number."""
        replace_file(self.folder / "tls" / f"{name}.key", pair.key.read_bytes(), mode=0o644)
        replace_file(self.folder / "tls" / f"{name}.crt", pair.cert.read_bytes(), mode=0o644)
        return serial(ssl.PEM_cert_to_DER_cert(pair.cert.read_text()))

    def ask(self, path: str = SERVE, key: str | None = None) -> tuple[int, str]:
        """Status and body; 0 where no HTTP came back."""
        scheme = "http" if self.context is None else "https"
        headers = {"Content-Type": "application/json"}
        if key is not None:
            headers["Authorization"] = f"Bearer {self.keys.get(key, key)}"
        request = urllib.request.Request(
            f"{scheme}://127.0.0.1:{self.stack.port}{path}",
            json.dumps(SEED).encode() if path == SERVE else None,
            headers,
        )
        try:
            with urllib.request.urlopen(request, timeout=30, context=self.context) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def shown(self) -> int:
        """The serial number of the certificate that a new connection is shown."""
        assert self.context is not None
        with (
            socket.create_connection(("127.0.0.1", self.stack.port), 30) as plain,
            self.context.wrap_socket(plain, server_hostname="127.0.0.1") as secured,
        ):
            return serial(secured.getpeercert(binary_form=True))

    def speaks(self, version: str) -> bool:
        """To openssl's own client, which is told to offer this version alone, however old."""
        done = subprocess.run(
            ["openssl", "s_client", "-connect", f"127.0.0.1:{self.stack.port}", version,
             "-cipher", "DEFAULT@SECLEVEL=0"],
            input="", capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        return "BEGIN CERTIFICATE" in done.stdout

    def renew(self, container: str) -> None:
        """A new certificate is shown, all requests meanwhile are answered, nothing is restarted."""
        before, since = self.shown(), started(container)
        wanted, answers = self.put(self.authority.sign("renewed")), set()

        def renewed() -> bool:
            answers.add(self.ask(key="caller")[0])
            return self.shown() == wanted

        assert wanted != before
        wait_for(renewed, "the renewed certificate is shown")
        assert answers == {200}
        assert started(container) == since


@pytest.fixture(scope="module")
def front(
    images: dict[str, str],
    build_secrets: dict[str, str],
    bundles: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[FrontDoor]:
    """As it comes: on 127.0.0.1, without keys, which is how the endpoint is deployed."""
    port, control_plane = free_ports(2)
    said = {
        **build_secrets,
        **small_stack(port, control_plane),
    }
    folder = tmp_path_factory.mktemp("network")
    stack = Compose(f"network-test-{os.getpid()}", folder / "stack.env", ["compose.yaml"], port)
    door = FrontDoor(stack, said, folder, Authority(folder))
    try:
        door.up()
        stack.deploy(bundles / ENDPOINT, ENDPOINT)
        yield door
    finally:
        stack.run("down", "--volumes", "--remove-orphans", "--timeout", "5")


@pytest.mark.parametrize("address", ["0.0.0.0", "[::]", "192.0.2.7"])
def test_without_keys_it_is_no_start(images: dict[str, str], tmp_path: Path, address: str) -> None:
    project = Compose(
        f"refused-test-{os.getpid()}",
        env_file(tmp_path / "refused.env", {"TRANSFORMER_SERVING_BIND": address}),
        ["compose.yaml"],
        0,
    )
    given = [part for name in CREDENTIALS for part in ("-e", f"{name}=any")]
    command = ["docker", "compose", *project.arguments()]
    try:
        done = subprocess.run(
            [*command, "run", "--rm", "--no-deps", "-T", *given, "inference"],
            cwd=ROOT, capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
    finally:
        project.run("down", "--volumes")
    assert done.returncode != 0
    assert f"TRANSFORMER_SERVING_BIND publishes on {address}, which is reached" in done.stderr
    assert "TRANSFORMER_SERVING_KEYS_FOLDER" in done.stderr


def test_the_image_alone_does_not_start_without_keys(images: dict[str, str]) -> None:
    """Nobody says where its port is published."""
    command = ["docker", "run", "--rm", "--read-only", images["inference"]]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode != 0
    assert "0.0.0.0 is reached from elsewhere and there are no keys" in done.stderr


def test_said_to_be_open_it_is(front: FrontDoor) -> None:
    front.up(BIND="0.0.0.0", OPEN="1")
    (inference,) = front.stack.containers("inference")
    (bound,) = inspected(inference)["NetworkSettings"]["Ports"]["8080/tcp"]  # type: ignore[index]
    assert bound["HostIp"] == "0.0.0.0"
    assert front.ask()[0] == 200


def test_keys_decide_who_gets_in(front: FrontDoor) -> None:
    front.key("caller")
    front.key("prometheus", "--metrics")
    front.up(OPEN="", KEYS_FOLDER=str(front.folder / "keys"))
    assert [front.ask(key=key)[0] for key in (None, "ts_" + 64 * "0", "caller")] == [401, 401, 200]
    assert front.ask("/health/ready")[0] == 200
    asked = [front.ask("/metrics", key)[0] for key in (None, "caller", "prometheus")]
    assert asked == [401, 403, 200]
    assert "transformer_serving_requests_total" in front.ask("/metrics", "prometheus")[1]
    assert front.ask(key="prometheus")[0] == 403


def test_a_changed_key_file_is_seen_through_the_mount(front: FrontDoor) -> None:
    (inference,) = front.stack.containers("inference")
    since = started(inference)
    front.key("guest")
    wait_for(lambda: front.ask(key="guest")[0] == 200, "the added key lets in")
    run(CLI, "keys", "remove", "guest", "--file", str(front.keys_file))
    wait_for(lambda: front.ask(key="guest")[0] == 401, "the removed key does not")
    assert front.ask(key="caller")[0] == 200
    assert started(inference) == since


def test_grpc_is_published_beside_http(front: FrontDoor) -> None:
    (port,) = free_ports(1)
    front.stack.files = ["compose.yaml", "grpc.yaml"]
    front.up(PUBLISHED_GRPC_PORT=str(port))
    client = grpc.InferenceServerClient(f"127.0.0.1:{port}")
    texts = grpc.InferInput("args", [1], "BYTES")
    texts.set_data_from_numpy(np.array([SEED["text"]], object))
    key = {"authorization": f"Bearer {front.keys['caller']}"}
    found = client.infer(ENDPOINT, [texts], headers=key).as_numpy("output")
    assert json.loads(found.ravel()[0])["label"]
    with pytest.raises(InferenceServerException, match="UNAUTHENTICATED"):
        client.infer(ENDPOINT, [texts])
    client.close()
    assert front.ask(key="caller")[0] == 200
    front.stack.files = ["compose.yaml"]


def test_tls_is_spoken_and_its_certificate_renewed(front: FrontDoor) -> None:
    first = front.put(front.authority.sign("first"))
    front.context = front.authority.client()
    front.up(TLS_FOLDER=str(front.folder / "tls"))
    (inference,) = front.stack.containers("inference")
    assert health(inference) == "healthy"
    assert front.shown() == first
    assert front.ask(key="caller")[0] == 200
    assert front.ask()[0] == 401
    assert [front.speaks(version) for version in ("-tls1_2", "-tls1_1")] == [True, False]
    front.renew(inference)


def test_callers_need_a_certificate_and_so_does_the_health_check(front: FrontDoor) -> None:
    authority = front.authority
    (front.folder / "tls" / "ca.crt").write_bytes(authority.cert.read_bytes())
    front.put(authority.sign("health"), "health")
    # It ends when the container is healthy.
    front.up(TLS_CLIENT_CA="/run/tls/ca.crt")
    front.context = authority.client()
    assert front.ask(key="caller")[0] == 0
    front.context = authority.client(authority.sign("caller"))
    assert front.ask()[0] == 401
    assert front.ask(key="caller")[0] == 200


def test_the_balancer_speaks_tls_and_hands_keys_through(front: FrontDoor) -> None:
    front.stack.files = ["compose.yaml", "scale.yaml"]
    front.up("--scale", "inference=2")
    (balancer,) = front.stack.containers("balancer")
    assert [front.ask(key=key)[0] for key in (None, "caller")] == [401, 200]
    assert [front.ask("/metrics", key)[0] for key in ("caller", "prometheus")] == [403, 200]
    known, front.context = front.context, front.authority.client()
    assert front.ask(key="caller")[0] == 0
    front.context = known
    assert [front.speaks(version) for version in ("-tls1_2", "-tls1_1")] == [True, False]
    front.renew(balancer)
    for inference in front.stack.containers("inference"):
        run("docker", "exec", inference, "test", "!", "-e", "/run/tls/tls.key")
    # Its watch of the certificates does not hold it up.
    front.stack.run("stop", "balancer")
    assert inspected(balancer)["State"]["ExitCode"] == 0  # type: ignore[index]
