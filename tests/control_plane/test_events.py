"""events.*"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from transformer_serving.control_plane.methods import events

if TYPE_CHECKING:
    from tests.control_plane.conftest import ApiClient

NO_ITERATION = -(2**31)


def send(api: ApiClient, *events: dict[str, Any]) -> dict[str, Any]:
    lines = "".join(json.dumps({"method": "get", **event}) + "\n" for event in events)
    answer = api.http.request(
        "GET",
        "/v2.23/events.add_batch",
        content=lines,
        headers={**api.headers, "Content-Type": "application/json-lines"},
    )
    body: dict[str, Any] = answer.json()
    part: dict[str, Any] = body["data"] if answer.status_code == 200 else body["meta"]
    return part


def scalar(task: str, iteration: int, value: float, **fields: Any) -> dict[str, Any]:
    event = {"metric": "loss", "variant": "train", "timestamp": 1000 + iteration}
    return {
        **event,
        "task": task,
        "type": "training_stats_scalar",
        "iter": iteration,
        "value": value,
        **fields,
    }


def log(task: str, number: int) -> dict[str, Any]:
    return {"task": task, "type": "log", "msg": f"line {number}", "timestamp": 1000 + number}


def test_scalars_become_curves_and_last_values(api: ApiClient) -> None:
    task = api.task()
    answer = send(api, scalar(task, 1, 0.5), scalar(task, 2, 0.25), scalar(task, 3, 0.75))
    assert answer == {"added": 3, "errors": 0, "errors_info": {}}
    send(api, scalar(task, 2, 0.3))
    curves = api.call("events.scalar_metrics_iter_histogram", task=task)
    assert curves == {"loss": {"train": {"name": "train", "x": [1, 2, 3], "y": [0.5, 0.3, 0.75]}}}
    kept = api.get_task(task)
    assert kept["last_iteration"] == 3
    [variants] = kept["last_metrics"].values()
    [last] = variants.values()
    assert (last["metric"], last["variant"]) == ("loss", "train")
    assert (last["value"], last["iter"], last["count"]) == (0.3, 2, 4)
    assert (last["min_value"], last["min_value_iteration"]) == (0.25, 2)
    assert (last["max_value"], last["max_value_iteration"]) == (0.75, 3)


def test_the_last_value_of_a_batch_is_of_its_newest_iteration(api: ApiClient) -> None:
    task = api.task()

    def last() -> float:
        [variants] = api.get_task(task)["last_metrics"].values()
        [found] = variants.values()
        return float(found["value"])

    send(api, scalar(task, 2, 0.2), scalar(task, 1, 0.1))
    assert last() == 0.2
    send(api, scalar(task, 1, 0.4, timestamp=3000), scalar(task, 1, 0.3, timestamp=2000))
    assert last() == 0.4
    send(api, scalar(task, 0, 0.5))
    assert last() == 0.5


def test_a_series_told_under_lower_iterations_is_not_the_oldest(
    api: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "_LAST_VALUES", 2)
    task = api.task()
    send(api, scalar(task, 9, 1.0, variant="a"), scalar(task, 10, 1.0, variant="b"))
    send(api, scalar(task, 1, 1.0, variant="a", timestamp=2000))
    send(api, scalar(task, 1, 1.0, variant="c", timestamp=3000))
    [variants] = api.get_task(task)["last_metrics"].values()
    assert {found["variant"] for found in variants.values()} == {"a", "c"}


def test_curves_have_other_axes_and_fewer_points(api: ApiClient) -> None:
    task = api.task()
    send(api, *(scalar(task, number, number) for number in range(10)))
    ask = {"task": task, "samples": 5}
    curve = api.call("events.scalar_metrics_iter_histogram", **ask)["loss"]["train"]
    assert (curve["x"], curve["y"]) == ([0, 2, 4, 6, 8], [0.5, 2.5, 4.5, 6.5, 8.5])
    timed = api.call("events.scalar_metrics_iter_histogram", task=task, key="iso_time")
    assert timed["loss"]["train"]["x"][0] == "1970-01-01T00:00:01.000Z"
    assert api.refusal("events.scalar_metrics_iter_histogram", task=task, key="x") == (400, 16)


def test_single_values_are_apart_from_curves(api: ApiClient) -> None:
    task = api.task()
    send(api, scalar(task, NO_ITERATION, 0.9, metric="Summary", variant="accuracy"))
    [single] = api.call("events.get_task_single_value_metrics", tasks=[task])["tasks"]
    assert [(v["variant"], v["value"]) for v in single["values"]] == [("accuracy", 0.9)]
    assert api.call("events.scalar_metrics_iter_histogram", task=task) == {}
    assert api.get_task(task)["last_iteration"] == 0


def test_machine_metrics_do_not_move_the_iteration(api: ApiClient) -> None:
    task = api.task()
    send(api, scalar(task, 99, 1.0, metric=":monitor:machine"))
    assert api.get_task(task)["last_iteration"] == 0


def test_a_plot_replaces_its_predecessor_of_the_same_iteration(api: ApiClient) -> None:
    task = api.task()
    plot = {"task": task, "type": "plot", "metric": "m", "variant": "v"}
    for iteration, text in ((0, "old"), (0, "new"), (1, "next")):
        send(api, {**plot, "iter": iteration, "plot_str": text})
    last = api.call("events.get_task_plots", task=task)["plots"]
    assert [item["plot_str"] for item in last] == ["next"]
    both = api.call("events.get_task_plots", task=task, iters=2)
    assert [item["plot_str"] for item in both["plots"]] == ["new", "next"]
    assert both["returned"] == both["total"] == 2


def test_log_from_either_end(api: ApiClient) -> None:
    task = api.task()
    send(api, *(log(task, number) for number in range(6)))

    def lines(**fields: Any) -> str:
        answer = api.call("events.get_task_log", task=task, **fields)
        assert answer["total"] == 6
        return "".join(event["msg"][-1] for event in answer["events"])

    assert lines(batch_size=2, order="asc", navigate_earlier=True) == "45"
    assert lines(batch_size=2, order="desc") == "54"
    assert lines(batch_size=2, order="asc", navigate_earlier=False) == "01"
    assert lines(order="asc", navigate_earlier=False, from_timestamp=1003) == "45"
    assert lines(order="asc", from_timestamp=1003) == "012"


def test_events_scroll_in_batches(api: ApiClient) -> None:
    task = api.task()
    send(api, *(log(task, number) for number in range(5)), scalar(task, 1, 1.0))
    ask = {"task": task, "event_type": "log", "batch_size": 2}
    first = api.call("events.get_task_events", **ask)
    assert (first["returned"], first["total"]) == (2, 5)
    messages = [event["msg"] for event in first["events"]]
    while (part := api.call("events.get_task_events", scroll_id=first["scroll_id"], **ask))[
        "returned"
    ]:
        messages += [event["msg"] for event in part["events"]]
    assert messages == [f"line {number}" for number in range(5)]
    newest = api.call("events.get_task_events", task=task, batch_size=1, order="desc")
    assert (newest["events"][0]["msg"], newest["total"]) == ("line 4", 6)


def test_debug_images(api: ApiClient) -> None:
    task = api.task()
    image = {"task": task, "type": "training_debug_image", "metric": "m"}
    for number in range(3):
        send(api, {**image, "variant": "v", "iter": number, "url": f"http://h/{number}.png"})
    send(api, {**image, "variant": "other", "iter": 0, "url": "http://h/o.png"})
    ask = {"metrics": [{"task": task, "metric": "m", "variants": ["v"]}], "iters": 2}
    answer = api.call("events.debug_images", **ask)
    [part] = answer["metrics"]
    assert [(i["iter"], len(i["events"])) for i in part["iterations"]] == [(2, 1), (1, 1)]
    rest = api.call("events.debug_images", scroll_id=answer["scroll_id"], **ask)
    assert rest["metrics"][0]["iterations"] == []


def test_images_of_one_iteration_are_told_apart_by_their_keys(api: ApiClient) -> None:
    task = api.task()
    image = {"task": task, "type": "training_debug_image", "metric": "m", "variant": "v", "iter": 1}
    for key, url in (("1.png", "old"), ("2.png", "second"), ("1.png", "first"), (None, "third")):
        send(api, {**image, "key": key, "url": url})
    answer = api.call("events.debug_images", metrics=[{"task": task, "metric": "m"}])
    [iteration] = answer["metrics"][0]["iterations"]
    assert [event["url"] for event in iteration["events"]] == ["second", "first", "third"]


@pytest.mark.parametrize("by_task", [True, False])
def test_model_events_belong_to_the_model(api: ApiClient, by_task: bool) -> None:
    model, task = api.model(), api.task()
    named = {"task": model} if by_task else {"task": task, "model": model}
    event = scalar("", 1, 2.0, model_event=True) | named
    assert send(api, event)["added"] == 1
    assert "loss" in api.call("events.scalar_metrics_iter_histogram", task=model)
    assert send(api, event | {"task": task, "model": task})["result_subcode"] == 131


def test_models_are_found_by_the_iteration_of_their_events(api: ApiClient) -> None:
    model, other = api.model("one"), api.model("two")
    before = api.get_model(model)

    def found(*bounds: int | None) -> list[str]:
        ask = {"last_iteration": bounds, "order_by": ["name"]}
        return [one["id"] for one in api.call("models.get_all", **ask)["models"]]

    assert found(None, 0) == found(0, None) == [model, other]
    late = scalar(model, 7, 1.0, model_event=True)
    send(api, late, late | {"iter": 3}, late | {"iter": 90, "metric": ":monitor:machine"})
    assert found(1, None) == found(7, 7) == [model]
    assert found(None, 6) == [other]
    # What serves it does not take it for another.
    assert api.get_model(model) == before | {"last_iteration": 7}


def test_bad_events_are_counted_and_the_good_kept(api: ApiClient) -> None:
    task = api.task()
    answer = send(
        api,
        log(task, 1),
        log("missing", 1),
        {"type": "log"},
        {"task": task, "type": "odd"},
        {"task": task},
        scalar(task, 2**70, 1.0),
    )
    assert (answer["added"], answer["errors"]) == (1, 5)
    assert answer["errors_info"]["Invalid task id"] == 1
    assert send(api, log("missing", 1))["result_subcode"] == 131
    assert send(api)["result_subcode"] == 17


@pytest.mark.parametrize(
    "method", ["get_task_log", "get_task_plots", "get_task_events", "scalar_metrics_iter_histogram"]
)
def test_reads_of_an_unknown_task(api: ApiClient, method: str) -> None:
    assert api.refusal(f"events.{method}", task="missing") == (400, 101)
