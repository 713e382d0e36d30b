"""Triton over gRPC: load, unload, what is ready. One instance is used from several threads."""

from __future__ import annotations

import re
from typing import Any

import tritonclient.grpc as triton_grpc
from tritonclient.utils import InferenceServerException

from engine.controller.dead_models import DeadModels
from engine.controller.stuck_loads import StuckLoads
from engine.controller.triton_log import TritonLog
from engine.errors import EngineError

_ASK_S = 5.0
# A TensorRT engine of a large model takes minutes to deserialize and warm up.
_LOAD_S = 1800.0
_AWAY = ("StatusCode.UNAVAILABLE", "StatusCode.DEADLINE_EXCEEDED", "StatusCode.CANCELLED")
_CHANNEL = [
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.max_receive_message_length", -1),
]
_DIED = (
    "its backend process died while it loaded the model, as without memory; Triton was restarted"
)
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


class Triton:
    """The one Triton of this controller."""

    def __init__(self, address: str, log: TritonLog, loads: StuckLoads) -> None:
        self._client = triton_grpc.InferenceServerClient(address, channel_args=_CHANNEL)
        self._log = log
        self._loads = loads
        self._dead = DeadModels(self._client)

    def version(self) -> str:
        return str(self._ask("get_server_metadata").version)

    def loaded(self) -> dict[str, frozenset[int]]:
        """The ready versions of every model that has one. Raises TritonAway."""
        ready: dict[str, set[int]] = {}
        for row in self._ask("get_model_repository_index").models:
            if row.state == "READY" and row.version.isdigit():
                ready.setdefault(row.name, set()).add(int(row.version))
        return {model: frozenset(versions) for model, versions in ready.items()}

    def unload_dead(self) -> list[str]:
        """Unload the models whose backend process died; their names. Raises TritonAway."""
        try:
            return self._dead.unload()
        except InferenceServerException as error:
            if error.status() in _AWAY:
                raise TritonAway("Triton does not answer") from None
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
            if error.status() in _AWAY:
                raise TritonAway("Triton went away while it loaded the model") from None
            raise _load_failed(error, self._log.cause(mark, model)) from None
        if not self._ask("is_model_ready", model, str(version)):
            raise LoadFailed(f"Triton loaded the model, but version {version} is not ready")

    def unload(self, model: str) -> None:
        """Unload all versions; nothing to do for a model that has none."""
        if model in self.loaded():
            self._ask("unload_model", model)

    def close(self) -> None:
        self._client.close()

    def _ask(self, call: str, *arguments: str) -> Any:
        try:
            return getattr(self._client, call)(*arguments, client_timeout=_ASK_S)
        except InferenceServerException as error:
            if error.status() in _AWAY:
                raise TritonAway("Triton does not answer") from None
            raise EngineError(f"Triton refused {call}: {_first_paragraph(error)}") from None


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
    text = str(error.message() or error).split("\n\nAt:")[0]
    return " ".join(text.split())
