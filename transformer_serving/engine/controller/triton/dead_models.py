"""Finds models whose backend process died: Triton 2.51 does not restart it, calls the model ready,
and fails every request for it; of one in several processes, every request that falls to the dead
one, after a second. Unloaded, it is one that Triton lost, and is loaded again. Only a whole model
can be unloaded: a version that died beside the one that serves is left to the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tritonclient.grpc as triton_grpc
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

from transformer_serving.contract.generation import Options, Sampling
from transformer_serving.engine.controller.triton.backend_processes import BackendProcesses
from transformer_serving.engine.controller.triton.streams import Streams
from transformer_serving.engine.model_config import instances_of
from transformer_serving.engine.proof.greedy import Asked

_ASK_S = 5.0
DEAD = "is not healthy"
_ONE_TOKEN = Asked((0,), Options(1, (), Sampling(False, 1.0, 1.0, 0, 1.0), 0), text="1")


class DeadModels:
    """Looks at every model that failed a request since the last look; one call when none did."""

    def __init__(
        self,
        client: triton_grpc.InferenceServerClient,
        streams: Streams,
        processes: BackendProcesses,
    ) -> None:
        self._client = client
        self._streams = streams
        self._processes = processes
        self._failed: dict[tuple[str, str], int] = {}

    def unload(self, is_left: Callable[[str, int], bool]) -> list[str]:
        """Unload the dead ones but for those versions; their names.

        Raises InferenceServerException without a Triton.
        """
        dead = []
        for model, version in list(self._suspects()):
            if self._is_dead(model, version) and not is_left(model, int(version)):
                # At once: while others are asked it may have been loaded again.
                self._client.unload_model(model, client_timeout=_ASK_S)
                dead.append(model)
        return dead

    def _suspects(self) -> Iterator[tuple[str, str]]:
        statistics = self._client.get_inference_statistics(client_timeout=_ASK_S)
        before, self._failed = self._failed, {}
        for row in statistics.model_stats:
            failed = int(row.inference_stats.fail.count)
            self._failed[row.name, row.version] = failed
            if failed > before.get((row.name, row.version), 0):
                yield row.name, row.version

    def _is_dead(self, model: str, version: str) -> bool:
        """Ask the smallest question the model takes: only a dead backend answers in this way."""
        try:
            config = self._client.get_model_config(model, version, client_timeout=_ASK_S).config
            # Triton gives the question to one of its processes, mostly to a living one.
            lacking = self._lacks_one(config, version)
            self._ask(config, version)
            # Asked after the count: of a version that is being unloaded they end one by one.
            ready = self._client.is_model_ready(model, version, client_timeout=_ASK_S)
        except InferenceServerException as error:
            return DEAD in str(error.message())
        return lacking and bool(ready)

    def _ask(self, config: Any, version: str) -> None:
        """A model may refuse it, which Triton counts as well: that is no reason to ask again.

        What a decoupled one refuses is an answer to Triton, and no failure.
        """
        decoupled = config.model_transaction_policy.decoupled
        try:
            if decoupled:
                self._streams.generate(config, version, [_ONE_TOKEN], _ASK_S)
            else:
                self._client.infer(
                    config.name, _smallest(config), model_version=version, client_timeout=_ASK_S
                )
        except InferenceServerException as error:
            if DEAD in str(error.message()):
                raise
            if not decoupled:
                self._failed[config.name, version] += 1

    def _lacks_one(self, config: Any, version: str) -> bool:
        """Some of its processes live, and fewer than it has instances.

        Where none is seen it has none, as with a native backend, or they are out of sight.
        """
        living = list(self._processes.look()[0].values()).count((config.name, version))
        return 0 < living < instances_of(config)


def _smallest(config: Any) -> list[triton_grpc.InferInput]:
    """Zeros, or empty strings, of size one wherever the size is free."""
    batch = [1] if config.max_batch_size else []
    inputs = []
    for tensor in config.input:
        shape = [*batch, *(max(size, 1) for size in tensor.dims)]
        kind = config.input[0].DESCRIPTOR.fields_by_name["data_type"].enum_type
        name = kind.values_by_number[tensor.data_type].name.removeprefix("TYPE_")
        dtype = "BYTES" if name == "STRING" else name
        value = triton_grpc.InferInput(tensor.name, shape, dtype)
        value.set_data_from_numpy(np.zeros(shape, triton_to_np_dtype(dtype)))
        inputs.append(value)
    return inputs
