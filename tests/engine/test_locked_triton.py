"""A Triton whose control is locked, as between containers, and one that listens on sockets."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from tests.engine.serving import preprocess_of, serving, write_bundle
from tests.engine.test_service import answers
from tests.engine.triton_server import TritonServer, running_triton, wait_until
from tests.free_ports import free_ports
from tests.stack.intruder import grpc_calls, http_calls, send
from transformer_serving.engine.controller.triton.backend_processes import BackendProcesses
from transformer_serving.engine.controller.triton.log import TritonLog
from transformer_serving.engine.controller.triton.server import Triton, TritonAway
from transformer_serving.engine.errors import EngineError
from transformer_serving.engine.model_config import TensorConfig, build_config, to_text
from transformer_serving.engine.triton_process import KEY_HEADER, LOOPBACK, TritonAddresses

KEY = "what the container made"
OPEN = ("/v2", "/v2/health/live", "/v2/health/ready")


def none_is_left(*_: object) -> bool:
    return False


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    with running_triton(tmp_path_factory.mktemp("locked"), key=KEY) as server:
        yield server


def test_the_controller_with_the_key_serves_and_updates(
    locked: TritonServer, tmp_path: Path
) -> None:
    with serving(locked, tmp_path) as one:
        for version in (1, 2):
            folder = write_bundle(tmp_path / str(version), version, scale=version)
            one.control_plane.add("held", folder, preprocess_of(version))
            one.wait("held", ready=True, versions_loaded=[version])
            # Who calls it needs no key.
            assert answers(locked, "held", version, version)
        assert one.triton is not None
        assert one.triton.unload_dead(none_is_left) == []
        one.control_plane.remove("held")
        one.wait_gone("held")


def test_without_the_key_the_cause_is_said(locked: TritonServer) -> None:
    for key in (None, "another"):
        log, processes = TritonLog(locked.log), BackendProcesses(locked.repository)
        controller = Triton(locked.grpc, log, processes, key)
        assert controller.version()
        with pytest.raises(TritonAway, match="locked with a key that is not in TRANSFORMER_"):
            controller.loaded()
        with pytest.raises(TritonAway, match="locked with a key"):
            controller.load("any", 1)
        with pytest.raises(TritonAway, match="locked with a key"):
            controller.unload_dead(none_is_left)
        controller.close()


def test_grpc_takes_control_only_beside_the_key(locked: TritonServer, tmp_path: Path) -> None:
    client = locked.client()
    for method, arguments in grpc_calls(str(tmp_path / "ran")).items():
        with pytest.raises(InferenceServerException, match="protocol is restricted"):
            getattr(client, method)(**arguments)
    assert client.get_log_settings(headers={KEY_HEADER: KEY}) is not None
    client.close()
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("headers", ["", f"nobody:: {KEY}\r\n", f"{KEY_HEADER}: {KEY}\r\n"])
def test_http_takes_no_control_from_anybody(
    locked: TritonServer, headers: str, tmp_path: Path
) -> None:
    address = (LOOPBACK, locked.addresses.http_port)
    for method, path, body in http_calls(str(tmp_path / "ran")):
        assert send(address, method, path, body, f"Host: t\r\n{headers}")[0] == 403, path
    for path in OPEN:
        assert send(address, "GET", path, b"", "Host: t\r\n")[0] == 200
    assert not (tmp_path / "ran").exists()


def test_one_on_sockets_is_reached_and_comes_back_over_those_that_it_left(
    tmp_path: Path,
) -> None:
    with tempfile.TemporaryDirectory(prefix="t-") as short:
        (port,) = free_ports(1)
        addresses = TritonAddresses(
            host=f"unix:{short}/triton", metrics_host=LOOPBACK, metrics_port=port
        )
        with running_triton(tmp_path, addresses=addresses) as server:
            both = {"triton:8000", "triton:8001"}
            wait_until(lambda: {path.name for path in Path(short).iterdir()} == both, 30)
            server.kill()
            server.start()
            with triton.InferenceServerClient(addresses.grpc) as client:
                assert client.is_server_ready()
            path = addresses.http.removeprefix("unix:")
            ready = "/v2/health/ready"
            wait_until(lambda: send(path, "GET", ready, b"", "Host: t\r\n")[0] == 200, 30)


_SLOW = """
import time
from pathlib import Path

class TritonPythonModel:
    def initialize(self, args):
        until = time.monotonic() + 60
        while not Path(args["model_repository"], "go").exists() and time.monotonic() < until:
            time.sleep(0.05)
"""


def test_what_is_being_loaded_is_unloaded_after_that(locked: TritonServer) -> None:
    """As after a controller that was ended in the middle: it would be there, and nobody's."""
    folder = locked.repository / "slow"
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text(_SLOW)
    config = build_config(
        name="slow", backend="python", max_batch_size=8, instance_count=1,
        inputs=[TensorConfig("input_ids", "INT32", (-1,))],
        outputs=[TensorConfig("output", "INT32", (-1,))],
    )  # fmt: skip
    (folder / "config.pbtxt").write_text(to_text(config))
    log, processes = TritonLog(locked.log), BackendProcesses(locked.repository)
    one = Triton(locked.grpc, log, processes, KEY)
    with closing(one), ThreadPoolExecutor(2) as pool:
        load = pool.submit(one.load, "slow", 1)
        wait_until(lambda: one._state("slow") == "LOADING", 60)
        with pytest.raises(EngineError, match="still loads 'slow'; it is unloaded after that"):
            one.unload("slow")
        wholly = pool.submit(one.unload_wholly, "slow")
        (folder / "go").touch()
        wholly.result(60)
        # It may have been unloaded again before it was looked at.
        load.exception(60)
        assert one._state("slow") == ""
        one.unload("slow")
