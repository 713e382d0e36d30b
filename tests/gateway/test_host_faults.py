"""What clearml-serving raises while it takes over a configuration holds no request up for ever."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest
from clearml_serving.serving import model_request_processor
from clearml_serving.serving.model_request_processor import (
    FastWriteCounter,
    ModelRequestProcessor,
)
from clearml_serving.serving.preprocess_service import TritonPreprocessRequest

from transformer_serving.gateway.host.faults import fence

ENDPOINT = {"engine_type": "custom", "serving_url": "x"}


class Task:
    """The serving task, as far as its configuration is asked for."""

    id = "0" * 32

    def __init__(
        self, endpoints: list[str], canary: dict[str, Any], monitored: tuple[str, ...] = ()
    ) -> None:
        self.artifacts: dict[str, Any] = {}
        self.items: dict[str, Any] = {
            "endpoints": {name: {**ENDPOINT, "serving_url": name} for name in endpoints},
            "canary": canary,
            "model_monitoring": {
                name: {
                    "base_serving_url": name,
                    "engine_type": "custom",
                    "monitor_name": name,
                    "max_versions": 1,
                }
                for name in monitored
            },
        }

    def mark_started(self, force: bool) -> None:
        pass

    def send(self, request: object) -> None:
        pass

    def reload(self) -> None:
        pass

    def set_configuration_object(self, **_: Any) -> None:
        pass

    def get_parameters_as_dict(self) -> dict[str, Any]:
        return {}

    def get_configuration_object_as_dict(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.items.get(name, {})
        return found


def processor(*, fenced: bool = True) -> Any:
    """The host's own code, with no server behind it."""

    class Processor(ModelRequestProcessor):  # type: ignore[misc]
        fault: Exception | None = None

        def _sync_monitored_models(self, force: bool = False) -> Any:
            # Asks ClearML, in the update lock.
            if self.fault is not None:
                raise self.fault
            return super()._sync_monitored_models(force)

        def _add_registered_input_model(self, endpoint_url: str, model_id: str) -> bool:
            return True

        def _sync_metric_logging(self, force: bool = False) -> None:
            pass

        def _deserialize_conf_dict(self, configuration: Any) -> None:
            pass

        def _report_text(self, text: str) -> None:
            pass

    if fenced:
        fence(Processor)
    made = Processor.__new__(Processor)
    made._last_update_hash = None
    made._model_monitoring_update_request = False
    made._model_monitoring_endpoints = {}
    made._model_monitoring_versions = {}
    made._endpoints = {}
    made._engine_processor_lookup = {}
    made._sync_daemon_thread = made._instance_task = made._kafka_stats_url = None
    made._canary_route = {}
    made._update_lock_flag = False
    made._update_lock_guard = threading.Lock()
    made._request_processing_state = FastWriteCounter()
    return made


def route(name: str, weights: list[float], **to: Any) -> dict[str, Any]:
    return {name: {"endpoint": name, "weights": weights, **to}}


def taken(made: Any, task: Task) -> bool:
    return bool(made.deserialize(task, update_current_task=False))


GONE = [
    route("split", [1, 0], load_endpoints=["gone", "here"]),
    route("split", [1, 1], load_endpoints=["gone", "gone too"]),
    route("split", [0, 0], load_endpoint_prefix="he"),
    route("split", [1, 1], load_endpoint_prefix="gone"),
]


def test_alone_the_host_stands_still_with_a_weight_of_0() -> None:
    alone = processor(fenced=False)
    with pytest.raises(ZeroDivisionError):
        taken(alone, Task(["here"], GONE[0]))
    # Every request waits for this, and no later look changes it.
    assert alone._update_lock_flag
    assert not taken(alone, Task(["here"], GONE[0]))


@pytest.mark.parametrize("canary", GONE)
def test_a_canary_route_that_leads_nowhere_is_left_out(canary: dict[str, Any]) -> None:
    good = route("good", [0.3, 0.7], load_endpoints=["here", "there"])
    task = Task(["here", "there"], {**canary, **good})
    made = processor()
    assert taken(made, task)
    assert not made._update_lock_flag
    assert set(made._canary_route) == {"good"}
    assert set(made._canary_endpoints) == {"split", "good"}
    assert not taken(made, task)


def test_after_any_other_fault_requests_go_on_and_the_change_is_tried_again() -> None:
    task = Task(["here"], {})
    made = processor()
    made.fault = RuntimeError("played")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="played"):
            taken(made, task)
        assert not made._update_lock_flag
    made.fault = None
    assert taken(made, task)
    assert set(made._endpoints) == {"here"}


def test_what_no_longer_fits_is_not_asked_on_after_a_fault_in_the_lock() -> None:
    made = processor()
    assert taken(made, Task(["here"], {}))
    made._engine_processor_lookup["here"] = "of the old bundle"
    made.fault = RuntimeError("played")
    with pytest.raises(RuntimeError, match="played"):
        taken(made, Task(["here", "there"], {}))
    assert set(made._endpoints) == {"here", "there"}
    assert not made._engine_processor_lookup


class EndedError(BaseException):
    """Of the host's sync, which has no end."""


def looks(
    made: Any, task: Task, monkeypatch: pytest.MonkeyPatch, *pauses: Callable[[], Any]
) -> None:
    """The host's own sync, with one pause after each look; it ends with the last one."""
    left = list(pauses)

    def pause(seconds: float) -> None:
        # Else it waits for requests.
        assert seconds == 7.0
        left.pop(0)()
        if not left:
            raise EndedError

    monkeypatch.setattr(model_request_processor, "sleep", pause)
    made._task, made._sync_daemon_thread = task, threading.current_thread()
    with pytest.raises(EndedError):
        made._sync_daemon(7.0)


class Registry:
    """ClearML's models, of which each name has one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.newest = {"auto": "a1", "other": "b1"}
        self.refuses = False
        monkeypatch.setattr(model_request_processor, "Model", self)

    def query_models(self, *, model_name: str, **_: Any) -> list[Any]:
        if self.refuses:
            raise ValueError("Action failed <500/100: models.get_all/v1.0>")
        return [SimpleNamespace(id=self.newest[model_name])]


@pytest.mark.parametrize("refused", ["models", "plot"])
def test_a_change_is_served_though_what_follows_it_is_refused(
    refused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = Registry(monkeypatch)
    made, task = processor(), Task(["here"], {}, monitored=("auto",))

    def change() -> None:
        assert set(made._model_monitoring_endpoints) == {"auto/1"}
        made._engine_processor_lookup["here"] = "of the old bundle"
        task.items["endpoints"]["here"]["model_id"] = "new"
        registry.refuses = refused == "models"
        # Nothing that can be drawn on.
        made._instance_task = object() if refused == "plot" else None

    def seen() -> None:
        assert made._endpoints["here"].model_id == "new"
        assert not made._engine_processor_lookup

    looks(made, task, monkeypatch, change, seen)


def test_a_worker_does_not_start_without_what_is_monitored(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be ready, and know none of the auto-update endpoints."""
    Registry(monkeypatch).refuses = True
    made = processor()
    made._task = Task(["here"], {}, monitored=("auto",))
    with pytest.raises(ValueError, match="get_all"):
        made.launch(7.0)


class Preprocess:
    """Of an endpoint whose engine answers when it is told to."""

    def __init__(self) -> None:
        self.asked, self.may_answer = asyncio.Event(), asyncio.Event()

    async def process(self, *_: Any) -> list[float]:
        self.asked.set()
        await self.may_answer.wait()
        return [0.1, 0.9]

    def postprocess(self, *_: Any) -> dict[str, str]:
        return {"label": "POSITIVE"}


async def test_a_new_monitored_model_takes_nothing_from_requests_that_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registry = Registry(monkeypatch)
    made, task = processor(), Task(["here"], {}, monitored=("auto", "other"))
    loop, preprocess = asyncio.get_running_loop(), Preprocess()
    made._metric_logging, answers = {}, list[asyncio.Task[Any]]()

    async def ask(url: str) -> None:
        engine = TritonPreprocessRequest.__new__(TritonPreprocessRequest)
        engine._preprocess, engine._model = preprocess, None
        made._engine_processor_lookup[url] = engine
        preprocess.asked.clear()
        answers.append(asyncio.create_task(made.process_request(*url.split("/"), {})))
        await preprocess.asked.wait()

    def here(work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, loop).result(30)

    def change() -> None:
        made._engine_processor_lookup["here"] = "static"
        made._engine_processor_lookup["other/1"] = SimpleNamespace()  # Its model is gone.
        registry.newest["other"] = "b2"

    def seen() -> None:
        assert set(made._model_monitoring_endpoints) == {"auto/1", "other/2"}
        for url in ("auto/1", "other/2"):
            here(ask(url))

    await asyncio.to_thread(looks, made, task, monkeypatch, change, seen, lambda: None)
    preprocess.may_answer.set()
    assert await asyncio.gather(*answers) == [{"label": "POSITIVE"}] * 2
    assert set(made._engine_processor_lookup) == {"here", "auto/1", "other/2"}
