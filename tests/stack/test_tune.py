"""`tune` on a real stack beside a served one: what it finds is served, what it started is gone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.triton_server import wait_until
from tests.stack.conftest import CLI, ROOT, Stack, started
from tests.stack.load import load
from tests.stack.small_bundles import TEXT, Parts, write_small
from transformer_serving.desk.bundle.folder import open_bundle
from transformer_serving.desk.env_file import read_env_file
from transformer_serving.desk.local.leftovers import leftovers
from transformer_serving.engine.backends.model_settings import available_cores
from transformer_serving.engine.proof.parity_set import read_parity_set

pytestmark = [pytest.mark.long, pytest.mark.spare]
NAME = "small"
QUICK = ("--lengths", "3-6", "--seconds", "0.1", "--clients", "4")
TURNED = ("--only", "buckets", "--only", "workers", "--from", "buckets=halved")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stack that serves a small bundle, which says how its engine must answer."""
    folder = tmp_path_factory.mktemp("tuned")
    with started(folder / "stack") as stack:
        bundle = write_small(folder / "bundle", Parts(parity=True))
        stack.run("deploy", str(bundle.folder), "--endpoint", NAME)
        yield stack


def tune_state(stack: Stack) -> Path:
    return stack.state / "tune" / "stack"


def nothing_runs(stack: Stack) -> bool:
    return not list(leftovers(tune_state(stack)))


def test_what_it_finds_is_a_bundle_that_is_served(served: Stack, tmp_path: Path) -> None:
    pids = {name: row["pid"] for name, row in served.parts().items()}
    output = tmp_path / "out" / "tuned"
    found = served.json("tune", NAME, *QUICK, *TURNED, "--output", str(output))
    assert nothing_runs(served)
    assert not tune_state(served).exists()
    assert {name: row["pid"] for name, row in served.parts().items()} == pids
    before, buckets, workers = found["races"]
    assert before["knob"] == "workers"
    counts = {count for count in (1, 2, 4, 8) if count <= available_cores()}
    for race, knob, values in (
        (buckets, "buckets", {"converted", "halved", "doubling"}),
        (workers, "workers", counts if len(counts) > 1 else set()),
    ):
        assert race["knob"] == knob
        assert {one["value"] for one in race["rivals"]} == values
        assert all(one["median"] > 0 and one["rounds"] >= 3 for one in race["rivals"])
    tuned = open_bundle(output)
    ladder = {"converted": (8, 16, 32), "halved": (8, 32), "doubling": (16, 32)}
    assert tuned.endpoint.tokens.buckets == ladder[found["setting"]["buckets"]]
    proof = read_parity_set((tuned.model_folder / "parity.json").read_bytes())
    assert proof.buckets == tuned.endpoint.tokens.buckets
    assert read_env_file(output.with_name("tuned.env")) == found["environment"]
    served.run("deploy", str(output), "--endpoint", NAME)
    assert served.seen(NAME, {"text": TEXT}).version == found["bundle_version"]


def test_it_is_refused_while_the_stack_has_traffic(served: Stack) -> None:
    with load(served.base, NAME, lambda: {"text": TEXT}, clients=1):
        said = served.run("tune", NAME, *QUICK, code=2)
    assert "was asked" in said
    assert "--anyway" in said
    assert not tune_state(served).exists()


def test_a_bundle_whose_answers_are_wrong_is_not_written(served: Stack, tmp_path: Path) -> None:
    """Trying it asks no parity set, and its golden request is of another length."""
    wrong = write_small(tmp_path / "wrong", Parts(scale=2.0, parity=True, wrong_at=16))
    output = tmp_path / "tuned"
    said = served.run(
        "tune", "wrong", "--bundle", str(wrong.folder), *QUICK, "--only", "precision",
        "--output", str(output), code=1,
    )  # fmt: skip
    assert "its engine's answers differ" in said
    assert not output.exists()
    assert nothing_runs(served)


def running(stack: Stack) -> subprocess.Popen[str]:
    """One that has its stack up and goes on."""
    command = [CLI, "tune", NAME, *QUICK, "--anyway", "--state", str(stack.state)]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    record = tune_state(stack) / "stack.json"

    def is_up() -> bool:
        assert process.poll() is None, process.communicate()[0]
        # What `up` writes last, and then the parts are started.
        serving = json.loads(record.read_text())["serving_id"] if record.is_file() else None
        return serving is not None and len(list(leftovers(tune_state(stack)))) >= 7

    wait_until(is_up, 120, lambda: f"{process.poll()}")
    return process


def test_ctrl_c_leaves_nothing_running_and_a_kill_is_cleaned_up_after(
    served: Stack, tmp_path: Path
) -> None:
    process = running(served)
    assert "another tune runs" in served.run("tune", NAME, *QUICK, "--anyway", code=2)
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=120)
    assert process.returncode == 1
    assert nothing_runs(served)
    assert not tune_state(served).exists()
    process = running(served)
    # With its `up`, which a kill of the command alone would let go on.
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=120)
    assert not nothing_runs(served)
    missing = ("--bundle", str(tmp_path / "none"))
    said = served.run("tune", NAME, *QUICK, "--anyway", *missing, code=2)
    assert "none" in said
    assert nothing_runs(served)
