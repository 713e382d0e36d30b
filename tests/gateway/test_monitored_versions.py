"""Workers of one service call an auto-update endpoint's models by the same numbers; the host's own
code, with no server behind it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from clearml_serving.serving import model_request_processor
from clearml_serving.serving.model_request_processor import ModelRequestProcessor

from transformer_serving.gateway.host.faults import fence

MONITORED = {
    "base_serving_url": "auto", "engine_type": "triton", "monitor_project": "texts",
    "max_versions": 1,
}  # fmt: skip
CANARY = {"endpoint": "auto", "weights": [1.0], "load_endpoint_prefix": "auto/"}
STATIC = {"engine_type": "custom", "serving_url": "x"}


class Task:
    """The serving task; `written` counts what the workers wrote."""

    id = "0" * 32

    def __init__(self) -> None:
        self.artifacts: dict[str, Any] = {}
        self.items: dict[str, Any] = {
            "model_monitoring": {"auto": MONITORED}, "canary": {"auto": CANARY},
            "endpoints": {"x": STATIC},
        }  # fmt: skip
        self.written = 0

    @property
    def loaded(self) -> dict[str, str]:
        """What the controller loads."""
        rows = self.items.get("model_monitoring_eps", {})
        return {url: row["model_id"] for url, row in rows.items()}

    def get_parameters_as_dict(self) -> dict[str, Any]:
        return {}

    def get_configuration_object_as_dict(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.items.get(name, {})
        return found

    def set_configuration_object(self, name: str, config_dict: dict[str, Any]) -> None:
        self.items[name] = config_dict
        self.written += 1

    def set_input_model(self, **_: Any) -> None:
        pass

    def send(self, request: object) -> None:
        pass


class Service:
    """Its task, the published models, newest first, and its workers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.task = Task()
        self.published: list[str] = []
        registry = SimpleNamespace(query_models=self.query)
        monkeypatch.setattr(model_request_processor, "Model", registry)
        self.processor = self.fenced()

    def query(self, max_results: int, **_: Any) -> list[Any]:
        return [SimpleNamespace(id=model) for model in self.published[:max_results]]

    def fenced(self) -> Any:
        task = self.task

        class Processor(ModelRequestProcessor):  # type: ignore[misc]
            @classmethod
            def _get_control_plane_task(cls, **_: Any) -> Task:
                return task

            def _deserialize_conf_dict(self, configuration: Any) -> None:
                pass

            def _report_text(self, text: str) -> None:
                pass

            def _update_serving_plot(self) -> None:
                pass

        fence(Processor)
        return Processor

    def worker(self) -> Any:
        """One that starts."""
        made = self.processor(task_id=self.task.id)
        self.look(made)
        return made

    def look(self, *workers: Any) -> None:
        """As the host's launch and each round of its sync do."""
        for worker in workers:
            worker.deserialize(self.task, update_current_task=False)
            if worker._update_monitored_models():
                worker.deserialize(self.task, update_current_task=False)

    def publish(self, model: str) -> None:
        self.published.insert(0, model)


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Service:
    return Service(monkeypatch)


def served(worker: Any) -> dict[str, str]:
    rows = worker._model_monitoring_endpoints
    assert worker._canary_route["auto"]["endpoints"] == list(rows)
    return {url: row.model_id for url, row in rows.items()}


def test_a_worker_that_starts_later_goes_on_with_the_services_numbers(service: Service) -> None:
    service.publish("m1")
    first = service.worker()
    service.publish("m2")
    service.look(first)
    assert service.task.loaded == served(first) == {"auto/2": "m2"}
    written = service.task.written
    late = service.worker()
    service.look(first, late)
    assert service.task.loaded == served(first) == served(late) == {"auto/2": "m2"}
    assert service.task.written == written


def test_one_that_missed_a_model_between_two_looks_does_not_number_anew(service: Service) -> None:
    service.publish("m1")
    first, second = service.worker(), service.worker()
    for model in ("m2", "m3"):
        service.publish(model)
        service.look(first)
    service.look(second, first)
    assert service.task.loaded == served(first) == served(second) == {"auto/3": "m3"}


def test_two_that_numbered_at_one_moment_agree_at_the_next_look(service: Service) -> None:
    """And the engine object that was built for the other model is not asked on."""
    service.publish("m1")
    first = service.worker()
    first._engine_processor_lookup["auto/1"] = "of m1"
    service.published[:] = ["m0"]
    service.task.items["model_monitoring_eps"]["auto/1"]["model_id"] = "m0"
    service.look(first)
    assert service.task.loaded == served(first) == {"auto/1": "m0"}
    assert not first._engine_processor_lookup


def test_a_new_model_is_written_once(service: Service) -> None:
    """The task's edits are not atomic: each is a moment in which another writer's is lost."""
    service.publish("m1")
    first = service.worker()
    for model in ("m2", "m3"):
        written = service.task.written
        service.publish(model)
        service.look(first)
        assert service.task.written == written + 1
        service.look(first)
        assert service.task.written == written + 1
    assert service.task.loaded == served(first) == {"auto/3": "m3"}


def asked(worker: Any) -> dict[str, str]:
    """Of several versions, which share their route's weights."""
    return {url: row.model_id for url, row in worker._model_monitoring_endpoints.items()}


def test_a_row_that_another_writer_undid_is_written_again_and_closes_nothing(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look that changes something closes the worker to requests for a moment."""
    monkeypatch.setitem(MONITORED, "max_versions", 2)
    service.publish("m1")
    first = service.worker()
    before = dict(service.task.items["model_monitoring_eps"])
    service.publish("m2")
    service.look(first)
    both = {"auto/1": "m1", "auto/2": "m2"}
    assert service.task.loaded == asked(first) == both
    for undone in (before, {}):
        service.task.items["model_monitoring_eps"] = undone
        assert not first._update_monitored_models()
        assert service.task.loaded == asked(first) == both
        written = service.task.written
        assert not first._update_monitored_models()
        assert service.task.written == written
    # One that was taken out for a newer one stays out.
    second = service.worker()
    service.publish("m3")
    service.look(second, first, second, first)
    assert service.task.loaded == asked(first) == asked(second)
    assert sorted(service.task.loaded.values()) == ["m2", "m3"]


def test_what_was_removed_while_no_worker_ran_leaves_the_task(service: Service) -> None:
    service.publish("m1")
    service.worker()
    service.task.items |= {"model_monitoring": {}, "canary": {}}
    late = service.worker()
    assert service.task.loaded == late._model_monitoring_endpoints == {}


def test_what_cannot_be_read_changes_nothing(service: Service) -> None:
    service.publish("m1")
    first = service.worker()
    service.task.items["model_monitoring_eps"] = {
        "auto/b/1": {"model_id": "m1"}, "auto/one": {"model_id": "m1"},
    }  # fmt: skip
    service.publish("m2")
    service.look(first)
    assert service.task.loaded == served(first) == {"auto/2": "m2"}
