"""The torch module of each head: positional tensors in, the head's outputs as a tuple.

Attention is the eager one unless asked otherwise: it exports to fewer nodes than the fused one, and
both engines that read ONNX on a CPU fuse it again (MiniLM on OpenVINO bf16 needs 1.17 ms instead of
1.44 ms for 16 tokens).

Tested by tests/export/test_onnx.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_serving.desk.source.json_files import read_json
from transformer_serving.desk.source.model import ModelSource

if TYPE_CHECKING:
    import torch

    Outputs = tuple[torch.Tensor, ...]
    # From the model's inputs by name, to the head's outputs.
    Compute = Callable[[dict[str, torch.Tensor]], Outputs]

# Families whose classifier reads the decoder at the end token.
_READ_AT_LAST_END = ("bart", "mbart", "plbart")
# Fillings that the fill-mask graph gives for each mask; a caller's top_k ends here.
BEST = 100
# Written out; and the fused one of torch, for families that have it.
EAGER, FUSED = "eager", None


def load_head(
    source: ModelSource, names: Sequence[str], attention: str | None = EAGER
) -> torch.nn.Module:
    """The float32 module of the source's head; `names` are its positional arguments in order.

    `parts[0]` of it is the model, what follows is computed from its outputs.

    Raises what the loading packages raise when the weights are missing or do not fit.
    """
    import torch

    parts, compute = _LOADERS[source.head](source, attention_of(source.encoder, attention))
    for module in parts[0].modules():
        # GPT-2's same scores by another way, which begins with memory that nobody has written.
        if hasattr(module, "reorder_and_upcast_attn"):
            module.reorder_and_upcast_attn = False

    class Head(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = torch.nn.ModuleList(parts)

        def forward(self, *tensors: torch.Tensor) -> Outputs:
            return compute(dict(zip(names, tensors, strict=True)))

    return Head().eval()


def attention_of(folder: Path, attention: str | None = FUSED) -> str | None:
    """`attention`, or the eager one of a model whose scores only that computes: what caps them
    (Gemma-2) or scales them otherwise (some GPT-2) the fused one of torch leaves out, with no more
    than a warning."""
    config = read_json(folder / "config.json") or {}
    own = (
        config.get("attn_logit_softcapping")
        or config.get("scale_attn_by_inverse_layer_idx")
        or not config.get("scale_attn_weights", True)
    )
    return EAGER if own else attention


def _load(class_name: str, source: ModelSource, attention: str | None) -> Any:
    import torch
    import transformers

    cls: Any = getattr(transformers, class_name)
    # Missing weights are made up by chance, with no more than a warning.
    model, report = cls.from_pretrained(
        str(source.encoder),
        dtype=torch.float32,
        attn_implementation=attention,
        output_loading_info=True,
        trust_remote_code=False,
    )
    _check_weights(report["missing_keys"], encoder=class_name == "AutoModel")
    model.config.use_cache = False
    return model


def _check_weights(missing_keys: Iterable[str], *, encoder: bool) -> None:
    # Vectors of tokens do not pass the pooler, and most encoders are saved without one.
    unused = "pooler" if encoder else None
    missing = sorted(name for name in missing_keys if not unused or unused not in name)
    if missing:
        raise ValueError(
            f"the weights of {len(missing)} parts are missing, the first is {missing[0]}"
        )


@contextmanager
def _reported() -> Iterator[set[str]]:
    """While open, the names of weights that are missing from what transformers loads;
    sentence-transformers has no way to ask for them."""
    from transformers import PreTrainedModel

    # Its types know neither what it gives beside the model nor that it may be replaced.
    base: Any = PreTrainedModel
    own, missing = base.__dict__["from_pretrained"], set[str]()

    def from_pretrained(cls: Any, *given: Any, **named: Any) -> Any:
        model, report = own.__func__(cls, *given, **{**named, "output_loading_info": True})
        missing.update(report["missing_keys"])
        return model

    base.from_pretrained = classmethod(from_pretrained)
    try:
        yield missing
    finally:
        base.from_pretrained = own


def _sequence(source: ModelSource, attention: str | None) -> tuple[list[Any], Compute]:
    """Logits [texts, labels]."""
    model = _load("AutoModelForSequenceClassification", source, attention)
    if source.model_type in _READ_AT_LAST_END:
        return [model], lambda given: (_at_last_end(model, given),)
    return [model], lambda given: (model(**given).logits,)


def _at_last_end(model: Any, given: dict[str, torch.Tensor]) -> torch.Tensor:
    """The logits at each text's last end token.

    The model's own code wants the same number of end tokens in each text of a batch and otherwise
    fails, or as a graph takes one text's token for another's.
    """
    import torch

    hidden = model.model(**given)[0]
    order = torch.arange(1, hidden.shape[1] + 1, device=hidden.device)
    last = ((given["input_ids"] == model.config.eos_token_id) * order).argmax(dim=1)
    at_end = hidden.gather(1, last[:, None, None].expand(-1, 1, hidden.shape[2]))
    logits: torch.Tensor = model.classification_head(at_end[:, 0])
    return logits


def _tokens(source: ModelSource, attention: str | None) -> tuple[list[Any], Compute]:
    """Logits [texts, tokens, labels]."""
    model = _load("AutoModelForTokenClassification", source, attention)
    return [model], lambda given: (model(**given).logits,)


def _spans(source: ModelSource, attention: str | None) -> tuple[list[Any], Compute]:
    """Logits of first and last token, [texts, tokens, 2]."""
    import torch

    model = _load("AutoModelForQuestionAnswering", source, attention)

    def compute(given: dict[str, torch.Tensor]) -> Outputs:
        found = model(**given)
        return (torch.stack((found.start_logits, found.end_logits), dim=-1),)

    return [model], compute


def _masks(source: ModelSource, attention: str | None) -> tuple[list[Any], Compute]:
    """Best scores and their token ids, [texts, masks, best], and the candidates' scores.

    The encoder's output is cut to the masks before the language model's head sees it, so neither
    the head nor the vocabulary is ever computed for a whole text.
    """

    model = _load("AutoModelForMaskedLM", source, attention)
    best = min(BEST, int(model.config.vocab_size))

    def compute(given: dict[str, torch.Tensor]) -> Outputs:
        positions, candidates = given.pop("mask_positions"), given.pop("candidates")
        with _only_at(model.base_model, positions):
            logits = model(**given).logits
        scores = logits.float().softmax(dim=-1)
        top = scores.topk(best, dim=-1)
        asked = candidates.long().clamp(0, scores.shape[-1] - 1)[:, None, :]
        of_candidates = scores.gather(2, asked.expand(-1, scores.shape[1], -1))
        return top.values, top.indices.int(), of_candidates

    return [model], compute


@contextmanager
def _only_at(encoder: torch.nn.Module, positions: torch.Tensor) -> Iterator[None]:
    """While open, `encoder` gives its hidden states [texts, masks, width] at `positions` only."""

    def cut(module: torch.nn.Module, arguments: Any, output: Any) -> Any:
        hidden = output[0]
        # Padding among the positions is zero; nothing may ever be read outside the text.
        places = positions.long().clamp(0, hidden.shape[1] - 1)[:, :, None]
        gathered = hidden.gather(1, places.expand(-1, -1, hidden.shape[2]))
        if isinstance(output, tuple):
            return (gathered, *output[1:])
        output["last_hidden_state"] = gathered
        return output

    hook = encoder.register_forward_hook(cut)
    try:
        yield
    finally:
        hook.remove()


def _token_vectors(source: ModelSource, attention: str | None) -> tuple[list[Any], Compute]:
    """Hidden states [texts, tokens, width]."""
    model = _load("AutoModel", source, attention)
    return [model], lambda given: (model(**given)[0],)


def load_sentence_model(source: ModelSource, **model_arguments: Any) -> Any:
    """The SentenceTransformer of the source, in float32, with the pooling that was asked for."""
    import torch
    from sentence_transformers import SentenceTransformer

    model: Any = SentenceTransformer(
        str(source.folder),
        device="cpu",
        trust_remote_code=False,
        model_kwargs={
            "dtype": torch.float32,
            "attn_implementation": attention_of(source.encoder),
            **model_arguments,
        },
    )
    asked = source.sentence.pooling if source.sentence else None
    if asked is not None:
        from sentence_transformers.sentence_transformer.modules import Pooling

        # It has made a Pooling by means of its own, as for any folder without modules.
        model[1] = Pooling(model[0].get_embedding_dimension(), pooling_mode=asked)
    return model


def _vector(source: ModelSource, attention: str | None) -> tuple[list[Any], Compute]:
    """Final vectors [texts, width], pooled and normalized by sentence-transformers' own modules."""
    import torch

    with _reported() as missing:
        sentence_model = load_sentence_model(source, attn_implementation=attention)
    _check_weights(missing, encoder=True)
    modules: list[Any] = list(sentence_model)
    transformer, *after = modules
    encoder = transformer.auto_model
    encoder.config.use_cache = False

    def compute(given: dict[str, torch.Tensor]) -> Outputs:
        hidden = encoder(**given)[0]
        features = {
            # Sums over a text are taken in float32, whatever the encoder computes in.
            "token_embeddings": hidden if hidden.dtype == torch.float32 else hidden.float(),
            "attention_mask": given["attention_mask"],
        }
        for module in after:
            features = module(features)
        return (features["sentence_embedding"],)

    return [encoder, *after], compute


_LOADERS: dict[str, Callable[[ModelSource, str | None], tuple[list[Any], Compute]]] = {
    "sequence": _sequence,
    "tokens": _tokens,
    "spans": _spans,
    "masks": _masks,
    "vector": _vector,
    "token_vectors": _token_vectors,
}
