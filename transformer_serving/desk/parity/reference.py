"""The reference: what transformers and sentence-transformers themselves answer, in float32.

Torch is loaded here and where a graph is exported only. Each body is asked alone, so nothing is
ever padded.

Tested by tests/parity/test_check.py and tests/test_architectures.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from preprocess.tokens import Encoded
from transformer_serving.contract.endpoint import Endpoint
from transformer_serving.desk.export.endpoint_json import TASKS_CUT_BY_TOKENIZER
from transformer_serving.desk.export.heads import attention_of
from transformer_serving.desk.export.onnx import quiet
from transformer_serving.desk.failure import ConversionRefused
from transformer_serving.desk.parity.shapes import unpadded
from transformer_serving.desk.source.labels import columns_of
from transformer_serving.desk.source.model import ModelSource
from transformer_serving.desk.source.sentence import longest_of
from transformer_serving.desk.source.tokenizer import load_tokenizer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from preprocess.tensors import Tensor
    from transformer_serving.desk.builders.files import Call

Ask = Callable[[dict[str, Any]], Any]

# How many answers of the reference tell another span of the same score from the same one.
_RANKED = 5
PIPELINES, SENTENCES = "transformers.pipeline", "sentence-transformers"


def reference_name(endpoint: Endpoint) -> str:
    """The name that a manifest and messages give to the reference of the endpoint's task."""
    return _REFERENCES[endpoint.task][0]


def reference_answers(
    source: ModelSource, endpoint: Endpoint, bodies: Sequence[dict[str, Any]]
) -> list[Any]:
    """The answer to each body, in the shape that a caller of the endpoint gets; of
    question-answering a list, the answer first and behind it those that come after it, and of
    token-classification each token with the `scores` of all labels."""
    with quiet():
        ask = _REFERENCES[source.task][1](source, endpoint)
        return [ask(body) for body in bodies]


def reference_rows(
    source: ModelSource, endpoint: Endpoint, rows: Sequence[Encoded]
) -> list[list[NDArray[np.generic]]]:
    """The outputs of the model's own module to each row, alone and unpadded, in float32.

    Shapes are the head's without the batch. Raises what the loading packages raise.
    """
    call = reference_call(source, endpoint)
    return [[output[0] for output in call(unpadded(endpoint, row))] for row in rows]


def reference_call(source: ModelSource, endpoint: Endpoint) -> Call:
    """The model's own module in float32, as an engine is called."""
    import torch

    from transformer_serving.desk.export.heads import load_head

    with quiet():
        module = load_head(source, tuple(tensor.name for tensor in endpoint.inputs))

    def call(tensors: Sequence[Tensor]) -> list[NDArray[np.generic]]:
        with quiet(), torch.inference_mode():
            found = module(*(torch.from_numpy(tensor.array) for tensor in tensors))
            return [output.numpy() for output in found]

    return call


def _pipeline(task: str, source: ModelSource, endpoint: Endpoint, model: Any = None) -> Any:
    import torch
    from transformers import pipeline

    tokenizer = load_tokenizer(source.encoder)
    # Every pipeline that cuts asks its tokenizer where; one that cuts unasked is left to read on
    # where its tokenizer says no length, so that an endpoint that cuts there is seen.
    if source.tokenizer.max_length is not None or task not in TASKS_CUT_BY_TOKENIZER:
        tokenizer.model_max_length = endpoint.tokens.max_length
    return pipeline(
        task,  # type: ignore[call-overload]
        model=model or str(source.encoder),
        tokenizer=tokenizer,
        device="cpu",
        dtype=torch.float32,
        trust_remote_code=False,
        # Taken where the model is loaded here, and unheeded where it is given.
        model_kwargs={"attn_implementation": attention_of(source.encoder)},
    )


def _classifier(source: ModelSource, endpoint: Endpoint) -> Ask:
    pipe = _pipeline("text-classification", source, endpoint)

    def ask(body: dict[str, Any]) -> Any:
        given = {name: body[name] for name in ("text", "text_pair") if name in body}
        parameters = body.get("parameters", {})
        # Unlike other inputs, a dict is not wrapped in a list where top_k is not named.
        return pipe(given, truncation=True, **parameters)

    return ask


def _token_classifier(source: ModelSource, endpoint: Endpoint) -> Ask:
    pipe = _pipeline("token-classification", source, endpoint)

    def ask(body: dict[str, Any]) -> Any:
        rows = pipe(body["text"], **body.get("parameters", {}))
        scores = _scores_of_tokens(pipe, body["text"])
        # Of a group of tokens there is no place among them.
        return [{**row, "scores": scores[row["index"]]} if "index" in row else row for row in rows]

    return ask


def _scores_of_tokens(pipe: Any, text: str) -> list[dict[str, float]]:
    """Of each token, special ones included, the score of every label; the pipeline has the best."""
    import torch

    encoded = pipe.tokenizer(text, truncation=True, return_tensors="pt")
    with torch.inference_mode():
        scores = pipe.model(**encoded).logits[0].softmax(dim=-1)
    labels = pipe.model.config.id2label
    return [{labels[at]: score for at, score in enumerate(row)} for row in scores.tolist()]


def _question_answerer(source: ModelSource, endpoint: Endpoint) -> Ask:
    pipe = _pipeline("question-answering", source, endpoint)
    longest = min(384, endpoint.tokens.max_length)

    def ask(body: dict[str, Any]) -> Any:
        given = {"question": body["question"], "context": body["context"], "max_seq_len": longest}
        # How many are asked for decides which are added up, so the best one is asked for alone.
        best, ranked = (_listed(pipe(**given, top_k=count)) for count in (1, _RANKED))
        texts = {row["answer"].lower() for row in best}
        return [*best, *(row for row in ranked if row["answer"].lower() not in texts)]

    return ask


def _listed(answer: Any) -> list[Any]:
    """The pipeline unpacks a list of one."""
    return list(answer) if isinstance(answer, list) else [answer]


def _mask_filler(source: ModelSource, endpoint: Endpoint) -> Ask:
    pipe = _pipeline("fill-mask", source, endpoint)
    return lambda body: pipe(body["text"], tokenizer_kwargs={"truncation": True})


def _zero_shot_classifier(source: ModelSource, endpoint: Endpoint) -> Ask:
    import torch
    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(
        str(source.encoder),
        dtype=torch.float32,
        attn_implementation=attention_of(source.encoder),
        trust_remote_code=False,
    )
    assert endpoint.classification is not None
    # The pipeline looks for entailment there, and fails where a config has id2label alone.
    columns = columns_of(model.config.to_dict(), endpoint.classification.labels)
    model.config.label2id = dict(columns)
    pipe = _pipeline("zero-shot-classification", source, endpoint, model)
    return lambda body: pipe(body["text"], candidate_labels=body["candidate_labels"])


def _feature_extractor(source: ModelSource, endpoint: Endpoint) -> Ask:
    pipe = _pipeline("feature-extraction", source, endpoint)
    return lambda body: pipe(body["text"], truncation=True)[0]


def _sentence_model(source: ModelSource, endpoint: Endpoint) -> Any:
    from transformer_serving.desk.export.heads import load_sentence_model

    model = load_sentence_model(source)
    _set_length(model, endpoint)
    return model


def _set_length(model: Any, endpoint: Endpoint) -> None:
    """Raises ConversionRefused where the reference, left alone, would cut a text earlier."""
    ours = endpoint.tokens.max_length
    # What it tells the tokenizer at each call stands before the length that it has.
    calls = model[0].processing_kwargs
    own = longest_of({"processing_kwargs": calls}) or model.max_seq_length
    if own is not None and own < ours:
        raise ConversionRefused(
            f"{SENTENCES} cuts this model's texts at {own} tokens, and the endpoint would at "
            f"{ours}; convert with --max-length {own}"
        )
    model.max_seq_length = ours
    for kwargs in filter(None, calls.values()):
        if "max_length" in kwargs:
            kwargs["max_length"] = ours


def _embedder(source: ModelSource, endpoint: Endpoint) -> Ask:
    model = _sentence_model(source, endpoint)
    return lambda body: {"embedding": model.encode(body["text"], show_progress_bar=False).tolist()}


def _scorer(source: ModelSource, endpoint: Endpoint) -> Callable[[str, Sequence[str]], list[float]]:
    """Scores of one text with each of several."""
    if endpoint.head == "sequence":
        return partial(_cross_scores, _cross_encoder(source, endpoint))
    model = _sentence_model(source, endpoint)
    if source.task == "rerank":
        _set_lengths_of_sides(model[0], source.max_length, endpoint.tokens.max_length)
    return partial(_similarities, model, *_encoders(model, source.task))


def _set_lengths_of_sides(transformer: Any, longest: int | None, ours: int) -> None:
    """The lengths of a query and of a document, which stand in the place of the one for all texts.
    Raises ConversionRefused where one is shorter; one that is longer than the model's `longest`
    stays, so that the answers tell."""
    for name in ("query_length", "document_length"):
        own = getattr(transformer, name, None)
        if own is not None and own < ours:
            raise ConversionRefused(
                f"{SENTENCES} cuts this model's texts at {own} tokens by {name} in its "
                f"sentence_bert_config.json, and the endpoint would at {ours}; convert with "
                f"--max-length {own}, or a copy of the folder without {name}"
            )
        if own is not None and (longest is None or own <= longest):
            setattr(transformer, name, ours)


def _cross_encoder(source: ModelSource, endpoint: Endpoint) -> Any:
    import torch
    from sentence_transformers import CrossEncoder

    model = CrossEncoder(
        str(source.folder),
        device="cpu",
        trust_remote_code=False,
        model_kwargs={"dtype": torch.float32, "attn_implementation": attention_of(source.encoder)},
    )
    _set_length(model, endpoint)
    return model


def _cross_scores(model: Any, text: str, others: Sequence[str]) -> list[float]:
    pairs = [(text, other) for other in others]
    scores: list[float] = model.predict(pairs, batch_size=1, show_progress_bar=False).tolist()
    return scores


def _encoders(model: Any, task: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Of the one text and of the others: rerank has prompts for each side of its own, where those
    of sentence-similarity are alike."""
    if task == "rerank":
        return model.encode_query, model.encode_document
    return model.encode, model.encode


def _similarities(
    model: Any,
    of_one: Callable[..., Any],
    of_others: Callable[..., Any],
    text: str,
    others: Sequence[str],
) -> list[float]:
    own = of_one([text], show_progress_bar=False)
    documents = of_others(list(others), batch_size=1, show_progress_bar=False)
    scores: list[float] = model.similarity(own, documents)[0].tolist()
    return scores


def _similarity_scorer(source: ModelSource, endpoint: Endpoint) -> Ask:
    score = _scorer(source, endpoint)
    return lambda body: {"scores": score(body["source_sentence"], body["sentences"])}


def _ranker(source: ModelSource, endpoint: Endpoint) -> Ask:
    score = _scorer(source, endpoint)

    def ask(body: dict[str, Any]) -> Any:
        scores = score(body["query"], body["texts"])
        order = sorted(range(len(scores)), key=lambda at: -scores[at])
        return [{"index": at, "score": scores[at]} for at in order]

    return ask


# By task: who the reference is, and how it is asked.
_REFERENCES: dict[str, tuple[str, Callable[[ModelSource, Endpoint], Ask]]] = {
    "text-classification": (PIPELINES, _classifier),
    "token-classification": (PIPELINES, _token_classifier),
    "question-answering": (PIPELINES, _question_answerer),
    "fill-mask": (PIPELINES, _mask_filler),
    "zero-shot-classification": (PIPELINES, _zero_shot_classifier),
    "feature-extraction": (PIPELINES, _feature_extractor),
    "sentence-embedding": (SENTENCES, _embedder),
    "sentence-similarity": (SENTENCES, _similarity_scorer),
    "rerank": (SENTENCES, _ranker),
}
