"""`adopt` at a ClearML server that is none, is ill, or says nothing: said soon, with what to do."""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import partialmethod
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.doctor.conftest import answering
from transformer_serving.desk.clearml_tools.api import ClearmlApi
from transformer_serving.desk.cli import main
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.own_engine.adoption import served_model

# The control plane that they take the place of imports the host, and that imports torch.
pytestmark = pytest.mark.slow

Adopt = Callable[[str], str]
PLANE = "transformer_serving.engine.controller.control_plane.clearml_edge.ClearmlControlPlane"


@pytest.fixture
def adopt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Adopt:
    """What the command says at the server of an address; the SDK is not asked."""
    monkeypatch.setattr(PLANE, lambda *_: pytest.fail("the SDK asked, for minutes"))
    monkeypatch.setattr(ClearmlApi, "wait", partialmethod(ClearmlApi.wait, 0.1))

    def said(address: str) -> str:
        values = {
            "API_HOST": address, "API_ACCESS_KEY": "k", "API_SECRET_KEY": "s",
            "SERVING_TASK_ID": "0" * 32,
        }  # fmt: skip
        for name, value in values.items():
            monkeypatch.setenv(f"CLEARML_{name}", value)
        done = CliRunner().invoke(
            main,
            ["adopt", "x", "--tokenizer", str(tmp_path), "--task", "text-classification", "--text",
             "rain", "--output", str(tmp_path / "own"), "--state", str(tmp_path / "state")],
        )  # fmt: skip
        assert done.exit_code == 1, done.output
        return done.output

    return said


def test_a_web_page_is_no_api(adopt: Adopt) -> None:
    with answering(lambda path: (200, b"<!doctype html><title>ClearML</title>", {})) as web:
        said = adopt(web)
    assert f"auth.login: {web} does not answer as the ClearML API; set CLEARML_API_HOST" in said


def test_a_proxy_without_the_api_is_named_by_its_status(adopt: Adopt) -> None:
    with answering(lambda path: (503, b"no server", {})) as proxy:
        said = adopt(proxy)
    assert f"auth.login was refused by {proxy} with 503" in said
    assert "CLEARML_API_ACCESS_KEY" not in said


def test_a_server_that_says_nothing(adopt: Adopt) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        said = adopt(f"http://127.0.0.1:{listener.getsockname()[1]}")
    assert "did not answer within" in said


def test_a_login_of_clearmls_own_file_is_the_sdks_to_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where CLEARML_* has no login, clearml.conf may."""
    for name in ("API_HOST", "API_ACCESS_KEY", "API_SECRET_KEY"):
        monkeypatch.delenv(f"CLEARML_{name}", raising=False)
    monkeypatch.setenv("CLEARML_SERVING_TASK_ID", "0" * 32)

    class Plane:
        def __init__(self, serving: str) -> None:
            self.serving = serving

        def endpoints(self) -> tuple[()]:
            return ()

    monkeypatch.setattr(PLANE, Plane)
    with (
        pytest.raises(Failure, match="no endpoint 'x' of engine triton"),
        served_model("x", tmp_path / "state"),
    ):
        pytest.fail("there is none")
