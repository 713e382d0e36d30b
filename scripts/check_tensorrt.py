"""What our code calls of TensorRT, held to the pinned release's own Python bindings: no GPU needed.

    python -m scripts.check_tensorrt [--json]

The package with the bindings is installed below build/; the libraries that they load, gigabytes for
a GPU, are stood in for by empty ones of the same names, which a C compiler makes. So the bindings
import, and pybind11 says what each name is and what it takes. Every attribute that our two modules
name on an object of TensorRT must be a row of CALLS, and every row must fit.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformer_serving.desk.versions.lock import read_lock

ROOT = Path(__file__).resolve().parents[1]
BUILDERS = ROOT / "transformer_serving" / "desk" / "builders"
MODULES = (BUILDERS / "tensorrt.py", BUILDERS / "tensorrt_run.py")
# What our two modules call the objects of TensorRT.
OBJECTS = {
    "trt", "builder", "network", "parser", "profile", "config", "cache", "layer", "output",
    "engine", "context",
}  # fmt: skip
# Functions of the libraries that the bindings name; none is called while names are read.
STAND_INS = {
    "libnvinfer.so.10": (
        "createInferBuilder_INTERNAL", "createInferRefitter_INTERNAL",
        "createInferRuntime_INTERNAL", "getBuilderPluginRegistry", "getPluginRegistry",
    ),
    "libnvonnxparser.so.10": (
        "createNvOnnxParserRefitter_INTERNAL", "createNvOnnxParser_INTERNAL",
        "getNvOnnxParserVersion",
    ),
    "libnvinfer_plugin.so.10": ("initLibNvInferPlugins",),
}  # fmt: skip
_DIMS, _BYTES, _SHAPE = "Dims", "buffer", "tuple"


@dataclass(frozen=True)
class Call:
    """`name` of `owner`, and the types of what we give it; `given` None is a property or a value.

    `returns` is what our code relies on, "" where it drops the answer.
    """

    owner: str
    name: str
    given: tuple[str, ...] | None = None
    keywords: tuple[str, ...] = ()
    returns: str = ""


CALLS = (
    Call("", "Logger", ("Severity",)),
    Call("Logger", "ERROR"),
    Call("", "Builder", ("ILogger",)),
    Call("", "OnnxParser", ("INetworkDefinition", "ILogger")),
    Call("", "Runtime", ("ILogger",)),
    Call("", "BuilderFlag"),
    *(Call("BuilderFlag", flag) for flag in ("FP16", "BF16", "TF32", "OBEY_PRECISION_CONSTRAINTS")),
    Call("", "TensorIOMode"),
    Call("TensorIOMode", "OUTPUT"),
    *(Call("", kind) for kind in ("float32", "float16", "int32", "int64", "__version__")),
    Call("Builder", "create_network", ("int",), returns="INetworkDefinition"),
    Call("Builder", "create_builder_config", (), returns="IBuilderConfig"),
    Call("Builder", "create_optimization_profile", (), returns="IOptimizationProfile"),
    Call("Builder", "build_serialized_network", ("INetworkDefinition", "IBuilderConfig"),
         returns="IHostMemory"),
    Call("OnnxParser", "parse_from_file", ("str",), returns="bool"),
    Call("OnnxParser", "num_errors"),
    Call("OnnxParser", "get_error", ("int",)),
    Call("ParserError", "desc", (), returns="str"),
    Call("INetworkDefinition", "num_inputs"),
    Call("INetworkDefinition", "num_layers"),
    Call("INetworkDefinition", "get_input", ("int",), returns="ITensor"),
    Call("INetworkDefinition", "get_layer", ("int",), returns="ILayer"),
    Call("ITensor", "name"),
    Call("ITensor", "dtype"),
    Call("ILayer", "name"),
    Call("ILayer", "precision"),
    Call("ILayer", "num_outputs"),
    Call("ILayer", "get_output", ("int",), returns="ITensor"),
    Call("ILayer", "set_output_type", ("int", "DataType")),
    Call("IOptimizationProfile", "set_shape", ("str", _DIMS, _DIMS, _DIMS)),
    Call("IBuilderConfig", "add_optimization_profile", ("IOptimizationProfile",), returns="int"),
    Call("IBuilderConfig", "set_flag", ("BuilderFlag",)),
    Call("IBuilderConfig", "clear_flag", ("BuilderFlag",)),
    Call("IBuilderConfig", "create_timing_cache", (_BYTES,), returns="ITimingCache"),
    Call("IBuilderConfig", "set_timing_cache", ("ITimingCache",), ("ignore_mismatch",), "bool"),
    Call("IBuilderConfig", "get_timing_cache", (), returns="ITimingCache"),
    Call("ITimingCache", "serialize", (), returns="IHostMemory"),
    Call("Runtime", "deserialize_cuda_engine", (_BYTES,), returns="ICudaEngine"),
    Call("ICudaEngine", "create_execution_context", (), returns="IExecutionContext"),
    Call("ICudaEngine", "num_io_tensors"),
    Call("ICudaEngine", "num_optimization_profiles"),
    Call("ICudaEngine", "get_tensor_name", ("int",), returns="str"),
    Call("ICudaEngine", "get_tensor_mode", ("str",), returns="TensorIOMode"),
    Call("ICudaEngine", "get_tensor_dtype", ("str",), returns="DataType"),
    Call("ICudaEngine", "get_tensor_profile_shape", ("str", "int"), returns="List[Dims]"),
    Call("IExecutionContext", "set_optimization_profile_async", ("int", "int"), returns="bool"),
    Call("IExecutionContext", "set_input_shape", ("str", _SHAPE), returns="bool"),
    Call("IExecutionContext", "set_tensor_address", ("str", "int"), returns="bool"),
    Call("IExecutionContext", "get_tensor_shape", ("str",), returns=_DIMS),
    Call("IExecutionContext", "execute_async_v3", ("int",), returns="bool"),
)  # fmt: skip
_SIGNATURE = re.compile(r"^(?:\d+\. )?(\w+)\((.*)\)(?: -> (.+?))?$", re.MULTILINE)


def named() -> set[str]:
    """The attributes that our modules name on objects of TensorRT."""
    found = set()
    for module in MODULES:
        for node in ast.walk(ast.parse(module.read_text("utf-8"))):
            if isinstance(node, ast.Attribute) and _root(node.value) in OBJECTS:
                found.add(node.attr)
    return found


def _root(node: ast.expr) -> str:
    """The variable that an expression such as trt.Runtime(x).y begins with."""
    while isinstance(node, ast.Attribute | ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def fault(trt: Any, call: Call) -> str | None:
    """What is wrong with the row by these bindings."""
    owner = getattr(trt, call.owner, None) if call.owner else trt
    found = getattr(owner, call.name, None)
    if found is None:
        return "is not there"
    if call.given is None:
        return None
    # Of a class its constructor's, which pybind11 describes as it does a method.
    made = getattr(found, "__init__") if isinstance(found, type) else found  # noqa: B009
    text = made.__doc__ or ""
    signatures = [_parts(arguments, answer) for _, arguments, answer in _SIGNATURE.findall(text)]
    if any(_fits(takes, answer, call) for takes, answer in signatures):
        return None
    return f"does not take {call.given} {call.keywords} and give '{call.returns}': {text[:300]}"


def _parts(arguments: str, answer: str) -> tuple[dict[str, str], str]:
    """Types by name, `?` before that of one with a default; without self."""
    plain = re.sub(r"\w+(\.\w+)*\.", "", arguments)
    takes = {}
    for part in re.split(r", (?=\w+: )", plain):
        name, _, kind = part.partition(": ")
        if name not in ("self", "", "*args"):
            bare, given, _ = kind.partition(" = ")
            takes[name] = f"?{bare}" if given else bare
    return takes, re.sub(r"\w+(\.\w+)*\.", "", answer)


def _fits(takes: dict[str, str], answer: str, call: Call) -> bool:
    assert call.given is not None
    kinds = list(takes.values())
    if len(kinds) < len(call.given) or (call.returns and answer != call.returns):
        return False
    if [kind.lstrip("?") for kind in kinds[: len(call.given)]] != list(call.given):
        return False
    rest = dict(list(takes.items())[len(call.given) :])
    needed = {name for name, kind in rest.items() if not kind.startswith("?")}
    return needed <= set(call.keywords) <= set(rest)


def held(trt: Any) -> Iterator[tuple[str, str | None]]:
    """What is relied on beside names, tried: conversions, and memory that can be read."""
    import ctypes

    described = trt.PluginTensorDesc()
    described.dims = (2, 3)
    there = list(described.dims) == [2, 3] and tuple(described.dims) == (2, 3)
    yield "a tuple is taken as Dims, and Dims are read as one", None if there else "it is not"
    slot = ctypes.pythonapi.PyType_GetSlot
    slot.argtypes, slot.restype = (ctypes.py_object, ctypes.c_int), ctypes.c_void_p
    readable = slot(trt.IHostMemory, 1)  # Py_bf_getbuffer
    yield "IHostMemory is a buffer of bytes", None if readable else "it is none"
    trt.Logger(trt.Logger.ERROR)
    yield "Logger is made of its severity", None
    comparable = trt.float32 == trt.DataType.FLOAT and {trt.float32: 1}[trt.DataType.FLOAT] == 1
    yield "types are compared and are keys", None if comparable else "they are not"


def findings(trt: Any) -> list[tuple[str, str | None]]:
    """Everything that was checked, and its fault."""
    rows = [(f"{call.owner or 'tensorrt'}.{call.name}", fault(trt, call)) for call in CALLS]
    known = {call.name for call in CALLS}
    unknown = named() - known
    rows += [(name, "is named by our modules and in no row of CALLS") for name in sorted(unknown)]
    return [*rows, *held(trt)]


def prepared(folder: Path, version: str) -> Path:
    """The bindings and the stand-ins below `folder`, made once. Raises SystemExit."""
    if not (folder / "done").is_file():
        folder.mkdir(parents=True, exist_ok=True)
        package = f"tensorrt_cu12_bindings=={version}"
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        _run([*pip, "--no-deps", "--target", str(folder), package])
        for library, names in STAND_INS.items():
            source = folder / f"{library}.c"
            source.write_text("".join(f"void *{name}(void) {{ return 0; }}\n" for name in names))
            _run(["cc", "-shared", "-fPIC", f"-Wl,-soname,{library}", "-o",
                  str(folder / library), str(source)])  # fmt: skip
        (folder / "done").touch()
    return folder


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise SystemExit(f"error: '{command[0]}' is not installed: apt-get install gcc") from None
    if done.returncode:
        raise SystemExit(f"error: {' '.join(command[:4])}: {done.stderr.strip()[-300:]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true", dest="as_json")
    options = parser.parse_args()
    version = ".".join(read_lock().image.tensorrt.split(".")[:3])
    folder = prepared(ROOT / "build" / f"tensorrt-{version}", version)
    # The loader reads its path as a process starts.
    if str(folder) not in os.environ.get("LD_LIBRARY_PATH", ""):
        os.environ["LD_LIBRARY_PATH"] = str(folder)
        os.execv(sys.executable, [sys.executable, "-m", "scripts.check_tensorrt", *sys.argv[1:]])
    sys.path.insert(0, str(folder))
    import tensorrt_bindings as trt  # type: ignore[import-not-found]

    rows = findings(trt)
    faults = [(name, said) for name, said in rows if said]
    if options.as_json:
        values = {"tensorrt": trt.__version__, "checked": len(rows), "faults": dict(faults)}
        sys.stdout.write(json.dumps(values) + "\n")
        return len(faults)
    for name, said in faults:
        sys.stdout.write(f"{name} {said}\n")
    sys.stdout.write(
        f"TensorRT {trt.__version__}: {len(rows)} names and signatures, {len(faults)} faults\n"
    )
    return len(faults)


if __name__ == "__main__":
    sys.exit(main())
