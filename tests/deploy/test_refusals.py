"""Which of a serving task's lines a waiting command takes for its model's refusal."""

from __future__ import annotations

from typing import Any, cast

from transformer_serving.desk.deploy.refusals import Refusals
from transformer_serving.engine.controller.proving.refusal_line import refusal_line


class Log:
    def __init__(self, *models: str) -> None:
        self.lines = [refusal_line("texts", model, "its answers differ") for model in models]

    def call(self, method: str, **_: Any) -> dict[str, Any]:
        assert method == "events.get_task_log"
        return {"events": [{"timestamp": at, "msg": line} for at, line in enumerate(self.lines)]}


def test_what_the_log_has_already_counts_where_it_is_asked_for() -> None:
    api = cast("Any", Log("other", "mine"))
    assert Refusals(api, "0" * 32, "mine").reason() is None
    assert Refusals(api, "0" * 32, "mine", earlier=True).reason() == "its answers differ"
    assert Refusals(api, "0" * 32, "third", earlier=True).reason() is None
