"""A TensorRT plan from an ONNX graph: one optimization profile a bucket, fp32 where fp16 fails.

TensorRT is imported only here and in tensorrt_run. Its names and what they take are held to the
pinned release's own bindings by `make check-tensorrt`. Whether the plans are right is unproven on
this project's machines: docs/gpu.md.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformer_serving.contract.error_line import one_line
from transformer_serving.contract.gate.plan_header import read_plan_header
from transformer_serving.contract.gate.release import same
from transformer_serving.contract.gate.server_facts import Gpu, read_gpus, visible_gpus
from transformer_serving.contract.pip_line import pip_line
from transformer_serving.contract.replacement import replace_file
from transformer_serving.desk.builders.files import EngineFiles, Shapes
from transformer_serving.desk.command_line import command_line
from transformer_serving.desk.export.endpoint_json import LIMITS
from transformer_serving.desk.failure import ConversionRefused, PrecisionRefused
from transformer_serving.desk.user_cache import user_cache
from transformer_serving.desk.versions.lock import read_lock

PLAN = "model.plan"
# How many of a role a text may have; TensorRT needs a range for every axis. Masks end where
# preprocess finds their answers too long, which costs memory; targets where it counts them.
_EXTRA_RANGES = {"mask_positions": (1, 8, 512), "candidates": (1, 8, LIMITS.max_texts)}
_FLAGS = {"fp32": None, "fp16": "FP16", "bf16": "BF16"}


@dataclass(frozen=True)
class Machine:
    """What a plan will be tied to: TensorRT's version and the GPU it is built on."""

    tensorrt: str
    gpu: Gpu


@dataclass(frozen=True)
class InputRange:
    """The least, best and greatest shape [texts, tokens] of one input in one profile."""

    least: tuple[int, int]
    best: tuple[int, int]
    greatest: tuple[int, int]


def require_machine() -> Machine:
    """The TensorRT and GPU of this machine, asked before any other work.

    Raises ConversionRefused without TensorRT, with another version than the image pin's, or
    without a GPU.
    """
    pin = read_lock().image
    wanted = ".".join(pin.tensorrt.split(".")[:3])
    line = pip_line(f"tensorrt-cu12=={wanted}")
    install = f"{line}, on a machine with the servers' kind of GPU"
    try:
        version = str(importlib.import_module("tensorrt").__version__)
    except (ImportError, AttributeError, OSError) as error:
        raise ConversionRefused(
            f"engine 'tensorrt' needs TensorRT {pin.tensorrt} on this machine, and it cannot be "
            f"imported ({type(error).__name__}); install it: {install}; or convert with --engine "
            "onnxruntime"
        ) from error
    if not same(version, pin.tensorrt):
        raise ConversionRefused(
            f"TensorRT {version} is installed, and the image pin {pin.release} loads only plans of "
            f"{pin.tensorrt}; install that: {install}; or move the pin: "
            f"{command_line('versions')}"
        )
    return Machine(version, _first_gpu())


def _first_gpu() -> Gpu:
    """CUDA's first, on which TensorRT builds. Raises ConversionRefused."""
    gpus = visible_gpus(os.environ) or read_gpus(os.environ)
    if not gpus:
        raise ConversionRefused(
            "engine 'tensorrt' needs an NVIDIA GPU, and nvidia-smi names none here; convert on a "
            "machine with the servers' kind of GPU"
        )
    if len(set(gpus)) == 1:
        return gpus[0]
    # The order of several kinds is CUDA's own.
    import torch

    if not torch.cuda.is_available():
        raise ConversionRefused(
            f"this machine has GPUs of several kinds ({gpus[0].name}, ...), and which one TensorRT "
            "builds on only a CUDA build of torch can say; install one, or name the GPU by its "
            "UUID of `nvidia-smi --list-gpus` in CUDA_VISIBLE_DEVICES"
        )
    found = torch.cuda.get_device_properties(0)
    return Gpu(found.name, gpus[0].driver, f"{found.major}.{found.minor}")


def build_plan(precision: str, graph: Path, folder: Path, shapes: Shapes) -> EngineFiles:
    """Build `graph` (fp32 ONNX) into `folder`/model.plan. Raises ConversionRefused."""
    machine = require_machine()
    trt: Any = importlib.import_module("tensorrt")
    logger = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(logger)
    network = builder.create_network(0)
    _parse(trt.OnnxParser(network, logger), graph)
    config = builder.create_builder_config()
    names = [network.get_input(index).name for index in range(network.num_inputs)]
    for ranges in profiles(names, shapes):
        profile = builder.create_optimization_profile()
        for name, sizes in ranges.items():
            profile.set_shape(name, sizes.least, sizes.best, sizes.greatest)
        if config.add_optimization_profile(profile) < 0:
            raise ConversionRefused(
                f"TensorRT {machine.tensorrt} takes no optimization profile of {ranges}; its own "
                "message stands above; name other lengths with --seq-len, or convert with "
                "--engine onnxruntime"
            )
    kept = _fp32_nodes(precision, graph, shapes)
    _set_precision(trt, config, network, precision, layers_of(kept, _node_names(graph)))
    cache_file = timing_cache_file(machine)
    _load_timing_cache(config, cache_file)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise PrecisionRefused(
            f"TensorRT {machine.tensorrt} built no {precision} plan of this graph; its own message "
            "stands above; convert with --precision fp32 or --engine onnxruntime"
        )
    target = folder / PLAN
    target.write_bytes(memoryview(plan))
    _save_timing_cache(config, cache_file)
    return EngineFiles("tensorrt", precision, (target,), _facts(machine, target, kept, shapes))


def profiles(names: Collection[str], shapes: Shapes) -> Iterator[dict[str, InputRange]]:
    """One profile a bucket, each from one text to the most of a call.

    preprocess pads to exactly a bucket; the range down to the one before is for other callers.
    """
    fewest, usual, most = shapes.batch
    shorter = 0
    for length in shapes.lengths:
        tokens = (shorter + 1, length, length)
        yield {
            name: InputRange(*zip((fewest, usual, most), sizes, strict=True))
            for name in names
            for sizes in (_EXTRA_RANGES.get(name, tokens),)
        }
        shorter = length


def _parse(parser: Any, graph: Path) -> None:
    if not parser.parse_from_file(str(graph)):
        reasons = [parser.get_error(index).desc() for index in range(parser.num_errors)]
        raise ConversionRefused(
            f"TensorRT cannot read the graph ({one_line(reasons[:1], 200)}); "
            "convert with --engine onnxruntime"
        )


def _fp32_nodes(precision: str, graph: Path, shapes: Shapes) -> tuple[str, ...]:
    """Nodes that fp16 would spoil. bf16 has fp32's range and keeps only the sums."""
    from transformer_serving.desk.builders.half_precision import overflowing_nodes, summing_nodes

    if precision == "fp32":
        return ()
    beyond = overflowing_nodes(graph, shapes.feeds) if precision == "fp16" else ()
    return tuple(sorted({*beyond, *summing_nodes(graph)}))


def _node_names(graph: Path) -> set[str]:
    import onnx

    return {node.name for node in onnx.load(str(graph), load_external_data=False).graph.node}


def layers_of(kept: Collection[str], nodes: Collection[str]) -> Callable[[str], bool]:
    """Whether a layer of this name is of one of the `kept` among the graph's `nodes`.

    The parser makes several layers of some nodes, ReduceL2 for one: the first has the node's name,
    the others that and a number. Source: onnx-tensorrt, ImporterContext::registerLayer.
    """
    names, others = frozenset(kept), frozenset(nodes)

    def is_kept(name: str) -> bool:
        if name in others:
            return name in names
        node, _, number = name.rpartition("_")
        return number.isdigit() and node in names

    return is_kept


def _set_precision(
    trt: Any, config: Any, network: Any, precision: str, kept: Callable[[str], bool]
) -> None:
    flag = _FLAGS[precision]
    if flag is None:
        # On Ampere and later TensorRT would otherwise take tf32, with fp16's number of digits.
        config.clear_flag(trt.BuilderFlag.TF32)
        return
    config.set_flag(getattr(trt.BuilderFlag, flag))
    config.set_flag(trt.BuilderFlag.OBEY_PRECISION_CONSTRAINTS)
    for layer in (network.get_layer(index) for index in range(network.num_layers)):
        if not kept(layer.name):
            continue
        outputs = [layer.get_output(index) for index in range(layer.num_outputs)]
        if all(output.dtype == trt.float32 for output in outputs):
            layer.precision = trt.float32
            for index in range(len(outputs)):
                layer.set_output_type(index, trt.float32)


def timing_cache_file(machine: Machine) -> Path:
    """Tactics that were timed before, for this TensorRT on this kind of GPU."""
    gpu = "".join(letter if letter.isalnum() else "-" for letter in machine.gpu.name)
    return user_cache() / f"timing-{machine.tensorrt}-{gpu}.cache"


def _load_timing_cache(config: Any, file: Path) -> None:
    """Of another device or damaged, the file is left: TensorRT times anew."""
    for known in (file.read_bytes() if file.is_file() else b"", b""):
        cache = config.create_timing_cache(known)
        if cache is not None and config.set_timing_cache(cache, ignore_mismatch=False):
            return


def _save_timing_cache(config: Any, file: Path) -> None:
    cache = config.get_timing_cache()
    if cache is None:
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    replace_file(file, bytes(cache.serialize()))


def _facts(machine: Machine, plan: Path, kept: Collection[str], shapes: Shapes) -> dict[str, Any]:
    """The manifest's field 'tensorrt'; the plan's own header knows the version's fourth part."""
    return {
        "version": read_plan_header(plan).tensorrt or machine.tensorrt,
        "compute_capability": machine.gpu.compute_capability,
        "gpu": machine.gpu.name,
        "driver": machine.gpu.driver,
        "version_compatible": False,
        "hardware_compatibility": "none",
        "profiles": len(shapes.lengths),
        "fp32_layers": sorted(kept),
    }
