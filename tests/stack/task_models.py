"""A bundle for every task, converted from tiny models, and what the references answer to a body."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.preprocess.answers.families import FAMILIES, LABELS
from tests.preprocess.answers.served import plain
from transformer_serving.desk.bundle.folder import Bundle
from transformer_serving.desk.conversion.encoder import ConvertRequest, convert
from transformer_serving.desk.export.heads import attention_of

Ask = Callable[[dict[str, Any]], Any]

# Their vocabularies are small, so that plain sentences take many tokens.
MAX_LENGTH = 120
# Of each task: the family, the head, and the labels where it has them.
_MODELS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "text-classification": ("bert", "sequence", ("NEGATIVE", "POSITIVE")),
    "token-classification": ("xlm-roberta", "tokens", LABELS),
    "question-answering": ("bert", "spans", ("first", "last")),
    "fill-mask": ("roberta", "masks", ()),
    "zero-shot-classification": ("roberta", "sequence", ("contradiction", "entailment")),
    "feature-extraction": ("xlm-roberta", "token_vectors", ()),
    "sentence-embedding": ("bert", "token_vectors", ()),
    "sentence-similarity": ("xlm-roberta", "token_vectors", ()),
    "rerank": ("roberta", "sequence", ("LABEL_0",)),
}


def bundle_of(task: str, folder: Path) -> Bundle:
    """In float32 for ONNX Runtime, so that answers can be compared closely."""
    model = _saved(task, folder / f"model of {task}")
    request = ConvertRequest(
        str(model), task=task, engine="onnxruntime", precision="fp32", name=task
    )
    return convert(request, folder / task, lambda step, line: None).bundle


def _model(task: str) -> Any:
    name, head, labels = _MODELS[task]
    changes: dict[str, Any] = {"labels": labels} if labels else {}
    return FAMILIES[name].model(head, max_position_embeddings=MAX_LENGTH + 8, **changes)


def _saved(task: str, folder: Path) -> Path:
    if task in ("sentence-embedding", "sentence-similarity"):
        encoder = folder.with_name(f"encoder of {task}")
        _write(task, encoder)
        _sentence_model(encoder).save(str(folder))
        return folder
    return _write(task, folder)


def _write(task: str, folder: Path) -> Path:
    _model(task).save_pretrained(str(folder))
    FAMILIES[_MODELS[task][0]].fast_tokenizer(MAX_LENGTH).save_pretrained(str(folder))
    return folder


def _sentence_model(encoder: Path) -> Any:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import (
        Normalize,
        Pooling,
        Transformer,
    )

    modules: list[Any] = [Transformer(str(encoder)), Pooling(32), Normalize()]
    return SentenceTransformer(modules=modules, device="cpu")


def reference_of(task: str, folder: Path) -> Ask:
    """What the reference answers to a body of the task's own fields, in the API's form."""
    return reference_at(task, folder / f"model of {task}")


def reference_at(task: str, model: Path) -> Ask:
    """Likewise, of the model in a folder of its own."""
    saved = str(model)
    if task == "rerank":
        return _ranks(saved)
    if task in _VECTORS:
        from sentence_transformers import SentenceTransformer

        encoder = SentenceTransformer(saved, device="cpu")
        return lambda body: _VECTORS[task](encoder, body)
    from transformers import pipeline

    attention = {"attn_implementation": attention_of(model)}
    asked: Any = pipeline(  # type: ignore[call-overload]
        task, model=saved, device="cpu", model_kwargs=attention
    )
    return lambda body: plain(_ask(asked, dict(body)))


def _ask(pipeline: Any, body: dict[str, Any]) -> Any:
    parameters = body.pop("parameters", {})
    if "inputs" in body:
        return pipeline(body["inputs"], **parameters)
    if "question" in body:
        return pipeline(**body, **parameters)
    text = body.pop("text")
    if "text_pair" in body:
        return pipeline({"text": text, "text_pair": body["text_pair"]}, **parameters)
    answer = pipeline(text, **body, **parameters)
    # What the pipeline wraps around one text is no part of the task's own answer.
    wraps = pipeline.task in ("text-classification", "feature-extraction")
    return answer[0] if wraps else answer


def _embedding(model: Any, body: dict[str, Any]) -> Any:
    vector = model.encode(body["text"], **body.get("parameters", {}))
    return {"embedding": vector.tolist()}


def _similarity(model: Any, body: dict[str, Any]) -> Any:
    one, many = model.encode(body["source_sentence"]), model.encode(body["sentences"])
    return {"scores": model.similarity(one, many)[0].tolist()}


_VECTORS: dict[str, Callable[[Any, dict[str, Any]], Any]] = {
    "sentence-embedding": _embedding,
    "sentence-similarity": _similarity,
}


def _ranks(saved: str) -> Ask:
    from sentence_transformers import CrossEncoder

    model = CrossEncoder(saved, device="cpu")

    def ask(body: dict[str, Any]) -> Any:
        rows = model.rank(body["query"], body["texts"], **body.get("parameters", {}))
        return [
            {"index": row["corpus_id"], **{key: row[key] for key in row if key != "corpus_id"}}
            for row in rows
        ]

    return ask
