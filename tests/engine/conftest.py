"""One Triton for the tests of the backends; tests that kill it start their own."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.control_plane.conftest import clearml_environment, clearml_home, run_sdk, server
from tests.engine.serving import numbers_are_chosen
from tests.engine.triton_server import TritonServer, running_triton

# A server and scripts with the SDK: a module that imported them would have others of its own.
__all__ = ["clearml_environment", "clearml_home", "run_sdk", "server"]


@pytest.fixture(scope="session")
def triton_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    with running_triton(tmp_path_factory.mktemp("triton")) as server:
        yield server


@pytest.fixture(autouse=True)
def _numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests here choose their bundles' numbers, and tell versions apart by them."""
    numbers_are_chosen(monkeypatch)


@pytest.fixture
def signals_given_back() -> Iterator[None]:
    """Those that a container's `run` takes over."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
