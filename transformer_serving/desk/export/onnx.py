"""A model folder becomes one ONNX graph: int32 inputs, and the outputs of its head.

Torch is loaded here, in heads and in parity's reference only.
"""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_serving.contract.endpoint import OutputTensor
from transformer_serving.contract.error_line import named_line
from transformer_serving.contract.heads import EXTRA_ROLES, HEADS, TOKEN_ROLES
from transformer_serving.desk.command_line import command_line
from transformer_serving.desk.export.heads import EAGER, load_head
from transformer_serving.desk.failure import ConversionRefused
from transformer_serving.desk.interruption import reraise_interruption
from transformer_serving.desk.source.model import ModelSource

if TYPE_CHECKING:
    import torch

# ONNX Runtime 1.19, the one inside the Triton 24.10 image, reads opset 21 and IR version 10.
OPSET = 18
# One name for each output of a head; 'output' is what the demo endpoint's callers know.
OUTPUT_NAMES = {"masks": ("scores", "token_ids", "candidate_scores")}
_OUTPUT_NAMES = ("output",)
# What they log where they fail is no cause; that is in the exception.
_EXPORTERS = ("torch.onnx", "torch.export", "torch.fx", "torch._dynamo", "onnxscript", "onnx_ir")
# No protobuf is larger than 2 GiB: weights of more lie in a file beside the graph, and nothing may
# hold both in one message.
INLINE_LIMIT = 1_800_000_000
# No two sizes of the example may be equal, or the exporter could take them for one.
_EXAMPLE_BATCH, _EXAMPLE_TOKENS = 3, 11
_EXAMPLE_EXTRA = {"mask_positions": 2, "candidates": 5}


@dataclass(frozen=True)
class GraphTensors:
    """`inputs` (names are roles) and `outputs` in the order of the graph."""

    inputs: tuple[str, ...]
    outputs: tuple[OutputTensor, ...]


@dataclass(frozen=True)
class ExportedGraph(GraphTensors):
    """An ONNX file."""

    path: Path


def export_onnx(source: ModelSource, target: Path) -> ExportedGraph:
    """Write the source's head as ONNX to the file `target`, float32, all axes of a text dynamic.

    Raises ConversionRefused when the model cannot be loaded or exported, and says why.
    """
    import torch

    with quiet():
        names = input_names(source)
        module = load_module(source, names)
        example = example_of(source, names)
        outputs = outputs_of(source, module, example)
        dynamic = torch.export.Dim.DYNAMIC
        try:
            # Where it fails it also prints the whole graph, with the model's own source lines.
            with redirect_stderr(io.StringIO()):
                program = torch.onnx.export(
                    module,
                    example,
                    dynamo=True,
                    # forward takes *tensors: to the exporter that is one argument, a tuple of them.
                    dynamic_shapes=(tuple({0: dynamic, 1: dynamic} for _ in names),),
                    input_names=list(names),
                    output_names=[tensor.name for tensor in outputs],
                    opset_version=OPSET,
                    verbose=False,
                )
        except Exception as error:
            reraise_interruption(error)
            raise ConversionRefused(
                f"the exporter of torch {torch.__version__} cannot turn model type "
                f"'{source.model_type}' into a graph with dynamic batch and length "
                f"({root_cause(error)}); {WAY_OUT}"
            ) from error
        if program is None:
            raise ConversionRefused("the exporter returned no graph; use the pinned torch release")
        size = sum(tensor.numel() * tensor.element_size() for tensor in module.parameters())
        program.save(str(target), external_data=size > INLINE_LIMIT)
    return ExportedGraph(names, outputs, target)


WAY_OUT = (
    "convert a model of one of the families in docs/models.md, or export it by other means and "
    f"bring the ONNX file to '{command_line('bundle --from')}'"
)


def load_module(
    source: ModelSource, names: tuple[str, ...], attention: str | None = EAGER
) -> torch.nn.Module:
    """load_head, refused in words where the weights are not there or do not fit."""
    try:
        return load_head(source, names, attention)
    # What reads a damaged file ends in errors of many types, some of nobody's but its own.
    except Exception as error:
        reraise_interruption(error)
        raise ConversionRefused(
            f"the weights of '{source.name}' could not be loaded ({root_cause(error)}); fetch the "
            "model whole, or name a --task whose head it has"
        ) from error


def tensors_of(source: ModelSource) -> GraphTensors:
    """What every graph of the source takes and gives; none is made here."""
    with quiet():
        names = input_names(source)
        module = load_module(source, names)
        return GraphTensors(names, outputs_of(source, module, example_of(source, names)))


def outputs_of(
    source: ModelSource, module: torch.nn.Module, example: tuple[torch.Tensor, ...]
) -> tuple[OutputTensor, ...]:
    """The head's outputs as Triton names them; the example's own sizes show which axes are free.

    Raises ConversionRefused where the model does not run by its tokens alone.
    """
    import torch

    try:
        with torch.inference_mode():
            results = module(*example)
    # Whatever a model's own code does without what it wants beside tokens.
    except Exception as error:
        reraise_interruption(error)
        raise ConversionRefused(
            f"model type '{source.model_type}' does not run for task {source.task} by its tokens "
            f"alone ({root_cause(error)}); {WAY_OUT}"
        ) from error
    head = HEADS[source.head]
    free = {"tokens", *EXTRA_ROLES}
    return tuple(
        OutputTensor(
            name,
            "INT32" if result.dtype == torch.int32 else "FP32",
            tuple(
                -1 if axis in free else int(size)
                for axis, size in zip(axes, result.shape[1:], strict=True)
            ),
        )
        for name, axes, result in zip(
            OUTPUT_NAMES.get(source.head, _OUTPUT_NAMES), head.outputs, results, strict=True
        )
    )


def root_cause(error: BaseException) -> str:
    """The first line of the innermost cause: the exporter wraps it in pages of advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    return named_line(error)


@contextmanager
def quiet() -> Iterator[None]:
    """Without the libraries' warnings and progress bars, which say nothing an operator can use."""
    from transformers.utils import logging as untyped

    transformers_logging: Any = untyped
    level = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    exporters = [logging.getLogger(name) for name in _EXPORTERS]
    exporter_levels = [exporter.level for exporter in exporters]
    for exporter in exporters:
        exporter.setLevel(logging.CRITICAL)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for exporter, exporter_level in zip(exporters, exporter_levels, strict=True):
            exporter.setLevel(exporter_level)
        transformers_logging.set_verbosity(level)
        if bars:
            transformers_logging.enable_progress_bar()


def input_names(source: ModelSource) -> tuple[str, ...]:
    """The graph's inputs in order: the tokens' roles, then the head's own."""
    tokens = [name for name in TOKEN_ROLES if name != "token_type_ids" or source.takes_token_types]
    return (*tokens, *HEADS[source.head].extra_roles)


def example_of(source: ModelSource, names: tuple[str, ...]) -> tuple[torch.Tensor, ...]:
    import torch

    tokens = min(_EXAMPLE_TOKENS, source.max_length or _EXAMPLE_TOKENS)
    columns = torch.arange(_EXAMPLE_BATCH * tokens, dtype=torch.int32).reshape(_EXAMPLE_BATCH, -1)
    rows = {
        "input_ids": columns % 13 + source.tokenizer.pad_id % 2 + 1,
        "token_type_ids": torch.zeros_like(columns),
        "attention_mask": torch.ones_like(columns),
        **{name: columns[:, :count] % tokens for name, count in _EXAMPLE_EXTRA.items()},
    }
    return tuple(rows[name].contiguous() for name in names)
