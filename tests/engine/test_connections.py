"""A controller with a proxy in its environment: Triton, which lies beside it, is asked without."""

from __future__ import annotations

import pytest

from tests.engine.serving import ListedEndpoints
from tests.engine.streams import options
from tests.engine.triton_server import TritonServer
from tests.proxies import proxy_of_the_environment
from transformer_serving.engine.controller.figures import TritonFigures
from transformer_serving.engine.controller.metrics import MetricsPage
from transformer_serving.engine.controller.triton.backend_processes import BackendProcesses
from transformer_serving.engine.controller.triton.log import TritonLog
from transformer_serving.engine.controller.triton.server import RequestFailed, Triton, TritonAway
from transformer_serving.engine.model_config import TensorConfig, build_config
from transformer_serving.engine.proof.greedy import Asked


def test_triton_is_asked_without_a_proxy(
    triton_server: TritonServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = triton_server
    nobody = build_config(
        name="nobody", backend="openvino_generate", max_batch_size=0,
        inputs=[TensorConfig("input_ids", "INT32", (-1,))],
        outputs=[TensorConfig("token_ids", "INT32", (-1,))],
    )  # fmt: skip
    with proxy_of_the_environment(monkeypatch) as came:
        triton = Triton(server.grpc, TritonLog(server.log), BackendProcesses(server.repository))
        try:
            assert triton.version()
            # A stream has a connection of its own; that Triton has no such model it says itself.
            with pytest.raises((RequestFailed, TritonAway)):
                triton.generate(nobody, 1, [Asked((1,), options(1))])
        finally:
            triton.close()
    assert came == []


def test_tritons_page_is_read_without_a_proxy(
    triton_server: TritonServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"http://{triton_server.addresses.metrics}/metrics"
    plane = ListedEndpoints()
    with proxy_of_the_environment(monkeypatch) as came:
        assert "# TYPE nv_" in MetricsPage(url).text()
        TritonFigures(url, lambda: ())._report(url, plane)
    assert "# TYPE nv_" in plane.reports[0]
    assert came == []
