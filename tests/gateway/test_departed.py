"""Endpoints that went, as each rollout's candidate does, leave nothing in a worker; each test in a
process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.figures import of, read
from transformer_serving.gateway.figures.departed import Departed
from transformer_serving.gateway.figures.folder import VARIABLE
from transformer_serving.gateway.figures.traffic import Traffic
from transformer_serving.gateway.requested_endpoint import RequestedEndpoint

HOUR = 3601.0


def told(code: str, folder: Path) -> Any:
    """What `code` writes at its end, as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + code], env={**os.environ, VARIABLE: str(folder)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


BEGIN = """
import asyncio, gc, inspect, json, os, sys
from pathlib import Path
import prometheus_client
from prometheus_client import values
from prometheus_client.mmap_dict import MmapedDict
from preprocess.stats import EndpointFigures
from transformer_serving.contract.worker.durations import Durations
from transformer_serving.gateway.figures.departed import Departed
from transformer_serving.gateway.figures.file import keep_figures_with_room
from transformer_serving.gateway.figures.metrics import Metrics
from transformer_serving.gateway.golden_rounds import GoldenResult
keep_figures_with_room()
folder = Path(os.environ["PROMETHEUS_MULTIPROC_DIR"])
now = 0.0
known = {"m"}
metrics = Metrics(lambda: known)
metrics._departed = Departed(lambda: now)
durations = Durations(prometheus_client)

def golden(bundle, *endpoints):
    results = {
        name: GoldenResult(name, "ok", "", 0.0, True, None, bundle, "t") for name in endpoints
    }
    asyncio.run(metrics.goldens(results))

def answered(name):
    EndpointFigures(name).request(200, 1, 5, dict.fromkeys(("tokenize", "queue"), 0.1))
    metrics.refused("overloaded", name)
    durations.took(name, "ok", 200, 0.1)

def keys():
    return [
        key for file in folder.glob("*.db")
        for key, *_ in MmapedDict.read_all_values_from_file(str(file))
    ]

def held():
    return len(inspect.getclosurevars(values.ValueClass.__init__).nonlocals["values"])

def page():
    return asyncio.run(metrics.text()).decode()

def tell(*rows):
    sys.stdout.write(json.dumps(rows))
"""


def test_three_hundred_candidates_leave_nothing_in_a_worker(tmp_path: Path) -> None:
    before, after, sizes, text = told(CANDIDATES, tmp_path)
    assert after == before
    assert set(sizes) == {1 << 16}
    assert of(read(text), "texts_total", endpoint="m") == 1
    assert '"m/1"' not in text


CANDIDATES = """
def rollout(number):
    global now
    name = f"m/{number}"
    known.add(name)
    answered(name)
    golden(str(number), "m", name)
    known.remove(name)
    golden(str(number), "m")
    # What nobody asks any more may hold itself.
    gc.collect()
    now += 3601
    golden(str(number), "m")

answered("m")
rollout(0)
before = len(keys()), held()
# The libraries' own objects go nowhere: without them, a collection looks at what rollouts made.
gc.collect()
gc.freeze()
for number in range(1, 301):
    rollout(number)
tell(before, (len(keys()), held()), [file.stat().st_size for file in folder.glob("*.db")], page())
"""


def test_deploys_leave_no_row_of_a_bundle(tmp_path: Path) -> None:
    (rows,) = told(DEPLOYS, tmp_path)
    assert [json.loads(key)[2]["bundle"] for key in rows] == ["99"]


DEPLOYS = """
for number in range(100):
    golden(str(number), "m")
tell([key for key in keys() if "gateway_bundle_info" in key])
"""


def test_a_bundle_that_changes_touches_the_file_of_its_gauge_alone(tmp_path: Path) -> None:
    read_files, anew = told(CHANGED, tmp_path)
    assert read_files == anew == ["gauge_liveall"]


CHANGED = """
def numbers():
    return {file.name.rpartition("_")[0]: file.stat().st_ino for file in folder.glob("*.db")}

answered("m")
golden("1", "m")
before = numbers()
assert {"counter", "histogram", "gauge_liveall"} <= before.keys()
read, found = MmapedDict.read_all_values_from_file, []

def noted(path):
    found.append(os.path.basename(os.path.realpath(path)).rpartition("_")[0])
    return read(path)

MmapedDict.read_all_values_from_file = staticmethod(noted)
golden("2", "m")
tell(found, [name for name, number in numbers().items() if number != before[name]])
"""


def test_whose_figures_somebody_holds_counts_on(tmp_path: Path) -> None:
    """As the bundle before, which answers until the next one's engine is there."""
    row = {"endpoint": "m/1", "status": "503"}
    seen = [of(read(text), "requests_total", **row) for text in told(HELD, tmp_path)]
    assert seen == [50, 0, 50, 51, 52, 53]


HELD = """
known.add("m/1")
old = EndpointFigures("m/1")
old.request(503, 1, 0, {}, 50)
pages = [page()]
known.remove("m/1")
golden("1", "m")
now += 3601
golden("1", "m")
pages.append(page())
known.add("m/1")
new = EndpointFigures("m/1")
pages.append(page())
for figures in (old, new, old):
    figures.request(503, 1, 0, {})
    pages.append(page())
tell(*pages)
"""


def test_what_users_own_code_counts_by_endpoint_stays(tmp_path: Path) -> None:
    (rows,) = told(USERS, tmp_path)
    assert rows == 1


USERS = """
prometheus_client.Counter("mine", "A user's own.", ("endpoint",)).labels("m/1").inc()
golden("1", "m")
now += 3601
golden("1", "m")
tell(sum('"mine_total"' in key for key in keys()))
"""


def test_who_asks_one_that_is_gone_makes_no_row_of_its_name(tmp_path: Path) -> None:
    before, gone, text = told(ASKED, tmp_path)
    assert before
    assert not gone
    row = {"endpoint": "m/7", "outcome": "differs"}
    assert of(read(text), "gateway_mirrored_total", **row) == 1


ASKED = """
from tests.gateway.played_host import Processor, host_of
from transformer_serving.gateway.front_door import FrontDoor
from transformer_serving.gateway.requested_endpoint import RequestedEndpoint
from transformer_serving.gateway.rollout.mirror import Mirror
from transformer_serving.gateway.settings import read_settings
processor = Processor({"m": None, "m/7": None})
door = FrontDoor(host_of(processor), read_settings({}))
metrics = door._metrics
metrics._departed = Departed(lambda: now)
mirror = Mirror("a1", "m/7", "8", 0.25, 0.99)

def asked():
    with door._traffic.visit(RequestedEndpoint("m", "7"), 0.0) as visit:
        visit.answered("overloaded", 503)
    metrics.refused("overloaded", visit.told_of)
    page()
    return [key for key in keys() if '"m/7"' in key and "mirrored" not in key]

for number in range(100):
    door._serving.mirroring._count(mirror, "differs")
before = asked()
endpoint = processor._endpoints.pop("m/7")
golden("1", "m")
now += 3601
golden("1", "m")
gone = asked()
processor._endpoints["m/7"] = endpoint
door._serving.mirroring._count(mirror, "differs")
tell(before, gone, page())
"""


def test_what_ended_workers_counted_is_forgotten_too(tmp_path: Path) -> None:
    code = """
for number in range(300):
    answered(f"m/{number}")
answered("m")
durations.tell()
tell()
"""
    told(code, tmp_path)
    before, at_first, alone, after, text = told(ENDED, tmp_path)
    # An endpoint's own page, a worker that knows no endpoints yet and the hour all take nothing.
    assert before == at_first == alone > 300 * 100
    assert after < before / 200
    figures = read(text)
    assert of(figures, "texts_total", endpoint="m") == 1
    assert of(figures, "request_duration_seconds_count", endpoint="m", status="200", code="ok") == 1


ENDED = """
def ended():
    return sum('"endpoint": "m' in key for key in keys())

known = set()
page()
now += 3601
page()
at_first = ended()
known = {"m"}
page()
before = ended()
now += 3601
asyncio.run(metrics.text_of({"m"}))
alone = ended()
page()
tell(before, at_first, alone, ended(), page())
"""


def test_one_that_comes_back_within_the_hour_counts_on(tmp_path: Path) -> None:
    soon, late = (read(text) for text in told(BACK, tmp_path))
    row = {"endpoint": "m/1", "status": "200", "code": "ok"}
    for figures, number in ((soon, 2), (late, 1)):
        assert of(figures, "texts_total", endpoint="m/1") == number
        assert of(figures, "request_duration_seconds_count", **row) == number


BACK = """
def back_after(seconds):
    global now
    known.remove("m/1")
    golden("1", "m")
    gc.collect()
    now += seconds
    golden("1", "m")
    known.add("m/1")
    golden("1", "m", "m/1")
    answered("m/1")

known.add("m/1")
answered("m/1")
back_after(3599)
soon = page()
back_after(3601)
tell(soon, page())
"""


@pytest.mark.parametrize("known", [None, set()], ids=["not-told", "none"])
def test_who_knows_no_endpoints_misses_none(known: set[str] | None) -> None:
    now = 0.0
    departed = Departed(lambda: now)
    assert not departed.among({"m"}, {"m", "m/1", ""})
    now = 2 * HOUR
    assert not departed.among(known, {"m", "m/1", ""})
    assert departed.among({"m"}, {"m", "m/1", ""}) == {"m/1"}


class _Named:
    """Of an app that has every endpoint that it is asked for."""

    def name_of(self, target: RequestedEndpoint) -> str:
        return target.name


def test_traffic_lets_go_of_those_that_are_gone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    named: Any = _Named()
    traffic = Traffic(named)
    for number in range(300):
        with traffic.visit(RequestedEndpoint("m", str(number)), 0.0) as visit:
            visit.answered(None, 200)
        traffic.exemplars.note(f"m/{number}", "ok", 200, 0.1, "1" * 32)
    running = traffic.visit(RequestedEndpoint("m", "7"), 0.0)
    running.__enter__()
    traffic.forget({f"m/{number}" for number in range(300)})
    assert not traffic.exemplars._rows
    assert not traffic.durations._tallies
    # Somebody waits for one of them yet.
    assert traffic._running == {"m/7": 1}
    running.__exit__(None, None, None)
