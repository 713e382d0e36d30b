"""Each alert fires in a real Prometheus when a real fault is done to a real stack, and goes again.

`up --monitoring` starts it all; the rules' times are divided by 360 (promtool's tests run the real
ones), and no time is asserted. With -s it prints how long each took.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.stack.alert_faults import FAULTS, NOT_PROVOKED, Fault
from tests.stack.alert_scene import SCALE, SETTINGS, Scene, deploy_all, hasten, named, stopped
from tests.stack.conftest import started
from transformer_serving.desk.monitoring.alerts import Alert
from transformer_serving.desk.monitoring.rules import all_alerts

pytestmark = [pytest.mark.long, pytest.mark.by_hand]

PAGE = Path(__file__).parents[2] / "docs" / "monitoring.md"


def test_every_alert_has_a_fault_or_a_reason() -> None:
    fired = [alert for together in FAULTS for fault in together for alert in fault.fires]
    assert len(set(fired)) == len(fired)
    assert {one.name for one in set(all_alerts()) - set(fired)} == set(NOT_PROVOKED)


def test_the_docs_name_them() -> None:
    rows = re.findall(r"^\| (\w+(?:, \w+)*) \| (.+) \|$", PAGE.read_text("utf-8"), re.MULTILINE)
    told = {(frozenset(names.split(", ")), said) for names, said in rows}
    made = {
        (frozenset(alert.name for alert in fault.fires), fault.name)
        for together in FAULTS
        for fault in together
    }
    for name, why in NOT_PROVOKED.items():
        made.add((frozenset((name,)), why))
    assert made <= told, made - told


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    for program, package in (("prometheus", "prometheus"), ("cc", "gcc")):
        if shutil.which(program) is None:
            pytest.skip(f"no {program}: Debian has it in the package {package}")
    folder = tmp_path_factory.mktemp("watched")
    library, offset = folder / "shifted_clock.so", folder / "offset"
    source = Path(__file__).with_name("shifted_clock.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
    offset.write_bytes(bytes(8))
    preloaded = {"LD_PRELOAD": str(library), "SHIFTED_CLOCK": str(offset)}
    with started(folder / "state", "--monitoring", **SETTINGS, **preloaded) as stack:
        prompt = deploy_all(stack, folder)
        scene = Scene(stack, hasten(stack), prompt, offset)
        # It would end what the faults below stop.
        with stopped(scene.pid("watchdog")):
            yield scene


@pytest.fixture(scope="module")
def took() -> Iterator[dict[Alert, float]]:
    """Seconds from the fault's beginning to each alert's firing, told at the end."""
    seconds: dict[Alert, float] = {}
    yield seconds
    lines = [f"{value:6.1f} s  {named([alert])}" for alert, value in seconds.items()]
    sys.stdout.write("\n" + "\n".join([f"at times divided by {SCALE.divisor:g}:", *lines, ""]))


def of_names(together: Any) -> str:
    return named({alert for fault in together for alert in fault.fires})[:80]


@pytest.mark.parametrize("together", FAULTS, ids=of_names)
def test_it_fires_and_goes(
    scene: Scene, took: dict[Alert, float], together: tuple[Fault, ...]
) -> None:
    alerts = {alert for fault in together for alert in fault.fires}
    # What a fault before this one left behind is over first.
    scene.until_silent(alerts)
    with ThreadPoolExecutor(len(together)) as pool:
        for done in [pool.submit(provoked, scene, fault) for fault in together]:
            took.update(done.result())


def provoked(scene: Scene, fault: Fault) -> dict[Alert, float]:
    """The fault, again and again until its alerts have fired; seconds until each did."""
    began, ended = time.monotonic(), threading.Event()
    with fault.done(scene) as again, ThreadPoolExecutor(1) as pool:

        def repeat() -> None:
            while not ended.is_set():
                again()

        repeated = pool.submit(repeat)
        try:
            return scene.until_fired(fault.fires, began)
        finally:
            ended.set()
            repeated.result()


def test_in_the_end_nothing_fires(scene: Scene, took: dict[Alert, float]) -> None:
    """All of them have gone again, those of an error budget a minute after its last bad answer."""
    assert took
    scene.until_silent(all_alerts())
