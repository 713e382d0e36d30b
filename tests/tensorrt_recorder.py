"""A stand-in for the package tensorrt that records what the builder is told.

Its names are those of TensorRT 10.5's own Python bindings; nothing of it can build an engine, and
it exists because TensorRT's libraries cannot be installed on every machine that runs the tests.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import onnx

float32, float16, int32, int64 = "float32", "float16", "int32", "int64"


@dataclass
class Recording:
    """Everything that was said, in order."""

    flags: list[str] = field(default_factory=list)
    cleared: list[str] = field(default_factory=list)
    profiles: list[dict[str, tuple[Any, ...]]] = field(default_factory=list)
    fp32: dict[str, list[int]] = field(default_factory=dict)
    caches_read: list[bytes] = field(default_factory=list)
    built: int = 0


class Layer:
    def __init__(self, record: Recording, name: str, dtype: str) -> None:
        self.name, self.num_outputs = name, 1
        self._record, self._dtype = record, dtype
        self._precision: str | None = None

    def get_output(self, index: int) -> Any:
        return SimpleNamespace(dtype=self._dtype)

    def set_output_type(self, index: int, dtype: str) -> None:
        assert dtype == float32
        assert self.precision == float32
        self._record.fp32.setdefault(self.name, []).append(index)

    @property
    def precision(self) -> str | None:
        return self._precision

    @precision.setter
    def precision(self, dtype: str) -> None:
        self._precision = dtype


class Network:
    def __init__(self, record: Recording) -> None:
        self._record = record
        self.inputs: list[str] = []
        self.layers: list[Layer] = []

    num_inputs = property(lambda self: len(self.inputs))
    num_layers = property(lambda self: len(self.layers))

    def get_input(self, index: int) -> Any:
        return SimpleNamespace(name=self.inputs[index])

    def get_layer(self, index: int) -> Layer:
        return self.layers[index]


class Config:
    def __init__(self, record: Recording) -> None:
        self._record = record
        self._cached = False

    def set_flag(self, flag: str) -> None:
        self._record.flags.append(flag)

    def clear_flag(self, flag: str) -> None:
        self._record.cleared.append(flag)

    def add_optimization_profile(self, profile: Any) -> int:
        self._record.profiles.append(profile.shapes)
        return len(self._record.profiles) - 1

    def create_timing_cache(self, serialized: bytes) -> bytes:
        self._record.caches_read.append(serialized)
        return serialized

    def set_timing_cache(self, cache: bytes, ignore_mismatch: bool) -> bool:
        assert not ignore_mismatch
        # Of another GPU, as TensorRT says it: nothing is attached.
        self._cached = cache != b"of another GPU"
        return self._cached

    def get_timing_cache(self) -> Any:
        return SimpleNamespace(serialize=lambda: b"timed tactics") if self._cached else None


class Profile:
    def __init__(self) -> None:
        self.shapes: dict[str, tuple[Any, ...]] = {}

    def set_shape(self, name: str, least: Any, best: Any, greatest: Any) -> None:
        self.shapes[name] = (tuple(least), tuple(best), tuple(greatest))


class Recorder:
    """What `import tensorrt` gives; `plan` is what the builder answers, None for a failure."""

    def __init__(self, plan: bytes | None, version: str = "10.5.0") -> None:
        self.__version__ = version
        self.record = Recording()
        self._plan = plan
        self.float32, self.float16, self.int32, self.int64 = float32, float16, int32, int64
        names = ("FP16", "BF16", "TF32", "OBEY_PRECISION_CONSTRAINTS")
        self.BuilderFlag = SimpleNamespace(**{name: name for name in names})

    class Logger:
        ERROR = 1

        def __init__(self, severity: int) -> None:
            assert severity == self.ERROR

    def Builder(self, logger: Any) -> Any:
        record, plan = self.record, self._plan

        def build(network: Network, config: Config) -> bytes | None:
            record.built += 1
            return plan

        return SimpleNamespace(
            create_network=lambda flags: Network(record),
            create_builder_config=lambda: Config(record),
            create_optimization_profile=Profile,
            build_serialized_network=build,
        )

    def OnnxParser(self, network: Network, logger: Any) -> Any:
        record = self.record

        def parse_from_file(path: str) -> bool:
            try:
                graph = onnx.load(path).graph
            except Exception:
                return False
            network.inputs = [info.name for info in graph.input]
            whole = {"Shape", "Squeeze", "Gather"}
            network.layers = [
                Layer(record, name, int64 if node.op_type in whole else float32)
                for number, node in enumerate(graph.node)
                # Sums have a layer more, of which only the first has the node's own name.
                for name in (
                    node.name,
                    *([f"{node.name}_{number}"] * node.op_type.startswith("Reduce")),
                )
            ]
            return True

        return SimpleNamespace(
            parse_from_file=parse_from_file,
            num_errors=1,
            get_error=lambda index: SimpleNamespace(desc=lambda: "In node 3: not supported"),
        )
