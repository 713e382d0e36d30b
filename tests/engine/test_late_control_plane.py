"""The SDK is imported late, and after what was served last is loaded again."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.engine.serving import ListedEndpoints, Serving, preprocess_of, serving, write_bundle
from tests.engine.test_service import answers
from tests.engine.triton_server import TritonServer, running_triton, wait_until
from transformer_serving.engine.controller.control_plane.served import Served

_NEVER_USED = """
import sys
from transformer_serving.engine.controller.control_plane.late import LateControlPlane
LateControlPlane("0" * 32, "nobody", 0.0, None, None, None).close()
assert "clearml" not in sys.modules
"""


class Asked(ListedEndpoints):
    """Notes whether Triton had its model when the endpoints were asked for."""

    def __init__(self, server: TritonServer) -> None:
        super().__init__()
        self._server = server
        self.loaded: list[bool] = []

    def endpoints(self) -> Sequence[Served]:
        with self._server.client() as client:
            ready = client.is_server_live() and client.is_model_ready("a", "101")
        self.loaded.append(bool(ready))
        return super().endpoints()


def test_a_controller_that_leaves_at_once_imports_no_sdk() -> None:
    subprocess.run([sys.executable, "-c", _NEVER_USED], check=True, timeout=60)


def test_what_was_served_is_loaded_before_anything_is_asked(tmp_path: Path) -> None:
    with running_triton(tmp_path / "t") as server:
        plane = Asked(server)
        plane.add("a", write_bundle(tmp_path / "a", 101), preprocess_of(101))
        with serving(server, tmp_path, control_plane=plane) as one:
            one.wait("a", 60, ready=True)
            assert plane.loaded[0] is False
        server.kill()
        server.start()
        plane.loaded.clear()
        one = Serving(server, tmp_path, control_plane=plane)
        one.start()
        try:
            wait_until(lambda: bool(plane.loaded), 60)
            assert plane.loaded[0] is True
            assert answers(server, "a", 101, 1.0)
        finally:
            one.finish()
