from __future__ import annotations

from pathlib import Path

import pytest

from transformer_serving.gateway.server import process_limit
from transformer_serving.gateway.server.command import main
from transformer_serving.gateway.server.process_limit import refuse_workers_without_threads


@pytest.fixture
def limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The control group's file, where a container has it."""
    file = tmp_path / "pids.max"
    monkeypatch.setattr(process_limit, "LIMITS", (tmp_path / "missing", file))
    return file


def test_workers_that_cannot_start_their_threads_are_refused(
    limit: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before any of them is started: each would end at its start, again and again."""
    limit.write_text("512\n")
    with pytest.raises(SystemExit) as ended:
        # An address that nobody listens on here, should they not be refused.
        main(["--workers=100", "--host=192.0.2.1"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "error: 100 workers are more than this container's limit of 512 threads holds" in said
    assert "ask for 20 at most (CLEARML_SERVING_NUM_PROCESS)" in said
    assert "INFERENCE_PIDS" in said


@pytest.mark.parametrize("text", ["512\n", "max\n", None])
def test_workers_that_fit_are_not(limit: Path, text: str | None) -> None:
    if text is not None:
        limit.write_text(text)
    refuse_workers_without_threads(20)
