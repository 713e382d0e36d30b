"""One Triton for the tests of the backends; tests that kill it start their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engine.triton_server import TritonServer, running_triton


@pytest.fixture(scope="session")
def triton_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    with running_triton(tmp_path_factory.mktemp("triton")) as server:
        yield server
