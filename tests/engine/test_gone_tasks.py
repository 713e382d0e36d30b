"""Tasks of workers that are gone, by looks alone and through the real SDK and control plane."""

from __future__ import annotations

from tests.control_plane.sdk_runs import RunSdk
from transformer_serving.engine.controller.control_plane.gone_tasks import GoneTasks


def looked(*signs: dict[str, str]) -> list[list[str]]:
    tasks = GoneTasks(60, lambda: 0.0)
    return [tasks.look(one) for one in signs]


def test_a_task_is_gone_after_six_looks_without_a_sign() -> None:
    assert looked(*[{"a": "1"}] * 7) == [[], [], [], [], [], [], ["a"]]


def test_any_sign_begins_it_anew() -> None:
    found = looked(*[{"a": "1"}] * 6, *[{"a": "2"}] * 6)
    assert found == [[]] * 12


def test_a_look_that_was_not_answered_begins_it_anew() -> None:
    """A control plane that was away: the living have not been heard again yet."""
    assert looked(*[{"a": "1"}] * 6, {}, *[{"a": "1"}] * 6) == [[]] * 13


def test_nobody_looks_where_all_are_kept() -> None:
    class NeverAsked:
        """Any use is an error."""

    GoneTasks(0, lambda: 1e9).delete_when_due(NeverAsked())  # type: ignore[arg-type]


SCRIPT = """
    from clearml import Task
    from clearml.backend_api.services import tasks as task_calls
    from transformer_serving.engine.controller.control_plane.gone_tasks import GoneTasks, last_signs

    def task(name, kind="inference"):
        made = Task.create(project_name="gone", task_name=name, task_type=kind)
        made.mark_started(force=True)
        return made

    serving = task("served (1)", "service")
    gone, alive = task("served (1) - serve instance"), task("served (1) - serve instance")
    others = task("served (1) - serve instance of mine"), task("another - serve instance")
    assert set(last_signs(serving)) == {gone.id, alive.id}
    now = [0.0]
    tasks = GoneTasks(60, lambda: now[0])
    for _ in range(8):
        now[0] += 10
        serving.send(task_calls.PingRequest(alive.id))
        tasks.delete_when_due(serving)
    assert set(last_signs(serving)) == {alive.id}
    left = {one.id for one in Task.get_tasks(project_name="gone")}
    assert left == {serving.id, alive.id, *(one.id for one in others)}
    print("as it should be")
"""


def test_only_the_silent_one_of_the_service_is_deleted(run_sdk: RunSdk) -> None:
    done = run_sdk(SCRIPT)
    assert done.returncode == 0, done.stderr
    assert "as it should be" in done.stdout
