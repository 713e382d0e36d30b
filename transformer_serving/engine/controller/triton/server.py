"""Triton over gRPC: load, unload, what is ready. One instance is used from several threads.

Tested by tests/engine/test_service.py and tests/engine/test_locked_triton.py.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tritonclient.grpc as triton_grpc
from numpy.typing import NDArray
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

from transformer_serving.contract.error_line import one_line
from transformer_serving.engine.controller.triton.backend_processes import BackendProcesses
from transformer_serving.engine.controller.triton.connections import CHANNEL
from transformer_serving.engine.controller.triton.dead_models import DEAD, DeadModels
from transformer_serving.engine.controller.triton.log import TritonLog
from transformer_serving.engine.controller.triton.streams import Streams
from transformer_serving.engine.controller.triton.stuck_loads import StuckLoads
from transformer_serving.engine.errors import EngineError
from transformer_serving.engine.model_config import ModelConfig, type_name
from transformer_serving.engine.proof.greedy import Asked, Continued
from transformer_serving.engine.triton_process import KEY_HEADER, KEY_VARIABLE

_ASK_S = 5.0
# One request of a proof: the largest batch of a large model on a slow processor.
_INFER_S = 300.0
# A model's process ends 1 to 2 s after the call that unloads it has returned.
_UNLOADED_S = 30.0
_LOOK_S = 0.02
# A TensorRT engine of a large model takes minutes to deserialize and warm up.
_LOAD_S = 1800.0
_AWAY = ("StatusCode.UNAVAILABLE", "StatusCode.DEADLINE_EXCEEDED", "StatusCode.CANCELLED")
_PRESENT = ("READY", "LOADING", "UNLOADING")
_UNKNOWN = "StatusCode.NOT_FOUND"
_DIED = (
    "its backend process died while it loaded the model, as without memory; Triton was restarted"
)
# Triton says so with UNAVAILABLE, as if it were away.
_LOCKED = "protocol is restricted"
_PREFIX = re.compile(r"^load failed for model '[^']*': ")
_STATE = re.compile(r"version (\d+) is at UNAVAILABLE state: ")


class TritonAway(EngineError):
    """Triton does not answer."""


class BackendDied(EngineError):
    """The backend process died while it loaded the model; Triton had to be ended for it."""


class LoadFailed(EngineError):
    """Triton refused a model; `versions` are those that could not be loaded, where it says so."""

    def __init__(self, reason: str, versions: frozenset[int] = frozenset()) -> None:
        super().__init__(reason)
        self.versions = versions


class RequestFailed(EngineError):
    """A model refused a request, or failed on it."""


class Triton:
    """The one Triton of this controller; `key` opens its control where that is locked."""

    def __init__(
        self,
        address: str,
        log: TritonLog,
        processes: BackendProcesses,
        key: str | None = None,
    ) -> None:
        self._client = triton_grpc.InferenceServerClient(address, channel_args=CHANNEL)
        if key is not None:
            self._client.register_plugin(_Key(key))
        self._log = log
        self._processes = processes
        self._loads = StuckLoads(processes)
        self._streams = Streams(address)
        self._dead = DeadModels(self._client, self._streams, processes)

    def version(self) -> str:
        return str(self._ask("get_server_metadata").version)

    def loaded(self) -> dict[str, frozenset[int]]:
        """The ready versions of every model that has one. Raises TritonAway."""
        ready: dict[str, set[int]] = {}
        for row in self._ask("get_model_repository_index").models:
            if row.state == "READY" and row.version.isdigit():
                ready.setdefault(row.name, set()).add(int(row.version))
        return {model: frozenset(versions) for model, versions in ready.items()}

    def unload_dead(self, is_left: Callable[[str, int], bool]) -> list[str]:
        """Unload the models whose backend process died, but for the versions that are left.

        Their names. Raises TritonAway.
        """
        try:
            return self._dead.unload(is_left)
        except InferenceServerException as error:
            if away := _away(error, "Triton does not answer"):
                raise away from None
            return []

    def end_stuck_loads(self) -> list[str]:
        """End the Triton in which a load can never finish; the models of such loads."""
        return self._loads.end()

    def load(self, model: str, version: int) -> None:
        """Load by the folder's config.pbtxt; returns when exactly `version` is ready.

        Raises LoadFailed with the cause, BackendDied, TritonAway when Triton went away meanwhile.
        """
        mark = self._log.mark()
        try:
            with self._loads.watched(model) as load:
                self._client.load_model(model, client_timeout=_LOAD_S)
        except InferenceServerException as error:
            if load.died:
                raise BackendDied(_DIED) from None
            if away := _away(error, "Triton went away while it loaded the model"):
                raise away from None
            raise _load_failed(error, self._log.cause(mark, model)) from None
        self._processes.close_areas()
        if not self._ask("is_model_ready", model, str(version)):
            raise LoadFailed(f"Triton loaded the model, but version {version} is not ready")

    def unload(self, model: str) -> None:
        """Unload all versions; nothing to do for a model that has none.

        Raises EngineError for one that is being loaded, as by a controller that was ended in the
        middle: it would be there, and nobody's, once that is done.
        """
        if model in self.loaded():
            self._ask("unload_model", model)
        elif self._state(model) == "LOADING":
            raise EngineError(f"Triton still loads '{model}'; it is unloaded after that")

    def unload_wholly(self, model: str) -> None:
        """Unload, and return when the model's memory is free again; one that is being loaded, once
        it is there.

        Raises EngineError for a model that does not go.
        """
        deadline, is_told = time.monotonic() + _UNLOADED_S, False
        while state := self._state(model):
            if state == "READY" and not is_told:
                self._ask("unload_model", model)
                is_told = True
            if time.monotonic() > deadline:
                raise EngineError(
                    f"Triton did not unload '{model}' within {_UNLOADED_S:.0f} s; it is told "
                    "again, and a restart of Triton ends one that never goes"
                )
            time.sleep(_LOOK_S)

    def infer(
        self,
        config: ModelConfig,
        version: int,
        tensors: Mapping[str, NDArray[Any]],
        wanted: Sequence[str],
    ) -> dict[str, NDArray[Any]]:
        """The outputs of that version of the configuration's model, inputs cast to its types.

        Raises RequestFailed, TritonAway.
        """
        types = {tensor.name: type_name(tensor.data_type) for tensor in config.input}
        inputs = []
        for name, array in tensors.items():
            value = triton_grpc.InferInput(name, array.shape, types[name])
            value.set_data_from_numpy(array.astype(triton_to_np_dtype(types[name])))
            inputs.append(value)
        try:
            answer = self._client.infer(
                config.name,
                inputs,
                model_version=str(version),
                outputs=[triton_grpc.InferRequestedOutput(name) for name in wanted],
                client_timeout=_INFER_S,
            )
        except InferenceServerException as error:
            raise _not_answered(error) from None
        return {name: answer.as_numpy(name) for name in wanted}

    def generate(
        self, config: ModelConfig, version: int, asked: Sequence[Asked]
    ) -> list[Continued]:
        """What the configuration's language model continues with, all calls at one time.

        Raises RequestFailed, TritonAway.
        """
        try:
            return self._streams.generate(config, str(version), asked, _INFER_S)
        except InferenceServerException as error:
            raise _not_answered(error) from None

    def close(self) -> None:
        self._client.close()

    def _state(self, model: str) -> str:
        """Of any of its versions that is still there; '' when none is."""
        rows = self._ask("get_model_repository_index").models
        states = [row.state for row in rows if row.name == model and row.state in _PRESENT]
        return next(iter(states), "")

    def _ask(self, call: str, *arguments: str) -> Any:
        try:
            return getattr(self._client, call)(*arguments, client_timeout=_ASK_S)
        except InferenceServerException as error:
            if away := _away(error, "Triton does not answer"):
                raise away from None
            raise EngineError(f"Triton refused {call}: {_first_paragraph(error)}") from None


class _Key(triton_grpc.InferenceServerClientPlugin):  # type: ignore[misc]
    """Puts the key beside every call."""

    def __init__(self, key: str) -> None:
        self._key = key

    def __call__(self, request: Any) -> None:
        request.headers[KEY_HEADER] = self._key


def _away(error: InferenceServerException, reason: str) -> TritonAway | None:
    """What to raise where Triton did not answer, or wants another key; None for its answers."""
    if error.status() not in _AWAY:
        return None
    if _LOCKED in str(error.message()):
        reason = f"Triton's control is locked with a key that is not in {KEY_VARIABLE}"
    return TritonAway(reason)


def _not_answered(error: InferenceServerException) -> EngineError:
    reason = _first_paragraph(error)
    # A model that is not there any more was lost with its Triton.
    if error.status() in (*_AWAY, _UNKNOWN) and DEAD not in reason:
        return TritonAway("Triton went away while it was asked")
    return RequestFailed(reason)


def _load_failed(error: InferenceServerException, logged: str | None) -> LoadFailed:
    message = _PREFIX.sub("", _first_paragraph(error))
    versions = frozenset(int(number) for number in _STATE.findall(message))
    reason = _STATE.sub("", message).rstrip("; ")
    # A configuration that Triton cannot read is explained in its log only.
    if "failed to poll" in reason and logged:
        reason = logged
    return LoadFailed(reason, versions)


def _first_paragraph(error: InferenceServerException) -> str:
    """The cause; what follows the empty line is a Python traceback."""
    return one_line(str(error.message() or error).split("\n\nAt:")[0])
