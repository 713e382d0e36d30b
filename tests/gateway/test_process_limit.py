from __future__ import annotations

from pathlib import Path

import pytest

from transformer_serving.gateway.server import process_limit
from transformer_serving.gateway.server.command import main
from transformer_serving.gateway.server.process_limit import refuse_workers_without_threads
from transformer_serving.gateway.settings import WORKERS


@pytest.fixture
def limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The control group's file, where a container has it."""
    file = tmp_path / "pids.max"
    monkeypatch.setattr(process_limit, "LIMITS", (tmp_path / "missing", file))
    return file


@pytest.mark.parametrize(("told", "flags"), [("1", ["--workers=9"]), ("9", [])])
def test_workers_whose_threads_have_no_room_are_refused(
    limit: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    told: str,
    flags: list[str],
) -> None:
    """Before any of them is started: it would end at its start, or under its first load."""
    monkeypatch.setenv(WORKERS.name, told)
    limit.write_text("512\n")
    with pytest.raises(SystemExit) as ended:
        # An address that nobody listens on here, should they not be refused.
        main([*flags, "--host=192.0.2.1"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "error: 9 workers are more than this container's limit of 512 threads holds" in said
    assert "ask for 8 at most (CLEARML_SERVING_NUM_PROCESS), or allow 540 (INFERENCE_PIDS" in said


def test_fewer_workers_are_not_advised_where_not_even_one_fits(limit: Path) -> None:
    limit.write_text("40\n")
    with pytest.raises(ValueError, match="may come to 60; allow 60 \\(INFERENCE_PIDS"):
        refuse_workers_without_threads(1)


@pytest.mark.parametrize("text", ["512\n", "max\n", None])
def test_workers_that_fit_are_not(limit: Path, text: str | None) -> None:
    if text is not None:
        limit.write_text(text)
    refuse_workers_without_threads(8)
