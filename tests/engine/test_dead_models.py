"""A real Triton: what it counts of a model that is alive and refuses the smallest question, and one
process of a model that died beside a living one.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from tests.engine.streams import Caller, options
from tests.engine.triton_server import TritonServer, wait_until
from transformer_serving.engine.controller.triton import backend_processes
from transformer_serving.engine.controller.triton.backend_processes import BackendProcesses
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


TALKER = "talker"
# As a language model whose line is full: it refuses by its sender, and fails nothing but the prompt
# of a 1.
_TALKER = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            for one in requests:
                ids = np.from_dlpack(pb_utils.get_input_tensor_by_name(one, "input_ids"))
                if ids[0] == 1:
                    raise ValueError("of this one")
                error = pb_utils.TritonError("UNAVAILABLE: 3 calls wait, and 3 may")
                one.get_response_sender().send(
                    pb_utils.InferenceResponse(output_tensors=[], error=error),
                    flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL,
                )
"""


@contextmanager
def loaded(
    server: TritonServer, name: str, source: str, **config: Any
) -> Iterator[triton.InferenceServerClient]:
    """A client of the Triton while it has the model."""
    folder = server.repository / name
    (folder / "1").mkdir(parents=True, exist_ok=True)
    (folder / "1" / "model.py").write_text(textwrap.dedent(source))
    written = build_config(name=name, backend="python", **config)
    (folder / "config.pbtxt").write_text(to_text(written))
    with closing(server.client()) as client:
        client.load_model(name)
        yield client
        client.unload_model(name)


@pytest.fixture
def sixteen(
    triton_server: TritonServer, request: pytest.FixtureRequest
) -> Iterator[triton.InferenceServerClient]:
    """A client of a Triton that has the model, in one process or as many as the parameter says."""
    with loaded(
        triton_server, NAME, _MODEL,
        max_batch_size=8, instance_count=getattr(request, "param", 1),
        inputs=[TensorConfig("input_ids", "INT32", (-1,))],
        outputs=[TensorConfig("output", "INT32", (-1,))],
    ) as client:  # fmt: skip
        yield client


@pytest.fixture
def talker(triton_server: TritonServer) -> Iterator[triton.InferenceServerClient]:
    """A client of a Triton that has the decoupled model."""
    with loaded(
        triton_server, TALKER, _TALKER,
        max_batch_size=0, decoupled=True,
        inputs=[
            TensorConfig("input_ids", "INT32", (-1,)), TensorConfig("options", "UINT8", (-1,)),
        ],
        outputs=[TensorConfig("token_ids", "INT32", (-1,))],
    ) as client:  # fmt: skip
        yield client


def ask(client: triton.InferenceServerClient, tokens: int) -> None:
    value = triton.InferInput("input_ids", [1, tokens], "INT32")
    value.set_data_from_numpy(np.zeros((1, tokens), np.int32))
    client.infer(NAME, [value])


def failures(client: triton.InferenceServerClient, model: str = NAME) -> int:
    [row] = client.get_inference_statistics(model).model_stats
    return int(row.inference_stats.fail.count)


def dead_models(server: TritonServer, client: triton.InferenceServerClient) -> DeadModels:
    return DeadModels(client, Streams(server.grpc), BackendProcesses(server.repository))


def test_the_question_to_a_suspect_is_no_new_suspicion(
    triton_server: TritonServer, sixteen: triton.InferenceServerClient
) -> None:
    dead = dead_models(triton_server, sixteen)
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


def test_what_a_decoupled_model_refuses_hides_no_failure_behind_it(
    triton_server: TritonServer, talker: triton.InferenceServerClient
) -> None:
    """It is none to Triton: the next one is looked at, be it the only one of a dead process."""
    dead = dead_models(triton_server, talker)
    with pytest.raises(InferenceServerException):
        Caller(triton_server, TALKER, [1], options(1)).end()
    wait_until(lambda: failures(talker, TALKER) == 1, 60)
    assert dead.unload(lambda *_: False) == []
    processes = BackendProcesses(triton_server.repository)
    [victim] = [pid for pid, one in processes.look()[0].items() if one == (TALKER, "1")]
    psutil.Process(victim).kill()
    wait_until(lambda: victim in processes.look()[1], 60)
    with pytest.raises(InferenceServerException, match="is not healthy"):
        Caller(triton_server, TALKER, [2], options(1)).end()
    wait_until(lambda: failures(talker, TALKER) == 2, 60)
    assert dead.unload(lambda *_: False) == [TALKER]
    talker.load_model(TALKER)


@pytest.mark.parametrize("sixteen", [2], indirect=True)
def test_a_process_that_died_beside_a_living_one_is_found(
    triton_server: TritonServer, sixteen: triton.InferenceServerClient
) -> None:
    """The two are asked in turns: after a request that failed, the living one gets the question."""
    processes = BackendProcesses(triton_server.repository)
    dead = dead_models(triton_server, sixteen)

    def pair() -> list[int]:
        return [pid for pid, one in processes.look()[0].items() if one == (NAME, "1")]

    # One of the test before may still be ending.
    wait_until(lambda: len(pair()) == 2, 60)
    assert dead.unload(lambda *_: False) == []
    victim = pair()[0]
    psutil.Process(victim).kill()
    wait_until(lambda: victim in processes.look()[1], 60)
    wait_until(lambda: fails(sixteen), 60)
    assert dead.unload(lambda *_: False) == [NAME]
    sixteen.load_model(NAME)
    for _ in range(4):
        ask(sixteen, 16)
    assert dead.unload(lambda *_: False) == []


def fails(client: triton.InferenceServerClient) -> bool:
    """Whether this request fell to a dead process."""
    try:
        ask(client, 16)
    except InferenceServerException as error:
        return "is not healthy" in str(error)
    return False


def test_processes_that_are_not_ours_to_ask_are_out_of_sight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them less would be one that died."""
    seen = iter([None, psutil.AccessDenied()])

    def version_of(stub: psutil.Process, repository: Path) -> tuple[str, str]:
        if (fault := next(seen)) is not None:
            raise fault
        return "m", "1"

    processes = BackendProcesses(tmp_path)
    monkeypatch.setattr(processes, "_stubs", lambda: iter([psutil.Process()] * 2))
    monkeypatch.setattr(backend_processes, "version_of", version_of)
    assert processes.look() == ({}, frozenset())
