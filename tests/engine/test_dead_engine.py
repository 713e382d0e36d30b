"""A language model's engine that can compute nothing any more, in a real Triton: everybody is told,
the process ends, and the controller loads the model again.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tritonclient.utils import InferenceServerException

from tests.engine.streams import Caller, options
from tests.engine.triton_server import TritonServer, running_triton, wait_until
from transformer_serving.contract.generation import Finish
from transformer_serving.engine.controller.triton.backend_processes import BackendProcesses
from transformer_serving.engine.controller.triton.dead_models import DeadModels
from transformer_serving.engine.controller.triton.streams import Streams
from transformer_serving.engine.model_config import TensorConfig, build_config, to_text

pytestmark = pytest.mark.slow
BACKEND = "counting"
# First ids of prompts: see counting_engine.py, which runs in Triton alone.
BAD_STEP, BAD_SECOND, BAD_LAST = 91, 92, 93
_numbers = itertools.count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    """With the backend beside ours, of the same modules."""
    with running_triton(tmp_path_factory.mktemp("counting")) as triton:
        shutil.copytree(triton.backends / "openvino_generate", triton.backends / BACKEND)
        model = Path(__file__).with_name("counting_engine.py")
        shutil.copyfile(model, triton.backends / BACKEND / "model.py")
        yield triton


@pytest.fixture
def model(server: TritonServer) -> str:
    """A model of its own; its name. One sequence runs at a time."""
    config = build_config(
        name=f"counting{next(_numbers)}",
        backend=BACKEND,
        inputs=[
            TensorConfig("input_ids", "INT32", (-1,)), TensorConfig("options", "UINT8", (-1,)),
        ],
        outputs=[
            TensorConfig("token_ids", "INT32", (-1,)), TensorConfig("logprobs", "FP32", (-1,)),
            TensorConfig("state", "INT32", (3,)),
        ],
        max_batch_size=0,
        decoupled=True,
        parameters={
            "vocabulary": "100", "max_positions": "64", "num_kv_blocks": "8", "max_running": "1",
        },
    )  # fmt: skip
    folder = server.repository / config.name
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(to_text(config))
    with closing(server.client()) as client:
        client.load_model(config.name)
    return str(config.name)


def test_an_engine_that_cannot_be_built_again_is_loaded_again(
    server: TritonServer, model: str
) -> None:
    first = Caller(server, model, [BAD_STEP, 5], options(4))
    # Each call has a stream of its own: the others come once this one has the only place.
    assert first.first.wait(60)
    waiting = [Caller(server, model, [at, 5], options(4)) for at in (1, 2)]
    (server.repository / model / "1" / "fails").touch()
    with pytest.raises(InferenceServerException, match="failed in a step"):
        first.end()
    for one in waiting:
        with pytest.raises(InferenceServerException, match="is not healthy"):
            one.end()
    with closing(server.client()) as client:
        dead = DeadModels(client, Streams(server.grpc), BackendProcesses(server.repository))

        def found() -> bool:
            """It is noticed by a call that fails, as of any backend's process that died."""
            with pytest.raises(InferenceServerException, match="is not healthy"):
                Caller(server, model, [1], options(1)).end()
            return dead.unload(lambda *_: False) == [model]

        wait_until(found, 30)
        client.load_model(model)
    again = Caller(server, model, [5], options(3))
    assert again.end() is Finish.LENGTH
    assert again.ids == [6, 7, 8]
    assert "this process ends: MemoryError: no memory" in server.log.read_text()


def test_what_cannot_be_sent_ends_that_call_and_no_other(server: TritonServer, model: str) -> None:
    last = Caller(server, model, [BAD_LAST, 5], options(3))
    with pytest.raises(InferenceServerException, match="INTERNAL: an answer could not be sent"):
        last.end(20)
    middle = Caller(server, model, [BAD_SECOND, 5], options(60))
    assert middle.end(20) is Finish.CANCELLED
    after = Caller(server, model, [5], options(3))
    assert after.end(20) is Finish.LENGTH
    assert after.ids == [6, 7, 8]
    with closing(server.client()) as client:
        client.unload_model(model)
    wait_until(lambda: f"successfully unloaded '{model}'" in server.log.read_text(), 30)
