"""What the stack's parts are started with."""

from __future__ import annotations

from pathlib import Path

import pytest

from transformer_serving.desk.local.parts import BY_NAME, WORKERS_VARIABLE
from transformer_serving.desk.local.record import Ports, new_record


@pytest.mark.parametrize(("said", "workers"), [(None, "1"), ("", "1"), ("3", "3")])
def test_the_environment_says_how_many_workers(
    said: str | None, workers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(WORKERS_VARIABLE, raising=False)
    if said is not None:
        monkeypatch.setenv(WORKERS_VARIABLE, said)
    launch = BY_NAME["inference"].launch(tmp_path, new_record(tmp_path, Ports()))
    assert f"--workers={workers}" in launch.command
