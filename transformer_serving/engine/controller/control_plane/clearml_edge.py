"""The control plane through the ClearML SDK and clearml-serving's own reader of serving tasks.

Tested by tests/engine/test_clearml.py and tests/engine/test_clearml_edge.py.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from clearml import Task
from clearml.backend_api.services import models as model_calls, tasks as task_calls
from clearml.backend_api.session import Session
from clearml.backend_api.session.session import LoginError
from clearml.config import ConfigWrapper

from transformer_serving.contract.naming import triton_model_name
from transformer_serving.contract.worker.hidden_frameworks import hidden_frameworks
from transformer_serving.contract.worker.parsed_sections import parse_sections_once
from transformer_serving.contract.worker.sdk_defaults import parse_defaults_without_comments
from transformer_serving.contract.worker.sdk_patience import (
    login_refusal,
    raise_here,
    refusal,
    wait_between_tries,
)
from transformer_serving.contract.worker.sdk_schemas import check_schemas_once
from transformer_serving.engine.controller.control_plane import serving_configuration
from transformer_serving.engine.controller.control_plane.gone_tasks import GoneTasks
from transformer_serving.engine.controller.control_plane.lost_adds import LostAdds
from transformer_serving.engine.controller.control_plane.problems import found_problems
from transformer_serving.engine.controller.control_plane.served import Problem, Served
from transformer_serving.engine.controller.control_plane.verification import Refused
from transformer_serving.engine.controller.figures import read_figures
from transformer_serving.engine.controller.files.local_copy import LocalCopy
from transformer_serving.engine.controller.files.model_cache import ModelCache
from transformer_serving.engine.controller.files.room import Room
from transformer_serving.engine.controller.files.storage import (
    clear_copies,
    fresh_copy,
    model_copy,
)
from transformer_serving.engine.endpoint_config import EndpointFields, TensorFields
from transformer_serving.engine.errors import EngineError

with hidden_frameworks():
    from clearml_serving.serving.endpoints import ModelEndpoint
    from clearml_serving.serving.model_request_processor import ModelRequestProcessor

parse_defaults_without_comments()
check_schemas_once()
parse_sections_once()
wait_between_tries()
_PAGE = 500
# With the SDK's own 240 tries and pauses of two minutes a call comes back long after the API is
# there again. A call that used up these tries (6 s) is begun anew by the SDK, without end.
_TRIES = ("total", "connect", "read", "redirect", "status")
_HTTP = {
    "retries": {**dict.fromkeys(_TRIES, 6), "backoff_factor": 0.1},
    "wait_on_maintenance_forever": False,
}
# As the SDK words it, in an error of no kind of its own.
_GONE = "could not be found"


class ControlPlaneError(EngineError):
    """The control plane did not answer as it should; the last good state serves on."""


@dataclass(frozen=True)
class _Model:
    """What the registry says of a model: where its bytes are, when they last changed, and since
    when it is there.
    """

    uri: str
    framework: str
    last_update: str
    created: str


class ClearmlControlPlane:
    """The serving task `serving_id`; connects at the first call, again and again if need be."""

    def __init__(
        self,
        serving_id: str,
        name: str = "triton engine",
        keep_tasks_s: float = 0.0,
        model_cache: Path | None = None,
        downloads: Path | None = None,
        room: Room | None = None,
    ) -> None:
        self._serving_id = serving_id
        self._name = name
        self._processor: ModelRequestProcessor | None = None
        self._own_task: Task | None = None
        # The iteration of the last figures, which the server may not have yet.
        self._told = 0
        self._models: Mapping[str, _Model] = {}
        self._artifacts: Mapping[str, Any] = {}
        self._contents: frozenset[str] = frozenset()
        self._lost_adds = LostAdds()
        self._problems: list[Problem] = []
        self._gone_tasks = GoneTasks(keep_tasks_s)
        self._cache = ModelCache(model_cache, downloads, room)
        clear_copies()

    def endpoints(self) -> Sequence[Served]:
        processor = self._connected()
        task = processor._task
        with self._read_anew(task):
            found: Mapping[str, ModelEndpoint] = processor.get_synced_endpoints()
        ours = {url: ep for url, ep in found.items() if ep.engine_type == "triton"}
        self._artifacts = dict(task.artifacts)
        self._models = _read_models(task, {ep.model_id for ep in ours.values() if ep.model_id})
        by_age = sorted(self._models.items(), key=lambda item: item[1].created)
        uris = {model: known.uri for model, known in by_age}
        self._problems = found_problems(task, found, uris, self._lost_adds)
        self._gone_tasks.delete_when_due(task)
        served = [self._served(url, endpoint) for url, endpoint in ours.items()]
        self._contents = frozenset(one.content for one in served)
        self._cache.keep_only(self._contents)
        return served

    def problems(self) -> Sequence[Problem]:
        return self._problems

    @contextlib.contextmanager
    def model(self, served: Served) -> Iterator[LocalCopy]:
        known = self._models.get(served.model_id)
        if known is None or not known.uri:
            raise Refused(
                f"model '{served.model_id}' of the endpoint is not registered; add the endpoint "
                "with --model-id of an uploaded model"
            )

        def is_wanted() -> bool:
            return served.content in self._contents

        fetch = partial(model_copy, known.uri, is_wanted=is_wanted)
        with self._cache.model(served.content, fetch) as copy:
            yield copy

    def preprocess(self, served: Served) -> bytes | None:
        if served.preprocess is None:
            return None
        artifact = self._artifacts.get(served.preprocess)
        if artifact is None:
            raise Refused(
                f"artifact '{served.preprocess}' of the endpoint is missing; add the endpoint "
                "again with --preprocess"
            )
        # A folder is uploaded as an archive; ours is always one file.
        if artifact.type == "archive":
            return None
        with fresh_copy(artifact.url, "preprocess") as copy:
            return copy.path.read_bytes()

    def report(self, text: str) -> None:
        processor = self._connected()
        _tell(processor._task, text)
        # An account that may create no task has none of ours, and whoever waits reads the other.
        _tell(self._engine_task(processor), text)

    def report_figures(self, metrics: str) -> None:
        processor = self._connected()
        own = self._engine_task(processor)
        # After whatever it has of an earlier run or of a Triton beside this one: a figure of the
        # same iteration is replaced, and an earlier one goes before it in the curve.
        self._told = iteration = max(self._told, own.get_last_iteration()) + 60
        for figure in read_figures(metrics):
            series = f"{figure.model}.v{figure.version}"
            # The serving task may hear from several Tritons.
            for task, name in ((own, series), (processor._task, f"{series}.{own.id}")):
                task.get_logger().report_scalar(
                    title=figure.name, series=name, value=figure.value, iteration=iteration
                )
        # By itself the SDK sends some seconds later; until it has, a Triton beside this one would
        # take the same iteration.
        own.flush()
        processor._task.flush()
        own.send(task_calls.PingRequest(own.id))

    def configuration(self, *, fresh: bool = False) -> Mapping[str, str]:
        task = self._connected()._task
        if fresh:
            with self._read_anew(task):
                task.reload()
        return serving_configuration.texts(task)

    def section(self, name: str) -> Mapping[str, Any]:
        return serving_configuration.section(self._connected()._task, name)

    def configure(self, items: Mapping[str, str | Mapping[str, Any]]) -> None:
        if not serving_configuration.write(self._connected()._task, items):
            raise ControlPlaneError("the serving task could not be changed")

    def of_instances(self, name: str) -> Mapping[str, str]:
        found = serving_configuration.of_instances(self._connected()._task, name)
        if found is None:
            raise ControlPlaneError("the workers' tasks could not be read")
        return found

    def tag_model(self, model: str, tag: str) -> bool:
        return serving_configuration.tag(self._connected()._task, model, tag)

    def close(self) -> None:
        raise_here(ControlPlaneError)
        if self._own_task is not None:
            # What ClearML refuses now, nobody waits for.
            with contextlib.suppress(ControlPlaneError):
                self._own_task.flush(wait_for_uploads=True)
                self._own_task.mark_stopped(force=True)

    @contextlib.contextmanager
    def _read_anew(self, task: Task) -> Iterator[None]:
        """Raises ControlPlaneError where the block reads the serving task and has no answer.

        The SDK tells its log alone, and goes on with what it read before.
        """
        before = task.data
        yield
        if task.data is None or task.data is before or str(task.id) != self._serving_id:
            refused = refusal()
            unread = f"serving task {self._serving_id} could not be read"
            raise ControlPlaneError(unread if refused is None else refused.text)

    def _connected(self) -> ModelRequestProcessor:
        # It has Sync to tell of a refusal; the SDK's own threads have nobody, and wait.
        raise_here(ControlPlaneError)
        if self._processor is None:
            ConfigWrapper.set_overrides({"api": {"http": _HTTP}})
            try:
                self._processor = ModelRequestProcessor(task_id=self._serving_id)
            except (LoginError, ValueError) as error:
                if _GONE in str(error):
                    gone = f"no serving task {self._serving_id}; check CLEARML_SERVING_TASK_ID"
                    raise ControlPlaneError(gone) from None
                fault = login_refusal(Session.get_api_server_host(), error)
                raise ControlPlaneError(fault.text) from None
        return self._processor

    def _engine_task(self, processor: ModelRequestProcessor) -> Task:
        """Our own task, as the helper has one; the one of an earlier run goes on."""
        if self._own_task is None:
            serving = processor._task
            project, name = serving.get_project_name(), f"{serving.name} - {self._name}"
            own = serving_configuration.earlier(project, name) or Task.create(
                project_name=project, task_name=name, task_type="inference"
            )
            own.mark_started(force=True)
            self._own_task = own
        return self._own_task

    def _served(self, url: str, endpoint: ModelEndpoint) -> Served:
        model = self._models.get(endpoint.model_id or "")
        content = "missing" if model is None else f"{model.uri} {model.last_update}"
        artifact = self._artifacts.get(endpoint.preprocess_artifact or "")
        code = None if artifact is None else f"{artifact.hash} {artifact.url}"
        meaning = json.dumps([endpoint.as_dict(), content, code], sort_keys=True, default=str)
        return Served(
            endpoint=url,
            model=triton_model_name(endpoint.serving_url, endpoint.version or None),
            model_id=endpoint.model_id or "",
            preprocess=endpoint.preprocess_artifact or None,
            framework=model.framework if model is not None else "",
            fields=_fields(endpoint),
            fingerprint=hashlib.sha256(meaning.encode()).hexdigest(),
            content=f"{endpoint.model_id} {content}" if model is not None and model.uri else "",
        )


def _tell(task: Task, text: str) -> None:
    task.get_logger().report_text(text, print_console=False)
    # Somebody may wait for it at the desk; by itself the SDK sends every few seconds.
    task.flush()


def _fields(endpoint: ModelEndpoint) -> EndpointFields:
    return EndpointFields(
        TensorFields(
            endpoint.input_name or (), endpoint.input_type or (), endpoint.input_size or ()
        ),
        TensorFields(
            endpoint.output_name or (), endpoint.output_type or (), endpoint.output_size or ()
        ),
        endpoint.auxiliary_cfg,
    )


def _read_models(task: Task, identities: set[str]) -> dict[str, _Model]:
    """All models of the endpoints, a page in each call."""
    wanted = sorted(identities)
    found: dict[str, _Model] = {}
    for first in range(0, len(wanted), _PAGE):
        answer: Any = task.send(
            model_calls.GetAllRequest(
                id=wanted[first : first + _PAGE],
                only_fields=["id", "uri", "framework", "last_update", "created"],
                page=0,
                page_size=_PAGE,
            )
        )
        if not answer or not answer.ok():
            raise ControlPlaneError("the models of the endpoints could not be read")
        for model in answer.response.models:
            found[str(model.id)] = _Model(
                model.uri or "", model.framework or "", str(model.last_update), str(model.created)
            )
    return found
