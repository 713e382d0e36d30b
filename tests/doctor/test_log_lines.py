"""Every documented error text is recognised, in the form in which the logs have it."""

from __future__ import annotations

import dataclasses
import inspect
import os
import re
import signal
import threading
from pathlib import Path

import pytest
from supervisor.options import decode_wait_status

from tests.doctor.conftest import ROOT, Scene
from transformer_serving.contract.engine_parameters import ENGINE_PARAMETERS, VLLM
from transformer_serving.desk.doctor import log_lines
from transformer_serving.desk.doctor.finding import OK, WARNING
from transformer_serving.desk.doctor.log_lines import KNOWN, _counted, check_log, explain
from transformer_serving.engine import container

# The texts as users reported them; the last field is a part of what they are explained with.
TEXTS = (
    (
        "tensorrt-version",
        "E0701 07:53:37.010834 1 logging.cc:43] 6: The engine plan file is not compatible with "
        "this version of TensorRT, expecting library version 8.6.1.2 got 8.6.1.6, please rebuild.",
        "built by TensorRT 8.6.1.6, this server has 8.6.1.2",
    ),
    (
        "tensorrt-version",
        "The engine plan file is not compatible with this version of TensorRT, expecting library "
        "version 8.2.4 got 8.2.3, please rebuild.",
        "built by TensorRT 8.2.3, this server has 8.2.4",
    ),
    (
        "serialization-version",
        "E0912 logging.cc:40] 1: [stdArchiveReader.cpp::StdArchiveReaderInitCommon::46] Error Code "
        "1: Serialization (Serialization assertion stdVersionRead == kSERIALIZATION_VERSION failed."
        "Version tag does not match. Note: Current Version: 236, Serialized Engine Version: 239)",
        "number 239, this server's TensorRT reads 236",
    ),
    (
        "serialization-version",
        "Serialization assertion stdVersionRead == serializationVersion failed.Version tag does "
        "not match. Note: Current Version: 226, Serialized Engine Version: 228",
        "number 228",
    ),
    (
        "serialization-version",
        "coreReadArchive.cpp (38) - Serialization Error in verifyHeader: 0 (Version tag does not "
        "match. Note: Current Version: 96, Serialized Engine Version: 97)",
        "number 97",
    ),
    ("magic-tag", "Serialization Error in verifyHeader: 0 (Magic tag does not match)", "no plan"),
    (
        "magic-tag",
        "1: [stdArchiveReader.cpp::StdArchiveReader::32] Error Code 1: Serialization "
        "(Serialization assertion magicTagRead == kMAGIC_TAG failed.Magic tag does not match)",
        "the other side of TensorRT 8.6",
    ),
    (
        "magic-tag",
        "IRuntime::deserializeCudaEngine: Error Code 1: Serialization (Serialization assertion "
        "plan->header.magicTag == rt::kPLAN_MAGIC_TAG failed.)",
        "no plan",
    ),
    (
        "compute-capability",
        "The engine plan file is generated on an incompatible device, expecting compute 8.6 got "
        "compute 7.5, please rebuild.",
        "compute capabilities 8.6 and 7.5 differ",
    ),
    (
        "auto-complete",
        "failed to load 'bert' version 1: Internal: unable to load plan file to auto complete "
        "config: /models/bert/1/model.plan",
        "the plan /models/bert/1/model.plan",
    ),
    ("create-engine", "unable to create TensorRT engine: Internal: something", "TensorRT engine"),
    ("create-engine", "unable to create TensorRT runtime: Internal: more", "TensorRT runtime"),
    (
        "lean-runtime",
        "E0925 Error Code 1: API Usage Error (Cannot deserialize engine with lean runtime.)",
        "version-compatible",
    ),
    (
        "onnx-opset",
        "ONNX Runtime only *guarantees* support for models stamped with official released onnx "
        "opset versions. Opset 22 is under development and support for this is limited. Current "
        "official support for domain ai.onnx is till opset 21.",
        "newer opset than 21",
    ),
    (
        "onnx-ir",
        "Load model from /models/m/1/model.onnx failed: Unsupported model IR version: 11, max "
        "supported IR version: 10",
        "IR version 11, this ONNX Runtime reads up to 10",
    ),
    (
        "no-backend",
        "failed to load 'bert' version 1: Invalid argument: unable to find backend library for "
        "backend 'tensorrt', try specifying runtime on the model configuration.",
        "has no backend tensorrt",
    ),
    (
        "platform-backend",
        "unexpected 'platform' and 'backend' pair, got:tensorrt_plan, onnxruntime",
        "do not belong together",
    ),
    (
        "max-batch",
        "unable to load model 'm', configuration specified max-batch 16 but TensorRT engine only "
        "supports max-batch 1",
        "16 is larger than the engine's 1",
    ),
    (
        "profile",
        "failed to find any Optimization Profile among [0,1] to support the requested dimensions "
        "(or shape values), proceeding with first profile.",
        "optimization profiles",
    ),
    (
        "shared-memory",
        "failed to load 'bert' version 1: Internal: Unable to initialize shared memory key "
        "'triton_python_backend_shm_region_3' to requested size (67108864 bytes). If you are "
        "running Triton inside docker, use '--shm-size' flag to control the shared memory region "
        "size. Each Python backend model instance requires at least 64MBs of shared memory. Error: "
        "No space left on device",
        "/dev/shm is full",
    ),
    (
        "shared-memory",
        "Failed to increase the shared memory pool size for key "
        "'triton_python_backend_shm_region_2' to 67108864 bytes. If you are running Triton inside "
        "docker, use '--shm-size' flag to control the shared memory region size. Error: No space "
        "left on device",
        "/dev/shm is full",
    ),
    (
        "shared-memory",
        "OSError: [Errno 28] No space left on device: '/dev/shm/psm_1'",
        "/dev/shm is full",
    ),
    ("bus-error", "Bus error (core dumped)", "mostly as /dev/shm is full"),
    (
        "bus-error",
        "transformer_serving.engine.container tritonserver ended with -7 after 63 s",
        "mostly as /dev/shm is full",
    ),
    (
        "driver-mismatch",
        "Failed to initialize NVML: Driver/library version mismatch",
        "driver was updated",
    ),
    (
        "driver-old",
        "failed to load 'bert' version 1: Internal: unable to get number of CUDA devices: CUDA "
        "driver version is insufficient for CUDA runtime version",
        "older than",
    ),
    (
        "gpu-memory",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
        "capacity of 15.77 GiB of which 1.12 GiB is free.",
        "GPU's memory",
    ),
    ("gpu-memory", "RuntimeError: CUDA error: out of memory", "GPU's memory"),
    (
        "gpu-memory",
        "E1128 logging.cc:40] 1: [defaultAllocator.cpp::allocate::19] Error Code 1: Cuda Runtime "
        "(out of memory)",
        "GPU's memory",
    ),
    (
        "killed",
        "transformer_serving.engine.container tritonserver ended with -9 after 1843 s",
        "mostly by the kernel",
    ),
    (
        "killed",
        "2026-11-28 20:53:36,259 WARN exited: triton (terminated by SIGKILL; not expected)",
        "mostly by the kernel",
    ),
    (
        "bus-error",
        "2026-11-28 20:53:36,259 WARN exited: triton (terminated by SIGBUS (core dumped); not "
        "expected)",
        "mostly as /dev/shm is full",
    ),
    (
        "crashed",
        "2026-11-28 20:53:36,259 WARN exited: triton (terminated by SIGSEGV (core dumped); not "
        "expected)",
        "a fault of its own code",
    ),
    ("crashed", "Signal (11) received.", "a fault of its own code"),
    ("crashed", "Signal (6) received.", "a fault of its own code"),
    (
        "crashed",
        "transformer_serving.engine.container tritonserver ended with -11 after 44 s",
        "a fault of its own code",
    ),
    (
        "gpu-lost",
        "Unable to determine the device handle for GPU 0000:3B:00.0: GPU is lost.  Reboot the "
        "system to recover this GPU",
        "no longer answers",
    ),
    ("gpu-lost", "Failed to initialize NVML: Unknown Error", "no longer answers"),
    (
        "gpu-lost",
        "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",
        "no longer answers",
    ),
)


@pytest.mark.parametrize(("name", "text", "words"), TEXTS)
def test_a_documented_text_is_explained(name: str, text: str, words: str) -> None:
    (found,) = explain(text)
    assert found.name == name
    assert words in found.meaning
    assert found.fix
    assert "{" not in found.meaning + found.fix


def test_every_known_line_has_a_real_text() -> None:
    assert {name for name, _, _ in TEXTS} == {line.name for line in KNOWN}


def test_the_end_of_triton_is_known_as_its_container_logs_it() -> None:
    """By the signal that ended it: another end, as by a fault of its own, is no lack of memory."""
    line = "tritonserver ended with %s after %.0f s"
    assert f'_log.error("{line}"' in Path(inspect.getfile(container)).read_text("utf-8")
    names = {
        code: [found.name for found in explain(line % (code, 60))]
        for code in (-11, -9, -7, -6, 1, 9)
    }
    wanted = {-11: ["crashed"], -9: ["killed"], -7: ["bus-error"], -6: ["crashed"], 1: [], 9: []}
    assert names == wanted


def test_the_end_of_triton_is_known_as_supervisord_logs_it() -> None:
    """By supervisord's own words for a signal; another part's end is none of Triton's."""
    names = {}
    numbers = (signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL, signal.SIGBUS, signal.SIGTERM)
    for number in numbers:
        _, said = decode_wait_status(number)
        for part in ("triton", "inference"):
            line = f"exited: {part} ({said}; not expected)"
            names[part, number] = [found.name for found in explain(line)]
    assert {key: name for key, name in names.items() if name} == {
        ("triton", signal.SIGSEGV): ["crashed"],
        ("triton", signal.SIGABRT): ["crashed"],
        ("triton", signal.SIGKILL): ["killed"],
        ("triton", signal.SIGBUS): ["bus-error"],
    }


def test_an_end_that_triton_and_its_parent_tell_of_is_one() -> None:
    """Other ends have only one of both lines: Triton's own log, or that of who started it."""
    own, parents = "Signal (11) received.", "tritonserver ended with -11 after 44 s"
    for lines, times in (
        ([own, " 0# 0x0000", parents], 1),
        ([own, parents, own, parents], 2),
        ([own, own], 2),
        ([parents, parents, own, parents], 3),
    ):
        assert list(_counted(lines).values()) == [times], lines


def test_a_version_is_translated_into_the_release_that_has_it() -> None:
    (found,) = explain(TEXTS[0][1])
    assert "TensorRT 8.6.1.2 is in release 23.04, 23.05" in found.fix


def test_a_plan_of_another_gpu_is_converted_there() -> None:
    """There is no option that makes one for other GPUs, too."""
    (text,) = (text for name, text, _ in TEXTS if name == "compute-capability")
    (found,) = explain(text)
    assert found.fix == "convert again on this kind of GPU"


def test_a_full_gpu_is_answered_with_options_of_its_engines() -> None:
    (found,) = explain("CUDA out of memory")
    of = {one.flag: one.engine for one in ENGINE_PARAMETERS}
    named = re.findall(r"--[\w-]+", found.fix)
    assert {of[flag] for flag in named if flag in of} == {VLLM}


def test_what_is_not_known_is_not_explained() -> None:
    for text in ("", "E1120 something else", "Version tag does not match", "compute 8.6"):
        assert not list(explain(text))


# Of the embedded stack's Triton, right after its start on a machine without a GPU.
HEALTHY = """\
W1128 20:53:04.989494 3192 pinned_memory_manager.cc:273] "Unable to allocate pinned system memory, \
pinned memory pool will not be available: CUDA driver version is insufficient for CUDA runtime \
version"
I1128 20:53:04.989550 3192 cuda_memory_manager.cc:117] "CUDA memory pool disabled"
E1128 20:53:04.989610 3192 server.cc:241] "CudaDriverHelper has not been initialized."
Error: Failed to initialize NVML
W1128 20:53:04.990467 3192 metrics.cc:798] "DCGM unable to start: DCGM initialization error"
I1128 20:53:04.990588 3192 metrics.cc:770] "Collecting CPU metrics"
I1128 20:53:05.025618 3192 grpc_server.cc:2558] "Started GRPCInferenceService at unix:/tmp/t:8001"
[\x1b[1;33mWARN\x1b[0;39m]  evhtp.c:4050 NODELAY NOT SUPPORTED :: (errno: Operation not supported)
"""


def test_a_triton_that_is_well_without_a_gpu_is_well(scene: Scene) -> None:
    log = scene.folder / "healthy.log"
    log.write_text(HEALTHY)
    (found,) = check_log(dataclasses.replace(scene.subject, log=log))
    assert found.status == OK


def test_all_texts_in_one_log_of_bytes(scene: Scene) -> None:
    log = scene.folder / "all.log"
    log.write_bytes(b"\xff\xfe\n" + "\n".join(text for _, text, _ in TEXTS).encode())
    found = list(check_log(dataclasses.replace(scene.subject, log=log)))
    # Texts of one kind with the same numbers are one finding; others are one each.
    assert len(found) == len({(text[0], text[2]) for text in TEXTS}) - 1
    log.write_text("something else\n")
    (silent,) = check_log(dataclasses.replace(scene.subject, log=log))
    assert silent.status == OK


def test_a_log_without_a_line_is_none_without_an_error(scene: Scene) -> None:
    """As a pipe is whose command found no container, and said so on stderr."""
    log = scene.folder / "empty.log"
    log.touch()
    (found,) = check_log(dataclasses.replace(scene.subject, log=log))
    assert found.status == WARNING
    assert "is empty" in found.why
    _, _, line = found.fix.partition("docker compose ")
    page = (ROOT / "docs" / "doctor.md").read_text("utf-8")
    assert f"<(docker compose {line})" in page


def test_of_a_pipe_the_end_is_read(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of `doctor --log <(docker compose … logs triton)`."""
    monkeypatch.setattr(log_lines, "_MOST", 4 << 20)
    pipe = scene.folder / "pipe"
    os.mkfifo(pipe)
    early, late = "Bus error\n", "Driver/library version mismatch\n"
    text = early + ("." * 1023 + "\n") * (5 << 10) + late
    writer = threading.Thread(target=pipe.write_text, args=(text,))
    writer.start()
    try:
        (found,) = check_log(dataclasses.replace(scene.subject, log=pipe))
    finally:
        writer.join()
    assert "the NVIDIA driver was updated" in found.why
