"""Which files a bundle may bring for Triton: a row an engine, and none of it is code.

Triton 24.10 looks for a backend's library, libtriton_BACKEND.so, in the version's folder first.

Tested by tests/contract/test_gate.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from transformer_serving.contract.engine_parameters import VLLM
from transformer_serving.contract.manifest import TORCH
from transformer_serving.contract.torch_program.program import GRAPH, WEIGHTS
from transformer_serving.contract.vllm.arguments import FILE_NAME as ARGUMENTS

# Configuration, parity set, signature, and what a Hugging Face folder says of its model.
_TEXTS = (".json", ".pbtxt", ".sig")
# What a process runs or unpacks by its name.
_CODE = re.compile(
    r"(libtriton|triton_).*|.*\.(so(\.\d+)*|py[a-z]?|pth|sh|zip|whl|egg|tar|tgz|gz)",
    re.IGNORECASE | re.DOTALL,
)


@dataclass(frozen=True)
class Opened:
    """The file that an engine begins with: what it is called where nobody says, and how another
    name of it ends; there is none where that is ''."""

    usual: str
    suffix: str = ""

    def allow(self, name: str) -> bool:
        return name == self.usual or (self.suffix != "" and name.endswith(self.suffix))


@dataclass(frozen=True)
class FileNames:
    """`suffixes` and whole `names` that an engine's files may have, beside texts; which of them is
    `opened`.

    `weights` is for an engine whose weights may lie in files of any name: an ONNX file names them,
    and exporters do so as they like. Of such names only those of code are refused.
    """

    opened: Opened
    suffixes: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    weights: bool = False

    def allow(self, name: str) -> bool:
        """Whether a file of the model's folder may be named so; there are no folders in it."""
        if "/" in name:
            return False
        if name in self.names or name.endswith((*self.suffixes, *_TEXTS)):
            return True
        return self.weights and _CODE.fullmatch(name) is None


FILE_NAMES: Mapping[str, FileNames] = {
    "openvino": FileNames(Opened("model.xml", ".xml"), (".xml", ".bin")),
    "onnxruntime": FileNames(Opened("model.onnx", ".onnx"), (".onnx",), weights=True),
    # One for each kind of GPU, where there are several.
    "tensorrt": FileNames(Opened("model.plan", ".plan"), (".plan",)),
    TORCH: FileNames(Opened(GRAPH), names=(WEIGHTS,)),
    VLLM: FileNames(Opened(ARGUMENTS), (".safetensors",)),
}


def name_faults(engine: str, names: Sequence[str]) -> Iterator[str]:
    """Why the bundle must not be loaded; `names` are the manifest's of the model's files."""
    allowed = FILE_NAMES[engine]
    for name in names:
        if not allowed.allow(name):
            yield (
                f"file '{name}' is none that a bundle of engine {engine} may have: it may be code, "
                "or weights that run code as they are read; convert again"
            )
