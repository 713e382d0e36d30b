"""A causal language model becomes OpenVINO's stateful graph, by an exporter of our own.

optimum's writes GPT-Neo's windows in a form that paged attention does not read: its text is wrong
past the window and nothing says so (docs/decisions/language-models.md).

Tested by tests/test_language_model.py.
"""

from __future__ import annotations

import inspect
from typing import Any

from transformer_serving.contract.error_line import named_line
from transformer_serving.desk.export.heads import attention_of
from transformer_serving.desk.export.onnx import quiet
from transformer_serving.desk.failure import ConversionRefused
from transformer_serving.desk.interruption import reraise_interruption
from transformer_serving.desk.source.language_model import LanguageModelSource

# No two sizes of the example may be equal, or the tracer could take them for one.
_TEXTS, _PAST, _NEW = 2, 3, 4
# Families whose layers take no attention from outside.
_CLOSED = ("gpt_neo", "gptj")
_NO_PLACE = "its layers do not take attention from outside"


def load_language_model(source: LanguageModelSource, attention: str | None = None) -> Any:
    """The float32 model of transformers, with the attention that is its own unless one is named.
    Raises ConversionRefused where weights are missing."""
    import torch
    import transformers

    # What it gives beside the model is not in its types.
    loader: Any = transformers.AutoModelForCausalLM
    try:
        model, report = loader.from_pretrained(
            str(source.folder),
            dtype=torch.float32,
            attn_implementation=attention or attention_of(source.folder),
            output_loading_info=True,
            trust_remote_code=False,
        )
    except Exception as error:
        reraise_interruption(error)
        # Falcon and others choose among their own attentions by name.
        if isinstance(error, KeyError) and attention is not None and error.args == (attention,):
            raise _no_graph(source, _NO_PLACE) from error
        raise ConversionRefused(
            f"the weights of '{source.name}' could not be loaded ({named_line(error)}); fetch "
            "the model whole, or one that transformers reads"
        ) from error
    # Missing ones are made up by chance, with no more than a warning.
    missing = sorted(report["missing_keys"])
    if missing:
        raise ConversionRefused(
            f"the weights of {len(missing)} parts of '{source.name}' are missing, the first is "
            f"{missing[0]}; fetch the model whole, or name a --task whose head it has"
        )
    return model.eval()


def export_language_model(source: LanguageModelSource) -> Any:
    """The OpenVINO model in float32: ids, mask, positions and beams in, logits out, keys and values
    as state. Raises ConversionRefused, and says why."""
    from transformers import AttentionInterface

    from transformer_serving.desk.export.attention import NAME, Attention, take_over
    from transformer_serving.desk.export.stateful import make_stateful

    attention = Attention()
    AttentionInterface.register(NAME, attention.interface)
    with quiet():
        model = load_language_model(source, "eager" if source.model_type in _CLOSED else NAME)
        take_over(model, attention)
        shape = _state_shape(model.config)
        try:
            traced = _traced(model, attention, shape)
            _check_window(source, model.config, attention)
            make_stateful(traced, *shape)
        except Exception as error:
            reraise_interruption(error)
            raise _no_graph(source, named_line(error)) from error
    return traced


def _no_graph(source: LanguageModelSource, why: str) -> ConversionRefused:
    return ConversionRefused(
        f"model type '{source.model_type}' cannot be turned into a graph with a cache ({why}); "
        "convert one of the families of language models in docs/models.md"
    )


def _check_window(source: LanguageModelSource, config: Any, attention: Any) -> None:
    """Raises ValueError where layers leave their window to the mask, which is not exported.

    Parity's prompts are hardly longer than a wide one, and bf16 may hide what few tokens change.
    """
    window = source.window
    # A config keeps fields that its family knows nothing of.
    known = "sliding_window" in inspect.signature(type(config).__init__).parameters
    if window is None or not known or attention.windows:
        return
    if window < source.generation.max_positions:
        raise ValueError(
            f"its layers do not tell attention of their sliding window of {window} tokens; "
            f"--max-length {window} needs none"
        )


def _state_shape(config: Any) -> tuple[int, int, int]:
    """Layers, and the heads and width of a layer's keys, as every family's config has them."""
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(config.num_hidden_layers), int(heads), int(width)


def _traced(model: Any, attention: Any, shape: tuple[int, int, int]) -> Any:
    import torch

    from transformer_serving.engine.backends.openvino_quiet import openvino

    layers, heads, width = shape
    total = _PAST + _NEW
    ids = torch.ones((_TEXTS, _NEW), dtype=torch.int64)
    mask = torch.ones((_TEXTS, total), dtype=torch.int64)
    positions = torch.arange(_PAST, total)[None].expand(_TEXTS, _NEW).contiguous()
    past = [torch.zeros((_TEXTS, heads, _PAST, width)) for _ in range(2 * layers)]
    with torch.no_grad():
        traced = openvino.convert_model(
            _decoder(model, attention), example_input=(ids, mask, positions, *past)
        )
    if not attention.calls or attention.calls % layers:
        raise ValueError(_NO_PLACE)
    return traced


def _decoder(model: Any, attention: Any) -> Any:
    """The module that is traced: what it takes and gives stands in `make_stateful`."""
    import torch

    from transformer_serving.desk.export.attention import Masks

    class Decoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(
            self,
            input_ids: torch.Tensor,
            attention_mask: torch.Tensor,
            position_ids: torch.Tensor,
            *past: torch.Tensor,
        ) -> tuple[torch.Tensor, ...]:
            cache = _Cache(list(past))
            attention.masks = Masks(attention_mask != 0, input_ids.shape[1])
            found = self.model(
                input_ids=input_ids,
                # One of four dimensions is taken as it is, and nothing made of it.
                attention_mask=attention.masks.of(None),
                position_ids=position_ids,
                past_key_values=cache,
                use_cache=True,
                cache_position=attention.masks.queries,
                return_dict=True,
            )
            return (found.logits, *cache.flat)

    return Decoder().eval()


class _Cache:
    """The least of a transformers Cache that decoders ask for: layers that only grow."""

    is_compileable = False
    is_initialized = True

    def __init__(self, flat: list[Any]) -> None:
        self.flat = flat
        self.is_sliding = [False] * (len(flat) // 2)

    def update(
        self, key: Any, value: Any, layer_idx: int, cache_kwargs: Any = None
    ) -> tuple[Any, Any]:
        import torch

        for at, new in ((2 * layer_idx, key), (2 * layer_idx + 1, value)):
            self.flat[at] = torch.cat([self.flat[at], new], dim=-2)
        return self.flat[2 * layer_idx], self.flat[2 * layer_idx + 1]

    def get_seq_length(self, layer_idx: int = 0) -> Any:
        return self.flat[2 * layer_idx].shape[-2]

    def get_mask_sizes(self, cache_position: Any, layer_idx: int) -> tuple[Any, int]:
        return self.get_seq_length(layer_idx) + cache_position.shape[0], 0

    def get_max_cache_shape(self, layer_idx: int = 0) -> int:
        return -1

    def __len__(self) -> int:
        return len(self.is_sliding)
