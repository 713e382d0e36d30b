"""What `remove` says is gone is gone; the whole way is in tests/stack/test_desk_folder.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

from transformer_serving.desk.clearml_tools.cli import COMMAND_S
from transformer_serving.desk.deploy import removal
from transformer_serving.desk.deploy.removal import Removed, remove
from transformer_serving.desk.deploy.target import DeployTarget
from transformer_serving.desk.failure import Failure


class Service:
    """A service with one endpoint, which another writer puts back `again` times."""

    def __init__(self, again: int) -> None:
        self.again = again
        self.endpoints = {"texts": {"model_id": "m"}}

    def check_version(self) -> None:
        pass

    def run(self, *command: str, timeout_s: float = COMMAND_S) -> str:
        assert timeout_s == COMMAND_S
        if command == ("model", "list"):
            return f"Endpoints:\n{json.dumps(self.endpoints)}\nModel Monitoring:\n"
        assert command == ("model", "remove", "--endpoint", "texts")
        if not self.again:
            self.endpoints.pop("texts")
        self.again -= 1
        return ""


def removed(service: Service, folder: Path) -> Removed:
    lock = folder / "deploy.lock"
    target = DeployTarget(cast("Any", service), "http://files", "http://front", lock)
    return remove(target, "texts")


@pytest.fixture(autouse=True)
def _no_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removal, "refuse_in_rollout", lambda cli, name: None)
    monkeypatch.setattr(removal, "forget_code", lambda cli: None)
    monkeypatch.setattr(removal, "drop_over", lambda *_: None)


def test_what_another_writer_put_back_is_removed_again(tmp_path: Path) -> None:
    service = Service(again=2)
    assert removed(service, tmp_path).removed
    assert not service.endpoints


def test_what_stays_is_not_called_removed(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="texts was removed 5 times .* put it back; let only one"):
        removed(Service(again=99), tmp_path)
