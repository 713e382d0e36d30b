"""The numbers that docs/reliability.md says by hand are those of the code."""

from __future__ import annotations

from pathlib import Path

from transformer_serving.desk.local import watchdog
from transformer_serving.engine.controller.triton import stuck_loads

PAGE = (Path(__file__).parents[2] / "docs" / "reliability.md").read_text("utf-8")


def test_when_the_watchdog_ends_a_part() -> None:
    tabled = [line for line in PAGE.splitlines() if line.startswith("| ") and line.count("|") == 3]
    pairs = [line.strip("|").split("|") for line in tabled]
    rows = {named.strip(): said.strip() for named, said in pairs}
    assert (
        rows["stopped (SIGSTOP), or one of its processes is"] == f"{watchdog.STOPPED_LOOKS} looks"
    )
    assert rows["answered before and no longer does"] == (
        f"{watchdog.SILENT_PROBES} probes without an answer, {watchdog.PROBE_TIMEOUT_S:.0f} s each"
    )
    assert rows["inference, which answered before and no longer does"] == (
        f"{watchdog.LOADING_PROBES} probes without an answer, {watchdog.PROBE_TIMEOUT_S:.0f} s each"
    )
    assert rows["has not answered since its start"] == f"{watchdog.START_S:.0f} s"


def test_when_a_stuck_load_ends_triton() -> None:
    assert f"process dead for {stuck_loads.NOTICE_S:.0f} s beside a load that goes on" in " ".join(
        PAGE.split()
    )
