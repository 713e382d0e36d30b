"""What a real Triton counts of a model that is alive, and refuses the smallest question."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from tests.engine.triton_server import TritonServer, wait_until
from transformer_serving.engine.controller.triton.dead_models import DeadModels
from transformer_serving.engine.controller.triton.streams import Streams
from transformer_serving.engine.model_config import TensorConfig, build_config, to_text

NAME = "sixteen"
# As an engine that was built for texts of 16 tokens and more.
_MODEL = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            return [self._answer(one) for one in requests]

        def _answer(self, request):
            ids = pb_utils.get_input_tensor_by_name(request, "input_ids").as_numpy()
            if ids.shape[-1] < 16:
                raise pb_utils.TritonModelException("unexpected shape, the least is 16")
            return pb_utils.InferenceResponse([pb_utils.Tensor("output", ids)])
"""


@pytest.fixture
def sixteen(triton_server: TritonServer) -> Iterator[triton.InferenceServerClient]:
    """A client of a Triton that has the model."""
    folder = triton_server.repository / NAME
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text(textwrap.dedent(_MODEL))
    config = build_config(
        name=NAME, backend="python", max_batch_size=8,
        inputs=[TensorConfig("input_ids", "INT32", (-1,))],
        outputs=[TensorConfig("output", "INT32", (-1,))],
    )  # fmt: skip
    (folder / "config.pbtxt").write_text(to_text(config))
    with closing(triton_server.client()) as client:
        client.load_model(NAME)
        yield client
        client.unload_model(NAME)


def ask(client: triton.InferenceServerClient, tokens: int) -> None:
    value = triton.InferInput("input_ids", [1, tokens], "INT32")
    value.set_data_from_numpy(np.zeros((1, tokens), np.int32))
    client.infer(NAME, [value])


def failures(client: triton.InferenceServerClient) -> int:
    [row] = client.get_inference_statistics(NAME).model_stats
    return int(row.inference_stats.fail.count)


def test_the_question_to_a_suspect_is_no_new_suspicion(
    triton_server: TritonServer, sixteen: triton.InferenceServerClient
) -> None:
    dead = DeadModels(sixteen, Streams(triton_server.grpc))
    ask(sixteen, 16)
    for before in (0, 2):
        with pytest.raises(InferenceServerException, match="the least is 16"):
            ask(sixteen, 1)
        wait_until(lambda: failures(sixteen) == before + 1, 60)  # noqa: B023
        assert dead.unload(lambda *_: False) == []
        # That one, and no other until somebody's request fails again.
        wait_until(lambda: failures(sixteen) == before + 2, 60)  # noqa: B023
        for _ in range(5):
            assert dead.unload(lambda *_: False) == []
            ask(sixteen, 16)
        assert failures(sixteen) == before + 2
