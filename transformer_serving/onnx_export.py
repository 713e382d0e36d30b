"""A model folder becomes one ONNX graph: int32 [batch, tokens] inputs to one float32 `output`.

Torch is loaded here only. An embedding model is pooled and normalized inside the graph by
sentence-transformers' own modules, so that there is one source of the pooling rules.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contract.heads import TOKEN_ROLES
from transformer_serving.model_source import ModelSource
from transformer_serving.refusal import ConversionRefused

if TYPE_CHECKING:
    import torch

# ONNX Runtime 1.19, the one inside the Triton 24.10 image, reads opset 21 and IR version 10.
OPSET = 18
OUTPUT_NAME = "output"
# A protobuf file ends at 2 GiB; larger weights go into a file beside the graph.
_INLINE_LIMIT = 1_800_000_000
# No two sizes of the example may be equal, or the exporter could take them for one.
_EXAMPLE_BATCH, _EXAMPLE_TOKENS = 3, 11


@dataclass(frozen=True)
class ExportedGraph:
    """An ONNX file; `inputs` in the order of the graph, `width` the columns of `output`."""

    path: Path
    inputs: tuple[str, ...]
    width: int


def export_onnx(source: ModelSource, target: Path) -> ExportedGraph:
    """Write `source` as ONNX to the file `target`, float32, both axes dynamic.

    text-classification: `output` holds logits [batch, labels]; sentence-embedding: final vectors
    [batch, width]. Raises ConversionRefused when the model cannot be loaded or exported.
    """
    import torch

    with quiet():
        module = _load(source)
        names = _input_names(source)
        example = _example(source, names)
        dynamic = torch.export.Dim.DYNAMIC
        try:
            with torch.inference_mode():
                width = int(module(*example).shape[1])
            program = torch.onnx.export(
                module,
                example,
                dynamo=True,
                # forward takes *tensors: to the exporter that is one argument, a tuple of them.
                dynamic_shapes=(tuple({0: dynamic, 1: dynamic} for _ in names),),
                input_names=list(names),
                output_names=[OUTPUT_NAME],
                opset_version=OPSET,
                verbose=False,
            )
        except Exception as error:
            raise ConversionRefused(
                f"the exporter of torch {torch.__version__} cannot turn model type "
                f"'{source.model_type}' into a graph with dynamic batch and length "
                f"({_root_cause(error)})"
            ) from error
        if program is None:
            raise ConversionRefused("the exporter returned no graph; use the pinned torch release")
        size = sum(tensor.numel() * tensor.element_size() for tensor in module.parameters())
        program.save(str(target), external_data=size > _INLINE_LIMIT)
    return ExportedGraph(target, names, width)


def _root_cause(error: BaseException) -> str:
    """The first line of the innermost cause: the exporter wraps it in pages of advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}"


@contextmanager
def quiet() -> Iterator[None]:
    """Without the libraries' warnings and progress bars, which say nothing an operator can use."""
    from transformers.utils import logging as untyped

    transformers_logging: Any = untyped
    level = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    exporter = logging.getLogger("torch.onnx")
    exporter_level = exporter.level
    exporter.setLevel(logging.ERROR)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        exporter.setLevel(exporter_level)
        transformers_logging.set_verbosity(level)
        if bars:
            transformers_logging.enable_progress_bar()


def _input_names(source: ModelSource) -> tuple[str, ...]:
    return tuple(
        name for name in TOKEN_ROLES if name != "token_type_ids" or source.takes_token_types
    )


def _example(source: ModelSource, names: tuple[str, ...]) -> tuple[torch.Tensor, ...]:
    import torch

    tokens = min(_EXAMPLE_TOKENS, source.max_length)
    columns = torch.arange(_EXAMPLE_BATCH * tokens, dtype=torch.int32).reshape(_EXAMPLE_BATCH, -1)
    rows = {
        "input_ids": columns % 13 + source.tokenizer.pad_id % 2 + 1,
        "token_type_ids": torch.zeros_like(columns),
        "attention_mask": torch.ones_like(columns),
    }
    return tuple(rows[name] for name in names)


def _load(source: ModelSource) -> torch.nn.Module:
    """The module whose positional arguments are the graph's inputs."""
    try:
        loaded = _LOADERS[source.task](source)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ConversionRefused(
            f"the weights of '{source.name}' could not be loaded ({_root_cause(error)})"
        ) from error
    return loaded.eval()


def _load_classifier(source: ModelSource) -> torch.nn.Module:
    import torch
    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(
        str(source.folder), dtype=torch.float32, attn_implementation="eager"
    )
    names = _input_names(source)

    class Classifier(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *tensors: torch.Tensor) -> Any:
            return self.model(**dict(zip(names, tensors, strict=True))).logits

    return Classifier()


def _load_embedder(source: ModelSource) -> torch.nn.Module:
    import torch
    from sentence_transformers import SentenceTransformer

    # Eager attention exports to fewer nodes than the fused one and both engines fuse it again:
    # MiniLM on OpenVINO bf16 needs 1.17 ms instead of 1.44 ms for 16 tokens.
    sentence_model = SentenceTransformer(
        str(source.folder),
        device="cpu",
        model_kwargs={"dtype": torch.float32, "attn_implementation": "eager"},
    )
    modules: list[Any] = list(sentence_model)
    transformer, *after = modules
    names = _input_names(source)

    class Embedder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = transformer.auto_model
            self.after = torch.nn.ModuleList(after)

        def forward(self, *tensors: torch.Tensor) -> Any:
            given = dict(zip(names, tensors, strict=True))
            features = {
                "token_embeddings": self.encoder(**given).last_hidden_state,
                "attention_mask": given["attention_mask"],
            }
            for module in self.after:
                features = module(features)
            return features["sentence_embedding"]

    return Embedder()


_LOADERS = {"text-classification": _load_classifier, "sentence-embedding": _load_embedder}
