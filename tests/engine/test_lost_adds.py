"""Which entries of the input models are told as lost `model add`s."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from transformer_serving.engine.controller.control_plane.lost_adds import LostAdds
from transformer_serving.engine.controller.control_plane.problems import found_problems


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def looking() -> tuple[LostAdds, Clock]:
    clock = Clock()
    lost = LostAdds(patience_s=10, clock=clock)
    assert lost.look({"old": "m0"}, {}, (), ()) == []  # history: nobody knows what it was
    return lost, clock


def test_an_entry_whose_endpoint_does_not_stay_is_told_after_the_patience() -> None:
    lost, clock = looking()
    entries = {"old": "m0", "new": "m1"}
    assert lost.look(entries, {"new": "m1"}, (), ()) == []  # there for a moment
    assert lost.look(entries, {}, (), ()) == []
    clock.now = 9.9
    assert lost.look(entries, {}, (), ()) == []
    clock.now = 10
    assert lost.look(entries, {}, (), ()) == [("new", "m1")]
    assert lost.look(entries, {"new": "m1"}, (), ()) == []
    assert lost.look({"old": "m0"}, {}, (), ()) == []  # removed: the entry goes, too


def test_an_update_that_stays_on_the_old_model_is_told() -> None:
    lost, clock = looking()
    lost.look({"x": "m1"}, {"x": "m1"}, (), ())
    lost.look({"x": "m2"}, {"x": "m1"}, (), ())
    clock.now = 10
    assert lost.look({"x": "m2"}, {"x": "m1"}, (), ()) == [("x", "m2")]
    assert lost.look({"x": "m2"}, {"x": "m2"}, (), ()) == []


def test_names_whose_entries_say_nothing_are_left_out() -> None:
    """Auto-update registers by itself, and a removed version leaves its entry behind."""
    lost, clock = looking()
    lost.look({"auto": "m1", "v": "m2"}, {}, ("v",), ("auto",))
    lost.look({"auto": "m1", "v": "m2"}, {}, (), ("auto",))
    clock.now = 100
    assert lost.look({"auto": "m1", "v": "m2"}, {}, (), ("auto",)) == []


def test_only_where_the_name_is_not_served_is_a_lost_add_an_endpoint_of_nobody() -> None:
    """Of what is told beside an endpoint that is served nobody is to be called."""
    lost, clock = looking()
    entries = {"updated": "m2", "first": "m3"}
    endpoint: Any = SimpleNamespace(serving_url="updated", model_id="m1", version=None)
    found, uris = {"updated": endpoint}, {"m1": "one place", "m9": "one place"}
    models = [SimpleNamespace(name=name, model=model) for name, model in entries.items()]
    task: Any = SimpleNamespace(
        data=SimpleNamespace(models=SimpleNamespace(input=models)),
        get_configuration_object_as_dict=lambda _: {"bad/name": {}},
    )
    found_problems(task, found, uris, lost)
    clock.now = 10
    told = {one.endpoint: one.beside for one in found_problems(task, found, uris, lost)}
    assert told == {
        "first (lost)": False,
        "updated (lost)": True,
        "updated (overwritten)": True,
        "bad/name": False,
    }
