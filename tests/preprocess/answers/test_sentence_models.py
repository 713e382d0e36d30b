"""Embeddings, similarities and ranks against sentence-transformers, of bi- and cross-encoders."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, note, strategies as st

from tests.preprocess.answers.comparison import check_best, check_equal
from tests.preprocess.answers.families import FAMILIES, MAX_LENGTH
from tests.preprocess.answers.served import Served, plain, serve
from tests.preprocess.answers.test_equality import BY_FIRST_TOKEN, few
from tests.preprocess.answers.texts import lists, texts

pytestmark = pytest.mark.filterwarnings("ignore")
PROMPTS = {"query": "query: ", "document": "passage: ", "clustering": "group ", "plain": ""}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Each family's encoder on disk, as sentence-transformers reads it."""

    @cache
    def folder(name: str, head: str) -> Path:
        path = tmp_path_factory.mktemp(name)
        changes = {"labels": ("LABEL_0",)} if head == "sequence" else {}
        model: Any = FAMILIES[name].model(head, **changes)
        model.save_pretrained(str(path))
        FAMILIES[name].fast_tokenizer().save_pretrained(str(path))
        return path

    return folder


@pytest.fixture(scope="module")
def sentence_model(folders: Any) -> Any:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import (
        Normalize,
        Pooling,
        Transformer,
    )

    def build(name: str, pooling: str, *, normal: bool = True, kept: int | None = None) -> Any:
        encoder = Transformer(str(folders(name, "token_vectors")), max_seq_length=MAX_LENGTH)
        modules: list[Any] = [encoder, Pooling(32, pooling_mode=pooling)]
        if normal:
            modules.append(Normalize())
        return SentenceTransformer(
            modules=modules,
            device="cpu",
            prompts=PROMPTS,
            default_prompt_name="clustering",
            truncate_dim=kept,
        )

    return build


def embedding(**changes: Any) -> dict[str, Any]:
    return {
        "pooling": "engine",
        "normalize": False,
        "dimensions": 32,
        "similarity": "cosine",
        "prompts": PROMPTS,
        "default_prompt": "clustering",
        **changes,
    }


@pytest.mark.parametrize("normal", [True, False])
@pytest.mark.parametrize("pooling", ["cls", "mean", "max", "lasttoken"])
def test_sentence_embedding(sentence_model: Any, pooling: str, normal: bool) -> None:
    family = FAMILIES["bert" if normal else "roberta"]
    model = sentence_model(family.name, pooling, normal=normal, kept=20)
    task = "sentence-embedding"

    def served(head: str) -> Served:
        here = head == "token_vectors"
        return serve(
            family,
            task,
            model[0].auto_model if here else model,
            head=head,
            outputs=[{"name": "output_0", "dtype": "FP32", "dims": [-1] * here + [32]}],
            embedding=embedding(
                pooling=pooling if here else "engine", normalize=here and normal, dimensions=20
            ),
        )

    # One reference of both, which takes longer than they.
    by_head = {head: served(head) for head in ("vector", "token_vectors")}

    @few
    @given(
        inputs=texts(family) | lists(family),
        parameters=st.fixed_dictionaries(
            {},
            optional={
                "prompt_name": st.sampled_from(sorted(PROMPTS)),
                "prompt": st.sampled_from(["", "find 🙂 "]),
                "normalize_embeddings": st.booleans(),
                # The model keeps 20 where a request does not say.
                "truncate_dim": st.integers(1, 32),
            },
        ),
    )
    def check(inputs: Any, parameters: Any) -> None:
        reference = plain(model.encode(inputs, show_progress_bar=False, **parameters))
        for head, one in by_head.items():
            note(head)
            check_equal(task, one.answer({"inputs": inputs, "parameters": parameters}), reference)
            own = one.answer({"text": inputs, "parameters": parameters})
            rows = own if isinstance(inputs, list) else [own]
            vectors = [row["embedding"] for row in rows]
            check_equal(task, vectors, reference if isinstance(inputs, list) else [reference])

    check()


@BY_FIRST_TOKEN
def test_similarity_and_rerank_of_a_bi_encoder(sentence_model: Any, name: str) -> None:
    family = FAMILIES[name]
    model = sentence_model(name, "mean")

    def served(task: str, similarity: str) -> Served:
        return serve(family, task, model, head="vector", embedding=embedding(similarity=similarity))

    # The vectors are those of all four, and take longer than what is made of them.
    by_similarity = {
        similarity: (served("sentence-similarity", similarity), served("rerank", similarity))
        for similarity in ("cosine", "dot", "euclidean", "manhattan")
    }

    @few
    @given(one=texts(family), many=lists(family))
    def check(one: str, many: list[str]) -> None:
        body: dict[str, Any] = {"source_sentence": one, "sentences": many}
        plain_vectors = model.encode(one), model.encode(many)
        asked_vectors = model.encode_query(one), model.encode_document(many)
        for similarity, (similar, ranked) in by_similarity.items():
            note(similarity)
            model.similarity_fn_name = similarity
            scores = model.similarity(*plain_vectors)[0].tolist()
            check_equal("sentence-similarity", similar.answer(body), {"scores": scores})
            check_equal("sentence-similarity", similar.answer({"inputs": body}), scores)
            scores = model.similarity(*asked_vectors)[0].tolist()
            check_equal("rerank", ranked.answer({"query": one, "texts": many}), by_score(scores))

    check()


def by_score(scores: list[float]) -> list[dict[str, Any]]:
    rows = [{"index": at, "score": score} for at, score in enumerate(scores)]
    return sorted(rows, key=lambda row: row["score"], reverse=True)


@BY_FIRST_TOKEN
@pytest.mark.parametrize("activation", ["sigmoid", "none"])
def test_similarity_and_rerank_of_a_cross_encoder(folders: Any, name: str, activation: str) -> None:
    from sentence_transformers import CrossEncoder

    family = FAMILIES[name]
    function = torch.nn.Sigmoid() if activation == "sigmoid" else torch.nn.Identity()
    model = CrossEncoder(
        str(folders(name, "sequence")),
        device="cpu",
        max_length=MAX_LENGTH,
        activation_fn=function,
    )
    classification = {
        "labels": ["LABEL_0"], "problem_type": "regression", "activation": activation
    }  # fmt: skip

    def served(task: str) -> Served:
        head = family.model("sequence", labels=("LABEL_0",))
        return serve(family, task, head, head="sequence", classification=classification)

    similar, ranked = served("sentence-similarity"), served("rerank")

    @few
    @given(one=texts(family), many=lists(family), top_k=st.integers(1, 5))
    def check(one: str, many: list[str], top_k: int) -> None:
        pairs = [(one, text) for text in many]
        scores = model.predict(pairs, show_progress_bar=False).tolist()
        body: dict[str, Any] = {"source_sentence": one, "sentences": many}
        check_equal("sentence-similarity", similar.answer(body), {"scores": scores})
        every = [
            {"index": row["corpus_id"], "score": row["score"], "text": row["text"]}
            for row in model.rank(one, many, return_documents=True, show_progress_bar=False)
        ]
        parameters = {"top_k": top_k, "return_documents": True}
        inputs = {"query": one, "texts": many}
        ours = ranked.answer({"inputs": inputs, "parameters": parameters})
        assert len(ours) == min(top_k, len(many))
        check_best(ours, every)

    check()
