"""What a proof is of, where it is kept, and the page that shows it."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import urllib.error
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.engine.serving import ListedEndpoints, write_bundle
from tests.stand_in import names, nvidia_smi
from transformer_serving.contract.gate.server_facts import NO_DEVICE, Gpu
from transformer_serving.engine.controller.figures import Figure, TritonFigures, read_figures
from transformer_serving.engine.controller.metrics import MetricsPage
from transformer_serving.engine.controller.metrics_server import parse_address, serve_metrics
from transformer_serving.engine.controller.proving import (
    gpus as gpus_module,
    proofs as kept,
    refusal_line as lines,
)
from transformer_serving.engine.controller.proving.gpus import UNKNOWN, Gpus
from transformer_serving.engine.controller.proving.machine import Machine, read_machine
from transformer_serving.engine.controller.proving.proofs import Passed, Proofs
from transformer_serving.engine.controller.proving.prover import subject_of
from transformer_serving.engine.controller.records import Kind
from transformer_serving.engine.controller.status import EndpointStatus
from transformer_serving.engine.errors import EngineError
from transformer_serving.engine.model_config import ModelConfig, from_text

MACHINE = Machine(
    "a processor", "f", "2.51.0", (("onnxruntime", "1.31.1"), ("openvino", "2026.4.1")), (), ()
)


def passed(key: str, at: float = 1.0) -> Passed:
    return Passed(key, 101, at, 2.5, 1e-4, None)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("processor", "another"),
        ("features", "g"),
        ("triton", "2.52.0"),
        ("runtimes", (("onnxruntime", "1.31.1"), ("openvino", "2026.5.0"))),
        ("switches", (("ONEDNN_MAX_CPU_ISA", "AVX2"),)),
        ("gpus", (Gpu("a GPU", "560.35", "9.0"),)),
    ],
)
def test_a_proof_is_of_one_machine(field: str, value: Any) -> None:
    other = dataclasses.replace(MACHINE, **dict[str, Any]({field: value}))
    assert other.key("s", "openvino_text") != MACHINE.key("s", "openvino_text")


def test_another_runtime_is_none_of_its_business() -> None:
    runtimes = (("onnxruntime", "1.32.0"), ("openvino", "2026.4.1"))
    other = dataclasses.replace(MACHINE, runtimes=runtimes)
    assert other.key("s", "openvino_text") == MACHINE.key("s", "openvino_text")
    assert other.key("s", "onnxruntime") != MACHINE.key("s", "onnxruntime")
    gpus = [(Gpu("a GPU", *rest),) for rest in (("560.35", "9.0"), ("570.1", "9.0"))]
    keys = {dataclasses.replace(MACHINE, gpus=one).key("s", "tensorrt") for one in gpus}
    assert len(keys) == 2


def test_this_machine_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = read_machine("2.51.0", tmp_path)
    assert before.processor != "unknown processor"
    assert before == read_machine("2.51.0", tmp_path)
    assert dict(before.runtimes).keys() >= {"openvino", "onnxruntime"}
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert ("ONEDNN_MAX_CPU_ISA", "AVX2") in read_machine("2.51.0", tmp_path).switches


A10 = Gpu("NVIDIA A10", "560.35.03", "8.6")
FAILS = "echo 'Unable to determine the device handle' >&2\nexit 255"


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Writes the nvidia-smi that is found."""
    folder = tmp_path / "bin"
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return partial(nvidia_smi, folder)


def gpus_of(proofs: Path) -> Gpus:
    """Of a controller that has just been started over these proofs."""
    return Gpus(Proofs(proofs))


def test_a_machine_keeps_its_gpus_where_they_cannot_be_asked(
    tmp_path: Path, smi: Callable[[str], Path]
) -> None:
    """As another machine it would prove anew all that it serves, after a restart as well."""
    path = tmp_path / "proofs.json"
    smi(names(A10))
    gpus = gpus_of(path)
    before = read_machine("2.51.0", tmp_path, gpus.read)
    assert before.gpus == (A10,)
    Proofs(path).add(passed(before.key("s", "torch_text")))
    smi(FAILS)
    assert read_machine("2.51.0", tmp_path, gpus.read) == before
    after = read_machine("2.51.0", tmp_path, gpus_of(path).read)
    assert Proofs(path).get(after.key("s", "torch_text")) is not None
    # That it finds no device is no failure.
    smi(f"exit {NO_DEVICE}")
    assert gpus_of(path).read(os.environ) == ()


def test_a_machine_that_had_no_gpu_may_have_one_where_nvidia_smi_fails(
    tmp_path: Path, smi: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its driver was loaded later: proofs would hold for the processor."""
    monkeypatch.setattr(gpus_module, "_PATIENCE_S", 0.0)
    path = tmp_path / "proofs.json"
    smi(f"exit {NO_DEVICE}")
    assert gpus_of(path).read(os.environ) == ()
    smi(FAILS)
    assert gpus_of(path).read(os.environ) == (UNKNOWN,)


def test_an_nvidia_smi_that_hangs_is_waited_for_once(
    tmp_path: Path,
    smi: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """And for less where the GPUs are known: a Triton that crashed gets its models after that."""
    for name, seconds in (("_SMI_S", 0.2), ("_PATIENCE_S", 0.2), ("_KNOWN_S", 0.1)):
        monkeypatch.setattr(gpus_module, name, seconds)
    path = tmp_path / "proofs.json"
    smi("exec sleep 600")
    for seconds in (0.2, 0.1):
        assert gpus_of(path).read(os.environ) == (UNKNOWN,)
        assert f"nvidia-smi did not answer within {seconds} s" in caplog.messages[-1]


def test_without_nvidia_smi_a_machine_has_no_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpus_of(tmp_path / "proofs.json").read(os.environ) == ()


def test_gpus_that_were_never_told_are_asked_for_again_and_then_others_than_none(
    tmp_path: Path, smi: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "proofs.json"
    smi(FAILS)
    monkeypatch.setattr(gpus_module, "_PATIENCE_S", 3600.0)
    first = gpus_of(path)
    for _ in range(2):
        with pytest.raises(EngineError, match=r"ended with 255: Unable .*; asked again"):
            first.read(os.environ)
    monkeypatch.setattr(gpus_module, "_PATIENCE_S", 0.0)
    assert first.read(os.environ) == (UNKNOWN,)
    # What is known to fail costs the next start no time; what is told then counts.
    monkeypatch.setattr(gpus_module, "_PATIENCE_S", 3600.0)
    assert gpus_of(path).read(os.environ) == (UNKNOWN,)
    smi(names(A10))
    assert gpus_of(path).read(os.environ) == (A10,)
    smi(FAILS)
    assert gpus_of(path).read(os.environ) == (A10,)


def test_gpus_are_those_of_one_start_of_the_machine(
    tmp_path: Path, smi: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder may have come to another one, with proofs of GPUs that this one has not."""
    path, boot = tmp_path / "proofs.json", tmp_path / "boot_id"
    monkeypatch.setattr(gpus_module, "_BOOT", boot)
    monkeypatch.setattr(gpus_module, "_PATIENCE_S", 0.0)
    boot.write_text("one\n")
    smi(names(A10))
    gpus_of(path).read(os.environ)
    smi(FAILS)
    assert gpus_of(path).read(os.environ) == (A10,)
    boot.write_text("another\n")
    assert gpus_of(path).read(os.environ) == (UNKNOWN,)
    # A kernel that does not say it: of one process then.
    boot.unlink()
    smi(names(A10))
    gpus = gpus_of(path)
    gpus.read(os.environ)
    smi(FAILS)
    assert gpus.read(os.environ) == (A10,)
    assert gpus_of(path).read(os.environ) == (UNKNOWN,)


def test_a_subject_is_the_files_and_what_the_answers_depend_on(tmp_path: Path) -> None:
    folder = write_bundle(tmp_path / "a", 101, parity=True)
    config = from_text((folder / "config.pbtxt").read_text())
    before = subject_of(folder, config)

    def changed(**parameters: str) -> ModelConfig:
        copy = from_text((folder / "config.pbtxt").read_text())
        for key, value in parameters.items():
            copy.parameters[key].string_value = value
        return copy

    assert subject_of(folder, changed(intra_op_thread_count="4", num_streams="2")) == before
    assert subject_of(folder, changed(precision="bf16")) != before
    tuned = changed()
    tuned.instance_group[0].count = 2
    assert subject_of(folder, tuned) == before
    # A proof asks no larger calls than there may be.
    tuned.max_batch_size = 4
    assert subject_of(folder, tuned) != before
    other = write_bundle(tmp_path / "b", 101, parity=True, wrong_at=8)
    assert subject_of(other, config) != before
    assert subject_of(write_bundle(tmp_path / "c", 101), config) == ""


def test_proofs_are_kept_bounded_and_unreadable_ones_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "MOST", 3)
    path = tmp_path / "proofs.json"
    proofs = Proofs(path)
    for key in ("a", "b", "c", "a", "d"):
        proofs.add(passed(key))
    again = Proofs(path)
    assert [key for key in "abcd" if again.get(key)] == ["a", "c", "d"]
    # What serves is asked for, however long ago it was proven.
    assert again.get("a") == passed("a")
    again.add(passed("e"))
    again.add(passed("f"))
    assert [key for key in "acdef" if again.get(key)] == ["a", "e", "f"]
    assert again.get("a") == passed("a")
    assert [entry.name for entry in tmp_path.iterdir()] == ["proofs.json"]
    values = json.loads(path.read_text())
    path.write_text(json.dumps({"passed": [row | {"later": 1} for row in values["passed"]]}))
    assert Proofs(path).get("a") == passed("a")
    assert Proofs(path).gpus("a boot") is None
    again.keep_gpus((A10,), "a boot")
    assert (Proofs(path).get("a"), Proofs(path).gpus("a boot")) == (passed("a"), (A10,))
    for content in ("{", '{"passed": [{}]}', "[]"):
        path.write_text(content)
        assert Proofs(path).get("a") is None
        assert Proofs(path).gpus("a boot") is None


def test_a_folder_that_cannot_be_written_costs_the_next_start_a_proof(tmp_path: Path) -> None:
    proofs = Proofs(tmp_path / "absent" / "proofs.json")
    proofs.add(passed("a"))
    assert proofs.get("a") is not None


def test_a_refusal_is_told_to_the_one_who_deployed_it() -> None:
    line = lines.refusal_line("a/b: c", "0af", "at 32 tokens:\n any batch")
    assert lines.refusal_in(line, "0af") == "at 32 tokens: any batch"
    assert lines.refusal_in(line, "0a") is None
    assert lines.refusal_in("x: ready bundle 1 (refused)", "0af") is None


def row(endpoint: str, **values: object) -> EndpointStatus:
    return EndpointStatus(
        **{
            **{"endpoint": endpoint, "model": "m", "bundle_version": 1, "verified": True},
            **{"backend": "onnxruntime", "ready": True, "reason": None, "reason_since": None},
            **{"versions_loaded": (1,), "model_id": "x", "since": 0.0},
            **{"proof": "proven", "proof_of": 1},
            **values,
        }  # type: ignore[arg-type]
    )


# As Triton writes it; of version 1 the process was killed, and another model is not ours.
_TRITONS = """\
# HELP transformer_serving_generation_cache_use Part of the cache's blocks
# TYPE transformer_serving_generation_cache_use gauge
transformer_serving_generation_cache_use{model="text",version="2"} 0.1
transformer_serving_generation_cache_use{model="text",version="1"} 0.95
transformer_serving_generation_cache_use{model="gone",version="2"} 0.95
# HELP transformer_serving_generation_tokens_total Tokens generated
# TYPE transformer_serving_generation_tokens_total counter
transformer_serving_generation_tokens_total{model="text",version="1"} 7
# HELP nv_inference_pending_request_count Instantaneous number of pending requests
# TYPE nv_inference_pending_request_count gauge
nv_inference_pending_request_count{model="other",version="1"} 3
"""


@pytest.mark.parametrize("known", [True, False])
def test_gauges_of_a_version_that_is_not_loaded_are_left_out(known: bool) -> None:
    """What of a process that was killed stays for good; as long as Triton says what is loaded."""
    triton = serve_metrics("127.0.0.1:0", lambda: _TRITONS)
    assert triton is not None
    page = MetricsPage(f"http://127.0.0.1:{triton.server_address[1]}/metrics")
    page.show([row("text", model="text", versions_loaded=(2,))], None, triton_ready=known)
    try:
        text = page.text()
    finally:
        triton.shutdown()
        triton.server_close()
    dead = [line for line in _TRITONS.splitlines(keepends=True) if line.endswith(" 0.95\n")]
    assert len(dead) == 2
    assert [line in text for line in dead] == [not known] * 2
    for line in dead:
        text = text.replace(line, "")
    left = [line for line in _TRITONS.splitlines() if not line.endswith(" 0.95")]
    assert text.splitlines()[-len(left) :] == left


@pytest.mark.parametrize("known", [True, False])
def test_nothing_is_reported_of_a_version_that_is_not_loaded(known: bool) -> None:
    """Triton keeps its rows, counters as well, and ClearML would hear of them each minute."""
    triton = serve_metrics("127.0.0.1:0", lambda: _TRITONS)
    assert triton is not None
    page, plane = MetricsPage(None), ListedEndpoints()
    page.show([row("text", model="text", versions_loaded=(2,))], None, triton_ready=known)
    try:
        url = f"http://127.0.0.1:{triton.server_address[1]}/metrics"
        TritonFigures(url, page.loaded)._report(url, plane)
    finally:
        triton.shutdown()
        triton.server_close()
    told = [figure for text in plane.reports for figure in read_figures(text)]
    name = "transformer_serving_generation_cache_use"
    assert told == ([Figure(name, "text", "2", 0.1)] if known else [])


def test_the_page_has_our_figures_and_then_tritons(tmp_path: Path) -> None:
    page = MetricsPage(None)
    assert "transformer_serving_engine_triton_ready 0\n" in page.text()
    page.show(
        [
            row('odd"\\\nname', proof_seconds=2.5, largest_difference=1e-4),
            row("refused", proof="failed", proof_of=2, ready=False),
            row("unread", failure=Kind.UNREACHED, reason="its store does not answer"),
            row("refused (lost)", ready=False, proof=None, beside=True),
        ],
        1795492800.25,
        triton_ready=True,
    )
    triton = serve_metrics("127.0.0.1:0", lambda: "nv_inference_count 5\n")
    assert triton is not None
    whole = MetricsPage(f"http://127.0.0.1:{triton.server_address[1]}/metrics")
    whole._shown = page._shown
    server = serve_metrics("127.0.0.1:0", whole.text)
    assert server is not None
    address = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        with urllib.request.urlopen(f"{address}/metrics", timeout=20) as answer:
            text = answer.read().decode()
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{address}/other", timeout=20)
    finally:
        server.shutdown()
        triton.shutdown()
        server.server_close()
        triton.server_close()
    lines = text.splitlines()
    name = "transformer_serving_engine_proof"
    odd = 'endpoint="odd\\"\\\\\\nname",bundle="1"'
    assert f'{name}{{{odd},state="proven"}} 1' in lines
    assert f'{name}{{endpoint="refused",bundle="2",state="failed"}} 1' in lines
    assert f'{name}{{endpoint="refused",bundle="2",state="proven"}} 0' in lines
    assert f"{name}_seconds{{{odd}}} 2.5" in lines
    assert f"{name}_largest_difference{{{odd}}} 0.0001" in lines
    assert 'transformer_serving_engine_ready{endpoint="refused",bundle="1"} 0' in lines
    assert "(lost)" not in text
    failed = "transformer_serving_engine_load_failed"
    assert f'{failed}{{endpoint="unread",kind="unreached"}} 1' in lines
    assert sum(line.startswith(f"{failed}{{") for line in lines) == 3 * len(Kind)
    assert sum(line.startswith(f"{failed}{{") and line.endswith(" 1") for line in lines) == 1
    assert "transformer_serving_engine_triton_ready 1" in lines
    assert "transformer_serving_engine_last_sync_timestamp_seconds 1795492800.25" in lines
    assert lines[-1] == "nv_inference_count 5"
    samples = [line.split("{")[0] for line in lines if not line.startswith("#")]
    assert len({line for line in lines if line.startswith("# TYPE")}) == len(set(samples)) - 1 + (
        "transformer_serving_engine_proof_lowest_cosine" not in samples
    )


def test_a_taken_address_is_told_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert serve_metrics(f"127.0.0.1:{taken.getsockname()[1]}", str) is None
    assert "choose another --metrics-address" in caplog.text
    for text in ("8003", "host:", ":1", "host:99999"):
        with pytest.raises(ValueError, match="must be host:port"):
            parse_address(text)
