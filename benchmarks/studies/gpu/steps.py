"""The steps as a table, and how they are run: each is stored when done, so that a run goes on."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from benchmarks.runs.results import write_json
from benchmarks.runs.rounds import reason
from benchmarks.servers import choice, machine
from benchmarks.servers.encoders import LARGE
from benchmarks.studies.gpu import engines, needs, stacks
from benchmarks.studies.gpu.step_process import OverLimit, StepProcess, limited
from transformer_serving.desk.step_report import StepReport

LIMIT_S = 8 * 60
# Of a step's process beyond its own limit, for what it started to end; then until it is killed.
_ENDING_S, _KILLED_S = 60, 30
SCHEMA = 1
DONE, MISSING, FAILED = "done", "missing", "failed"
_PACKAGES = ("tensorrt", "onnxruntime-gpu", "safetensors")

Found = dict[str, Any]


@dataclass(frozen=True)
class Step:
    """`needs` are names of needs.ALL; one that is not met is named, and the step is not run."""

    name: str
    title: str
    needs: tuple[str, ...]
    run: Callable[[StepReport], Any]


def facts(report: StepReport) -> Found:
    """The machine, and what it lacks of all that some step needs."""
    report("asking the machine")
    return {"lacks": needs.missing()}


def _parities() -> Iterator[Step]:
    needed = {"torch": ("engine torch",), "onnxruntime": ("torch",),
              "tensorrt": ("GPU", "torch on CUDA", "TensorRT")}  # fmt: skip
    for engine, wanted in needed.items():
        for precision in engines.precisions(engine):
            yield Step(
                f"parity-{engine}-{precision}", f"answers of {engine} {precision}", wanted,
                partial(engines.parity, engine, precision),
            )  # fmt: skip


def _engines() -> Iterator[Step]:
    rows = (("torch", "", ("engine torch",)),
            ("tensorrt", "tensorrt", ("GPU", "torch on CUDA", "TensorRT")),
            ("onnxruntime", "onnxruntime-cuda", ("GPU", "ONNX Runtime on CUDA")))  # fmt: skip
    for engine, backend, wanted in rows:
        for precision in engines.precisions(engine):
            yield Step(
                f"alone-{engine}-{precision}", f"{engine} {precision} alone", wanted,
                partial(engines.alone, engine, precision, backend),
            )  # fmt: skip


def _large() -> Iterator[Step]:
    """Of a GPU alone: 128 clients of a CPU would wait for half a minute each."""
    wanted = ("GPU", "torch on CUDA")

    def parity(report: StepReport) -> Found:
        return engines.parity("torch", engines.fastest("torch"), report, LARGE)

    def alone(report: StepReport) -> Found:
        return engines.alone("torch", engines.fastest("torch"), "", report, LARGE)

    for name, title, run in (
        ("parity-torch-large", "answers of a large encoder on engine torch", parity),
        ("alone-torch-large", "a large encoder on engine torch alone", alone),
        ("stack-torch-large", "the whole stack before a large encoder",
         partial(stacks.stack, encoder=LARGE)),
    ):  # fmt: skip
        yield Step(name, title, wanted, run)


STEPS = (
    Step("machine", "the machine", (), facts),
    *_parities(),
    *_engines(),
    Step("stack-torch", "the whole stack before engine torch", ("engine torch",), stacks.stack),
    *_large(),
    Step("overload-torch", "four times more than engine torch can do", ("engine torch",),
         stacks.overload),
    Step("workers-torch", "gateway workers that feed engine torch", ("engine torch",),
         stacks.workers),
    *(
        Step(
            f"image-{engine}", f"gateway and control plane before {engine} in the pinned image",
            wanted, partial(stacks.image, engine),
        )
        for engine, wanted in (
            ("tensorrt", ("GPU", "torch on CUDA", "TensorRT", "Triton image")),
            ("onnxruntime", ("GPU", "torch", "Triton image")),
        )
    ),
)  # fmt: skip

NAMES = tuple(step.name for step in STEPS)


def chosen(names: Sequence[str]) -> list[Step]:
    """The steps of these names, all without any. Raises Failure (2)."""
    return choice.chosen("step", names, {step.name: step for step in STEPS}) or list(STEPS)


def run_step(step: Step, folder: Path, report: StepReport, limit_s: float = LIMIT_S) -> Found:
    """Run one, here, and store what it found; whatever it raises is stored as its failure."""
    begun, around = time.monotonic(), provenance()
    state, values = DONE, None
    report(f"{step.name}: {step.title}")
    try:
        with limited(limit_s, report) as told:
            values = step.run(told)
    except (Exception, OverLimit) as error:
        # A step that fails must not cost the others, nor what is stored of them.
        state = FAILED
        values = reason(error) if isinstance(error, Exception) else str(error)
        report(f"{step.name}: failed: {values}")
    return _store(step, folder, state, (), values, time.monotonic() - begun, around)


def _store(
    step: Step, folder: Path, state: str, lacks: Sequence[str], values: Any, seconds: float,
    around: Found,
) -> Found:  # fmt: skip
    """`around` is provenance() as it was before the step."""
    found = {
        "schema": SCHEMA,
        "step": step.name,
        "title": step.title,
        "state": state,
        "lacks": list(lacks),
        "values": values,
        "seconds": round(seconds, 1),
        **around,
    }
    write_json(folder / f"{step.name}.json", found)
    return found


def provenance() -> Found:
    """What a figure depends on, and what decides whether a stored step still holds."""
    found = machine.provenance()
    return {
        **found,
        "gpu": [{"name": one.name, "driver": one.driver, "capability": one.compute_capability}
                for one in needs.ask_gpus().gpus],
        "versions": {**found["versions"], **machine.packages(_PACKAGES)},
    }  # fmt: skip


def stored(step: Step, folder: Path) -> Found | None:
    path = folder / f"{step.name}.json"
    try:
        found: Found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return found if found.get("schema") == SCHEMA else None


def all_stored(folder: Path) -> list[Found]:
    """In the table's order."""
    return [found for step in STEPS if (found := stored(step, folder)) is not None]


def still_holds(found: Found | None) -> bool:
    """Whether a stored step is of this very code, on this GPU and processor, and ended well."""
    if found is None or found["state"] != DONE or not machine.is_exact(found["commit"]):
        return False
    now = provenance()
    same = all(found[key] == now[key] for key in ("commit", "gpu", "versions"))
    return same and found["machine"]["cpu"] == now["machine"]["cpu"]


def run_all(steps: Sequence[Step], folder: Path, report: StepReport, *, again: bool) -> list[Found]:
    """Every step in a process of its own, so that none holds another one's GPU memory, and none
    that ends its process costs those behind it. What the machine lacks is asked once."""
    lacks = cache(needs.lack)
    results = []
    for step in steps:
        found = stored(step, folder)
        if found is not None and not again and still_holds(found):
            report(f"{step.name}: stored {found['date']}")
        elif lacking := [said for name in step.needs if (said := lacks(name)) is not None]:
            report(f"{step.name}: not here: {'; '.join(lacking)}")
            found = _store(step, folder, MISSING, lacking, None, 0.0, provenance())
        else:
            found = _in_a_process(step, folder, report)
        results.append(found)
    return results


def _in_a_process(step: Step, folder: Path, report: StepReport) -> Found:
    """What was stored of the step before stays where this is broken off."""
    begun, around = time.monotonic(), provenance()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".", dir=folder) as fresh:
        command = [sys.executable, "-m", "benchmarks", "check-gpu", "--here", "--out", fresh]
        process = StepProcess([*command, "--step", step.name])
        said = "its process ended with {} and stored nothing"
        try:
            if process.wait(LIMIT_S + _ENDING_S) is None:
                report(f"{step.name}: does not end, and is ended")
                said = f"it took more than {LIMIT_S:g} s and did not end; "
                said += "its process ended with {}"
        finally:
            status = process.end(_KILLED_S)
        if stored(step, Path(fresh)) is None:
            seconds = time.monotonic() - begun
            return _store(step, folder, FAILED, (), said.format(status), seconds, around)
        name = f"{step.name}.json"
        os.replace(Path(fresh) / name, folder / name)
    found = stored(step, folder)
    assert found is not None
    return found
