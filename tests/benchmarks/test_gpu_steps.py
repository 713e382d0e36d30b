"""The steps of check-gpu: what is missing is named, what fails is stored, what is done is kept."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from benchmarks.report import gpu_page
from benchmarks.runs.raw_engine import mixed_calls
from benchmarks.runs.runners import Plan
from benchmarks.servers import encoders, machine
from benchmarks.studies.gpu import engines, needs, stacks, steps
from benchmarks.studies.gpu.steps import DONE, FAILED, MISSING, Step, run_step
from tests.stand_in import nvidia_smi
from transformer_serving.desk.demo import kept
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.parity.check import ParityReport
from transformer_serving.engine.backends.executor import Graph
from transformer_serving.engine.backends.model_settings import TensorSpec


def quiet(line: str) -> None:
    """Nothing is said in a test."""


def step(run: Any, *wanted: str) -> Step:
    return Step("one", "a step", wanted, run)


def test_what_is_missing_is_named_and_nothing_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(needs.ALL, "GPU", lambda: "an NVIDIA GPU")
    [found] = steps.run_all([step(None, "GPU")], tmp_path, quiet, again=True)
    assert (found["state"], found["lacks"]) == (MISSING, ["an NVIDIA GPU"])
    assert steps.stored(step(None), tmp_path) == found


def test_engine_torch_is_not_measured_on_the_cpu_of_a_machine_with_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_name = {one.name: one for one in steps.STEPS}
    served = [by_name[f"{name}-torch"] for name in ("stack", "overload", "workers")]
    served += [one for name, one in by_name.items() if name.startswith(("alone-t", "parity-t"))]

    def lacks() -> list[list[str]]:
        return [[said for need in one.needs if (said := needs.ALL[need]())] for one in served
                if "tensorrt" not in one.name and "large" not in one.name]  # fmt: skip

    smi = Smi(tmp_path, monkeypatch)
    sees_none = "print('2.13.0+cpu', False, 'built for CUDA None')"
    monkeypatch.setattr(needs, "_ASK_TORCH", sees_none)
    for script in ("exit 0", "echo 'No devices were found'; exit 6"):
        smi.says(script)
        assert not any(lacks())
    smi.says("echo 'NVIDIA H200, 580.159, 9.0'")
    assert all(said.startswith("a torch that sees the GPU") for one in lacks() for said in one)
    assert all(lacks())


class Smi:
    """An nvidia-smi in front of all others, which counts how often it is asked."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder, self._asked = folder, folder / "asked"
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def says(self, script: str) -> None:
        nvidia_smi(self._folder, f"echo >> {self._asked}\n{script}")
        self._asked.unlink(missing_ok=True)
        needs.ask_gpus.cache_clear()

    @property
    def times(self) -> int:
        return len(self._asked.read_text().splitlines())


@pytest.fixture(autouse=True)
def machine_is_asked_anew() -> Iterator[None]:
    yield
    needs.ask_gpus.cache_clear()


@pytest.mark.parametrize("sees", [True, False])
def test_an_nvidia_smi_that_does_not_answer_is_no_machine_without_a_gpu(
    sees: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(needs, "_ASK_TORCH", f"print('2.13.0', {sees}, 'built for CUDA 13.0')")
    smi = Smi(tmp_path, monkeypatch)
    smi.says("echo 'Failed to initialize NVML' >&2; exit 18")
    said = "an NVIDIA GPU: nvidia-smi ended with 18: Failed to initialize NVML"
    assert (needs.gpu(), needs.engine_torch()) == (said, said)
    smi.says("exec sleep 600")
    monkeypatch.setattr(needs, "_SMI_S", 1)
    assert "did not answer within 1 s; let the driver stay loaded: nvidia-smi -pm 1" in str(
        needs.engine_torch()
    )


def test_a_gpu_that_torch_alone_sees_is_not_measured_as_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(needs, "_ASK_TORCH", "print('2.13.0', True, 'built for CUDA 13.0')")
    Smi(tmp_path, monkeypatch).says("exit 0")
    said = "an NVIDIA GPU: nvidia-smi names none, and torch sees one"
    assert needs.engine_torch() == said


def test_nvidia_smi_is_asked_once_for_all_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    smi = Smi(tmp_path, monkeypatch)
    smi.says("echo 'NVIDIA H200, 580.159, 9.0'")
    monkeypatch.setattr(machine, "commit", lambda: "abc")
    kept = step(lambda report: {"texts": 1}, "GPU")
    found = run_step(kept, tmp_path, quiet)
    gpu = {"name": "NVIDIA H200", "driver": "580.159", "capability": "9.0"}
    assert (found["gpu"], found["state"]) == ([gpu], DONE)
    assert steps.run_all([kept], tmp_path, quiet, again=False) == [found]
    assert smi.times == 1


def test_a_step_that_fails_or_takes_too_long_is_stored_with_its_reason(tmp_path: Path) -> None:
    def broken(report: Any) -> None:
        raise RuntimeError("out of memory")

    closed: list[str] = []

    def slow(report: Any) -> None:
        try:
            time.sleep(30)
        finally:
            closed.append("stack")

    found = run_step(step(broken), tmp_path, quiet)
    assert (found["state"], found["values"]) == (FAILED, "RuntimeError: out of memory")
    found = run_step(step(slow), tmp_path, quiet, limit_s=0.2)
    assert (found["state"], closed) == (FAILED, ["stack"])
    assert "more than 0.2 s" in found["values"]
    assert steps.stored(step(None), tmp_path) == found


def test_times_of_a_stack_that_refused_are_left_out() -> None:
    def measure(peer: Any, load: Any) -> dict[str, Any]:
        refuses = load.name == "seed" and peer.name == "gateway"
        figures = {"texts": 100.0, "p50": 3.0, "cpu_us": 50.0, "requests": 200}
        return {**figures, "failed": 40 if refuses else 0}

    bundle = SimpleNamespace(manifest=SimpleNamespace(precision="bf16"))
    session: Any = SimpleNamespace(
        runner=SimpleNamespace(plan=SimpleNamespace(rounds=2), measure=measure, engines={}),
        site=SimpleNamespace(models=SimpleNamespace(bundles={"torch_text": bundle})),
    )
    found = stacks.loaded(session, stacks.peers("torch_text"), quiet)["loads"]
    assert found["seed"]["gateway"] == {"texts": 100.0, "failed": 40.0}
    assert found["single"]["gateway"]["cpu_us"] == 50.0


# torch says which of its precisions is the fastest.
@pytest.mark.slow
def test_a_step_starts_no_gateway_but_that_which_it_measures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[Any] = []

    def session(peers: Any, *_: Any, **__: Any) -> Any:
        started.extend(peer.server for peer in peers if peer.server)
        return nullcontext()

    monkeypatch.setattr(stacks, "bundle_of", lambda *_: None)
    monkeypatch.setattr(stacks, "session", session)
    with stacks.opened(quiet, replace(encoders.MINILM, folder=lambda report: Path())):
        assert started == []


def test_a_stored_step_holds_on_this_machine_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "commit", lambda: "abc")
    found = run_step(step(lambda report: {"texts": 1}), tmp_path, quiet)
    assert found["state"] == DONE
    assert steps.still_holds(steps.stored(step(None), tmp_path))
    other = [{"name": "NVIDIA A10", "driver": "560", "capability": "8.6"}]
    assert not steps.still_holds({**found, "gpu": other})
    assert not steps.still_holds({**found, "commit": "another"})
    other_torch = {**found["versions"], "torch": "2.11.0"}
    assert not steps.still_holds({**found, "versions": other_torch})
    assert not steps.still_holds({**found, "state": FAILED})
    (tmp_path / "one.json").write_text("{half")
    assert not steps.still_holds(steps.stored(step(None), tmp_path))


@pytest.mark.parametrize("commit", ["abc+", "unknown"])
def test_a_step_of_code_without_a_commit_of_its_own_never_holds(
    commit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "commit", lambda: commit)
    found = run_step(step(lambda report: {"texts": 1}), tmp_path, quiet)
    assert (found["state"], found["commit"]) == (DONE, commit)
    assert not steps.still_holds(found)


def test_a_step_is_of_the_code_that_it_began_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(report: Any) -> None:
        monkeypatch.setattr(machine, "commit", lambda: "later")

    monkeypatch.setattr(machine, "commit", lambda: "at first")
    assert run_step(step(run), tmp_path, quiet)["commit"] == "at first"


def test_steps_have_names_of_their_own_and_known_needs() -> None:
    names = [one.name for one in steps.STEPS]
    assert len(set(names)) == len(names)
    assert {name for one in steps.STEPS for name in one.needs} <= set(needs.ALL)
    with pytest.raises(Failure, match="no step 'stak'; there are machine,"):
        steps.chosen(["stak"])
    assert [one.name for one in steps.chosen(["stack-torch"])] == ["stack-torch"]


def graph_only() -> Any:
    specs = tuple(TensorSpec(name, "int32", (-1, -1)) for name in ("input_ids", "attention_mask"))
    return type("Loaded", (), {"graph": Graph(specs, ())})()


@given(st.lists(st.integers(1, 256), min_size=1, max_size=80))
def test_mixed_texts_are_all_there_with_their_lengths(lengths: list[int]) -> None:
    for pads in (engines.PADS, engines.PADS[-1:]):
        calls = list(mixed_calls(graph_only(), lengths, pads))
        found = [int(one) for call in calls for one in call["attention_mask"].sum(1)]
        assert sorted(found) == sorted(lengths)
        assert all(call["input_ids"].shape[1] in pads for call in calls)
        for call in calls:
            assert np.array_equal(call["input_ids"] > 0, call["attention_mask"] > 0)


def stored(name: str, values: Any, **changes: Any) -> dict[str, Any]:
    return {
        "step": name, "state": DONE, "lacks": [], "values": values, "gpu": [],
        "date": "2026-11-24 21:00 UTC", "commit": "abc",
        "machine": {"cpu": "AMD EPYC", "cores": 2}, "versions": {"torch": "2.13.0+cpu"},
        **changes,
    }  # fmt: skip


def test_the_page_says_what_was_run_where_and_what_was_not() -> None:
    parity = {"engine": "torch", "precision": "bf16", "difference": 0.012, "tolerance": 0.03,
              "cosine": 0.9999}  # fmt: skip
    load = {"texts": 100.0, "p50": 3.0, "p99": 9.0, "cpu_us": 500.0, "triton_us": 60.0}
    stack = {
        "precision": "bf16", "titles": {"seed": "128 clients"}, "failed": {"gateway": "it is gone"},
        "loads": {"seed": {"gateway": load, "raw-padded": {"texts": 200.0, "p50": 1.0},
                           "raw-paused": {"texts": 9.0, "p50": 1.25}}},
    }  # fmt: skip
    alone = {"1x16": {"mean": 1.5, "rate": 660.0}}
    page = gpu_page.text(
        [
            stored("parity-torch-bf16", parity),
            stored("parity-torch-fp16", {**parity, "refused": "beyond the tolerance"}),
            stored("parity-onnxruntime-fp32", {**parity, "engine": "onnxruntime"}),
            stored("alone-torch-bf16", alone),
            stored("stack-torch", stack),
            stored("image-tensorrt", None, state=MISSING, lacks=["the image", "a GPU"]),
            stored("overload-torch", "Unusable: ab", state=FAILED),
        ],
        steps.NAMES,
    )
    assert "**no GPU: what follows is this machine's CPU" in page
    assert "| `image-tensorrt` | missing | the image; a GPU |" in page
    assert "| `overload-torch` | failed | Unusable: ab |" in page
    assert "| torch | bf16 | 1.2e-02 of 3e-02 | 0.999900 |" in page
    assert "refused: beyond the tolerance" in page
    assert "| onnxruntime, on the CPU | bf16 |" in page
    assert "| `workers-torch` | not run |" in page
    assert "| torch bf16 | 1.50 (660) |" in page
    assert (
        "| 128 clients | 100 | 3.0 | 9.0 | 200 | 1.0 | 1.2 | 0.50 | 500 | 60.0 | - | - | - |"
        in page
    )
    assert "| its p50 ms | after pauses of 2 ms | share |" in page
    assert "could take" not in page
    assert "gateway: it is gone." in page
    gpu = [{"name": "NVIDIA A10", "driver": "560.35", "capability": "8.6"}]
    page = gpu_page.text([stored("machine", {"lacks": {}}, gpu=gpu)], ["machine"])
    assert "NVIDIA A10, driver 560.35, compute capability 8.6" in page
    assert "no GPU" not in page
    assert "BERT large" not in page
    assert "Every step was run." in page
    assert gpu_page.text([], steps.NAMES) == gpu_page.NONE


def test_figures_of_another_machine_or_commit_stand_below_its_name() -> None:
    def of(gpu: str, name: str, rate: float, **changes: Any) -> dict[str, Any]:
        there = [{"name": gpu, "driver": "580", "capability": "9.0"}]
        return stored(name, {"1x16": {"mean": 1.0, "rate": rate}}, gpu=there, **changes)

    page = gpu_page.text(
        [
            of("H200", "alone-torch-bf16", 1111), of("H100", "alone-torch-fp16", 2222),
            of("H200", "alone-torch-fp32", 3333), of("H200", "alone-torch-large", 4, commit="def"),
        ],
        [*steps.NAMES[:3], "alone-torch-bf16"],
    )  # fmt: skip
    parts = page.split("2026-11-24 21:00 UTC to ")[1:]
    assert ["commit abc: H200" in parts[0], "(1111)" in parts[0], "(3333)" in parts[0]] == [
        True
    ] * 3
    assert ["commit abc: H100" in parts[1], "(2222)" in parts[1]] == [True] * 2
    assert ["commit def: H200" in parts[2], "(4)" in parts[2]] == [True] * 2
    assert page.count("| not run |") == parts[0].count("| not run |") == 3
    assert "Every step was run." not in page


def test_the_page_says_what_is_slower_than_it_might_be() -> None:
    said = {"remarks": ["nothing more is recorded as a CUDA graph: an error\nof two lines."]}
    alone = {"1x16, padded": {"mean": 1.5, "rate": 660.0}, **said}
    stack = {"precision": "bf16", "titles": {}, "failed": {}, "loads": {}, **said}
    page = gpu_page.text(
        [stored("alone-torch-fp32", alone), stored("stack-torch", stack)], ["stack-torch"]
    )
    line = "nothing more is recorded as a CUDA graph: an error of two lines."
    assert f"\n\ntorch fp32: {line}\n" in page
    assert page.endswith(f"\n\nthe engine alone: {line}")
    assert "| engine | 1x16, padded |" in page


def test_the_page_says_that_engines_alone_are_not_called_alike() -> None:
    alone = {"1x16": {"mean": 1.5, "rate": 660.0}}
    steps = [stored(f"alone-{one}", alone) for one in ("torch-bf16", "torch-fp16", "tensorrt-fp16")]
    said = "one's row says nothing of another's."
    assert said not in gpu_page.text(steps[:2], ["alone-torch-bf16"])
    assert said in gpu_page.text(steps, ["alone-torch-bf16"])


def test_the_page_says_which_parts_end_a_crowds_load() -> None:
    load = {"texts": 3493.0, "p50": 39.0, "p99": 85.0, "cpu_us": 667.0, "triton_us": 37.0,
            "engine_us": 135.0, "load_us": 60.0, "texts_a_call": 7.48}  # fmt: skip
    loads = {"seed": {"gateway": load, "raw-padded": {"texts": 67226.0, "p50": 0.9}}}
    stack = {"precision": "bf16", "titles": {"seed": "128 clients"}, "failed": {}, "workers": 8,
             "loads": loads}  # fmt: skip
    gpu = [{"name": "NVIDIA H200", "driver": "580", "capability": "9.0"}]
    page = gpu_page.text([stored("stack-torch", stack, gpu=gpu)], ["stack-torch"])
    assert "| 667 | 37.0 | 135 | 60.0 | 7.5 |" in page
    assert "server µs of all 8 workers, those that only wait included" in page
    assert "the gateway's 8 workers at 667 µs: 11994, 0.18 of it" in page
    assert "the engine's process, one thread at 135 µs: 7407, 0.11 of it" in page
    assert "the sender, one thread at 60 µs: 16667, 0.25 of it" in page


def test_the_page_shows_overload_that_an_earlier_commit_has_stored() -> None:
    row = {"deadline": "none", "capacity": 850.0, "offered": 3400.0, "least": 0.94, "p99": 210.4,
           "after_ms": 9.0, "generator_cpu": 0.31}  # fmt: skip
    before = stored("overload-torch", {"rows": [row]})
    now = {"model": "MiniLM", "text": "one short text", "workers": 4,
           "rows": [{**row, "calm_generator_cpu": 0.12}]}  # fmt: skip
    pages = [
        gpu_page.text([found], ["overload-torch"])
        for found in (before, stored("overload-torch", now))
    ]
    assert "\n\nOverload, engine torch:\n\n" in pages[0]
    assert "| none | 850 | 3400 | 0.94 | 210 | 9.0 | - | 0.31 |" in pages[0]
    one = "Overload, engine torch before MiniLM, one short text a request, 4 gateway workers:"
    assert f"\n\n{one}\n\n" in pages[1]
    assert "| none | 850 | 3400 | 0.94 | 210 | 9.0 | 0.12 | 0.31 |" in pages[1]


def test_the_page_says_which_model_is_the_large_one() -> None:
    parity = {"model": "large", "engine": "torch", "precision": "bf16", "difference": 0.001,
              "tolerance": 0.03, "cosine": None}  # fmt: skip
    page = gpu_page.text([stored("parity-torch-large", parity)], ["parity-torch-large"])
    assert "; large: a BERT large classifier of random weights, 335 million numbers." in page
    assert "| torch, large | bf16 | 1.0e-03 of 3e-02 |" in page
    missing = stored("parity-torch-large", None, state=MISSING, lacks=["a GPU"])
    assert "BERT large" not in gpu_page.text([missing], ["parity-torch-large"])


def test_each_encoder_has_loads_of_its_own() -> None:
    for encoder in (encoders.MINILM, encoders.LARGE):
        names = [load.name for load in stacks.chosen_loads(encoder)]
        assert len(set(names)) == len(names) == 4


def test_a_bundle_of_other_code_or_another_torch_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []
    worst: Any = None
    found = ParityReport("transformers", "bf16", 1, 16, 0.0, 0.03, None, None, worst)

    def convert(request: Any, target: Path, told: Any) -> Any:
        target.mkdir()
        (target / "endpoint.json").write_text("{}")
        made.append(target)
        return SimpleNamespace(parity=found)

    def there(target: Path, names: Any) -> bool:
        return all((target / name / "endpoint.json").is_file() for name in names)

    monkeypatch.setattr(engines, "BUNDLES", tmp_path / "bundles")
    monkeypatch.setattr(engines, "convert", convert)
    monkeypatch.setattr(engines, "open_bundle", lambda folder: folder)
    monkeypatch.setattr(kept, "_intact", there)
    source = tmp_path / "source"
    source.mkdir()
    encoder = replace(encoders.MINILM, folder=lambda report: source)

    def times() -> int:
        """How often it is made by a step that asks for it twice."""
        before = len(made)
        for _ in range(2):
            given: Any = engines.bundle_of("torch", "bf16", quiet, encoder)
            assert given == made[-1]
        return len(made) - before

    assert times() == 1
    assert engines.parity("torch", "bf16", quiet, encoder)["texts"] == 1
    assert times() == 0
    monkeypatch.setattr(machine, "packages", lambda names: {"torch": "2.11.0"})
    assert times() == 1
    # There is no bundle to be written again with the same model.
    monkeypatch.setattr(kept, "packing_hash", lambda: "other code")
    assert times() == 1
    (source / "weights").write_bytes(b"others")
    assert times() == 1


@pytest.mark.long
@pytest.mark.by_hand
def test_an_encoder_of_a_size_goes_through_the_large_steps(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On a CPU, with a small one in the large one's place."""
    for module in (encoders, engines, stacks):
        monkeypatch.setattr(module, "BUILD", tmp_path)
    monkeypatch.setattr(engines, "BUNDLES", tmp_path / "bundles")
    monkeypatch.setattr(stacks, "_PLAN", Plan(0.5, 1, warm_up_s=0.2, idle_within_s=0.0))
    folder = partial(encoders.made, "small", encoders.Size(layers=2, width=64))
    small = replace(encoders.LARGE, folder=folder)
    found = engines.parity("torch", "fp32", quiet, small)
    assert found["model"] == "large"
    assert found["difference"] <= found["tolerance"]
    assert folder(quiet) == folder(quiet)
    stack = stacks.stack(quiet, small)
    assert stack["failed"] == {}
    assert set(stack["loads"]) == {load.name for load in stacks.chosen_loads(small)}
    passages = stack["loads"]["passages"]
    assert passages["gateway"]["texts"] > 0
    assert passages["raw-padded"]["texts"] > 0
