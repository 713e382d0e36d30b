"""The file of an engine that somebody else made: read, opened and asked, or refused with why.

Tested by tests/own_engine/test_writer.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_serving.contract.error_line import first_line
from transformer_serving.contract.errors import ContractError
from transformer_serving.contract.gate.onnx_header import starts_as_onnx
from transformer_serving.contract.gate.onnx_limits import onnx_faults
from transformer_serving.contract.gate.plan_header import read_plan_header
from transformer_serving.desk.builders.table import open_engine
from transformer_serving.desk.failure import ConversionRefused, Failure
from transformer_serving.desk.interruption import reraise_interruption
from transformer_serving.desk.versions.lock import read_lock

if TYPE_CHECKING:
    from preprocess.tensors import Tensor
    from transformer_serving.desk.builders.files import Call, EngineFiles


def engine_of(file: Path) -> str:
    """'onnxruntime' or 'tensorrt' by the file's first bytes. Raises ConversionRefused."""
    try:
        with file.open("rb") as opened:
            head = opened.read(8)
    except OSError as error:
        raise ConversionRefused(f"--from: '{file}' cannot be read: {error.strerror}") from error
    if head[:4] in (b"ftrt", b"ptrt"):
        return "tensorrt"
    if starts_as_onnx(head):
        return "onnxruntime"
    raise ConversionRefused(f"--from: '{file.name}' is neither an ONNX model nor a TensorRT plan")


def check_file(engine: str, file: Path) -> None:
    """Raises ConversionRefused for a file that is cut short, damaged, or newer than the pinned ONNX
    Runtime reads, by what its header says."""
    try:
        if engine == "tensorrt":
            read_plan_header(file)
            return
        faults = list(onnx_faults(file, file.name, read_lock().facts(engine)))
    except ContractError as error:
        raise ConversionRefused(f"--from: {error}") from error
    for fault in faults:
        raise ConversionRefused(f"--from: {fault}")


def load_onnx(file: Path) -> Any:
    """The ModelProto without weights that lie beside it. Raises ConversionRefused for bytes that
    are none, which a header does not show."""
    import onnx
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    try:
        return onnx.load(str(file), load_external_data=False)
    except DecodeError as error:
        raise ConversionRefused(
            f"--from: file '{file.name}' is no whole ONNX model: {first_line(error)}; copy it "
            "again or export it again"
        ) from error


def open_own_engine(files: EngineFiles) -> Call:
    """As `open_engine`, with what the engine says of a file or of a call as ConversionRefused.

    ONNX Runtime's errors have no type of their own.
    """
    try:
        engine_call = open_engine(files)
    except Failure:
        raise
    except Exception as error:
        reraise_interruption(error)
        raise ConversionRefused(
            f"--from: {files.engine} cannot load the file: {first_line(error)}; export it again "
            "with operators that the pinned Triton has too"
        ) from error

    def call(tensors: Sequence[Tensor]) -> Any:
        try:
            return engine_call(tensors)
        except Exception as error:
            reraise_interruption(error)
            raise ConversionRefused(
                f"{files.engine} cannot run the engine on texts of this --tokenizer: "
                f"{first_line(error)}; give the tokenizer that the model was trained with; name "
                "the model's longest text with --max-length, where it has positions for no more; "
                "or export the model again with dynamic axes"
            ) from error

    return call
