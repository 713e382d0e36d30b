"""Nobody but the stack reaches what brings code into its Triton."""

from __future__ import annotations

import json
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.engine.text_models import expected
from tests.free_ports import free_port_base
from tests.stack.conftest import Stack
from tests.stack.faults import BODY
from tests.stack.intruder import Found, break_in, code, send, target_of, tcp_ports
from tests.stack.small_bundles import write_small
from transformer_serving.desk.local.leftovers import leftovers
from transformer_serving.desk.local.record import LOOPBACK
from transformer_serving.desk.local.sockets import socket_folder

_FOREIGN = "Host: rebound.example\r\nOrigin: http://foreign.example\r\nContent-Type: text/plain\r\n"


def needs_root() -> None:
    if os.getuid():
        pytest.skip("only root can become another user")


def attacked(stack: Stack) -> tuple[Found, bool]:
    """What user nobody gets, and whether code of theirs ran."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        marker = Path(folder) / "ran"
        target = target_of(stack.state, socket_folder(stack.state), marker)
        # Of one model at least.
        assert target.areas
        found = break_in(target)
        assert found.asked > 20
        return found, marker.exists()


def foreign_load(stack: Stack, marker: Path) -> dict[int, int]:
    """What a browser sends for a foreign page without asking first: text/plain, no credentials.

    The statuses by port, of every port that the stack has.
    """
    body = json.dumps({"parameters": code(marker)}).encode()
    ports = tcp_ports([process.pid for process in leftovers(stack.state)])
    assert ports  # the front door at least
    path = "/v2/repository/models/foreign/load"
    return {port: send((LOOPBACK, port), "POST", path, body, _FOREIGN)[0] for port in ports}


def test_a_web_page_cannot_bring_code_along(plain: Stack, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    answers = foreign_load(plain, marker)
    assert not [port for port, status in answers.items() if 0 < status < 400]
    assert not marker.exists()


def test_another_user_finds_no_way_in(plain: Stack, tmp_path: Path) -> None:
    needs_root()
    plain.run("deploy", str(write_small(tmp_path / "bundle").folder), "--endpoint", "looked-at")
    found, marker = attacked(plain)
    plain.run("remove", "looked-at")
    assert not found.files
    assert not found.answered
    assert not marker


@pytest.fixture(scope="module")
def opened() -> Iterator[Stack]:
    """A stack in a folder where everybody may look, with its inference opened."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        stack = Stack(Path(folder) / "state", free_port_base())
        told = ["--port-base", str(stack.base), "--open-inference", str(stack.base + 4)]
        try:
            stack.run("up", *told)
            bundle = write_small(Path(folder) / "bundle").folder
            stack.run("deploy", str(bundle), "--endpoint", "open")
            yield stack
        finally:
            stack.run("down")


@pytest.mark.long
def test_opened_inference_is_inference_alone(opened: Stack) -> None:
    port = opened.base + 4
    assert opened.parts()["triton"]["port"] == port
    version = opened.rows()["open"]["bundle_version"]
    tensors = [
        {"name": name, "shape": [1, 4], "datatype": "INT32", "data": [row]}
        for name, row in (("input_ids", [2, 4, 5, 3]), ("attention_mask", [1, 1, 1, 1]))
    ]
    body = json.dumps({"inputs": tensors}).encode()
    path = f"/v2/models/open/versions/{version}/infer"
    status, answer = send((LOOPBACK, port), "POST", path, body, "Host: t\r\n")
    assert status == 200
    wanted = expected(np.array([[2, 4, 5, 3]]), np.ones((1, 4), int))
    assert np.allclose(json.loads(answer)["outputs"][0]["data"], wanted[0], atol=1e-4)
    open_ones = [row["address"] for row in opened.json("status")["open_tritons"]]
    assert f"{LOOPBACK}:{port}" not in open_ones
    assert opened.post("open", BODY)[0] == 200


@pytest.mark.long
def test_another_user_gets_no_further_where_inference_is_opened(opened: Stack) -> None:
    needs_root()
    found, marker = attacked(opened)
    assert found.keys
    assert not found.files
    assert not found.answered
    assert not marker


@pytest.mark.long
def test_the_state_folder_is_this_users_alone(opened: Stack) -> None:
    assert stat.S_IMODE(opened.state.stat().st_mode) == 0o700
    secret = (opened.state / "stack.json", opened.state / "supervisord.conf")
    assert [stat.S_IMODE(path.stat().st_mode) for path in secret] == [0o600, 0o600]
    assert stat.S_IMODE(socket_folder(opened.state).stat().st_mode) == 0o700
