"""What clearml-serving raises while it takes over a configuration holds no request up for ever."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from clearml_serving.serving.model_request_processor import (
    FastWriteCounter,
    ModelRequestProcessor,
)

from transformer_serving.gateway.host.faults import fence

ENDPOINT = {"engine_type": "custom", "serving_url": "x"}


class Task:
    """The serving task, as far as its configuration is asked for."""

    id = "0" * 32

    def __init__(self, endpoints: list[str], canary: dict[str, Any]) -> None:
        self.artifacts: dict[str, Any] = {}
        self.items: dict[str, Any] = {
            "endpoints": {name: {**ENDPOINT, "serving_url": name} for name in endpoints},
            "canary": canary,
        }

    def get_parameters_as_dict(self) -> dict[str, Any]:
        return {}

    def get_configuration_object_as_dict(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.items.get(name, {})
        return found


def processor(*, fenced: bool = True) -> Any:
    """The host's own code, with no server behind it."""

    class Processor(ModelRequestProcessor):  # type: ignore[misc]
        fault: Exception | None = None

        def _sync_monitored_models(self) -> None:
            # Asks ClearML, in the update lock.
            if self.fault is not None:
                raise self.fault

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
