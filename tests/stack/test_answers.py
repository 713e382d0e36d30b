"""What a user's requests answer, through the unmodified app and the real engine."""

from __future__ import annotations

import http.client
import json
import math
from contextlib import closing
from typing import Any

import pytest

from tests.stack.conftest import Stack

SEED = "This is a ClearML example to show how Triton binaries are deployed."
TEXTS = [
    "Fine.",
    "I will never buy from this shop again, the parcel came broken.",
    "",
    "The guide was friendly and knew every stone of the old town. " * 8,
    SEED,
]


def close(one: Any, other: Any, tolerance: float) -> bool:
    if isinstance(one, dict):
        return all(close(one[name], other[name], tolerance) for name in one)
    if isinstance(one, list):
        return all(close(a, b, tolerance) for a, b in zip(one, other, strict=True))
    return abs(one - other) <= tolerance if isinstance(one, float) else bool(one == other)


def test_the_seeds_request_answers_label_and_score(stack: Stack) -> None:
    status, answer = stack.post("transformer_model", {"text": SEED})
    assert status == 200
    assert answer["label"] in ("NEGATIVE", "POSITIVE")
    assert 0.5 <= answer["score"] <= 1


def test_a_list_answers_in_order_whatever_the_lengths(stack: Stack) -> None:
    status, answers = stack.post("transformer_model", {"text": TEXTS})
    assert status == 200
    singles = [stack.post("transformer_model", {"text": text})[1] for text in TEXTS]
    # bf16 rounds differently in another batch shape; which label it is must not change.
    assert [row["label"] for row in answers] == [row["label"] for row in singles]
    assert close(answers, singles, 0.02)


def test_sentiment_is_told_apart(stack: Stack) -> None:
    body = {"text": ["The best meal I have had in years.", "A dull, rude and dirty place."]}
    labels = [row["label"] for row in stack.post("transformer_model", body)[1]]
    assert labels == ["POSITIVE", "NEGATIVE"]


def test_embeddings_are_unit_vectors_of_384_floats(stack: Stack) -> None:
    status, answers = stack.post("sentence_embeddings", {"text": TEXTS})
    assert status == 200
    assert len(answers) == len(TEXTS)
    for answer in answers:
        assert len(answer["embedding"]) == 384
        assert math.isclose(sum(x * x for x in answer["embedding"]), 1, abs_tol=1e-3)


def test_the_pipelines_shape_and_top_k(stack: Stack) -> None:
    body = {"inputs": SEED, "parameters": {"top_k": None}}
    status, answer = stack.post("transformer_model", body)
    assert status == 200
    assert {row["label"] for row in answer} == {"NEGATIVE", "POSITIVE"}
    assert math.isclose(sum(row["score"] for row in answer), 1, abs_tol=1e-5)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 400),
        ({"text": None}, 400),
        ({"text": 7}, 400),
        ({"text": []}, 400),
        ({"text": ["a"] * 10_000}, 413),
        ({"text": "a" * 2_200_000}, 413),
        ({"text": "a", "colour": "red"}, 400),
        ({"text": float("nan")}, 400),
        ({"text": "\ud800"}, 400),
        ({"text": "word " * 600}, 413),
        ({"text": "a", "timeout_ms": -1}, 400),
    ],
)
def test_a_bad_body_is_answered_from_the_table_and_the_next_one_works(
    stack: Stack, body: Any, status: int
) -> None:
    got, answer = stack.post("transformer_model", body)
    assert (got, set(answer)) == (status, {"code", "message", "field", "limit", "got"})
    assert stack.post("transformer_model", {"text": SEED})[0] == 200


RAW = [
    (b'["a"]', "application/json", (400, 422)),
    (b"null", "application/json", (400, 422)),
    (b"{", "application/json", (400, 422)),
    (b'{"text": "\xff"}', "application/json", (400, 422)),
    (b"[" * 100_000, "application/json", (400, 422)),
    (b"\xff\xfe\x00", "text/plain", (400,)),
    (b"plain words, no JSON", "text/plain", (200,)),
    (b"", "application/json", (400, 422)),
]


@pytest.mark.parametrize(("raw", "kind", "statuses"), RAW)
def test_a_body_that_is_no_json_never_hurts(
    stack: Stack, raw: bytes, kind: str, statuses: tuple[int, ...]
) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", stack.base, timeout=20)
    connection.request("POST", "/serve/transformer_model", raw, {"Content-Type": kind})
    answer = connection.getresponse()
    text = answer.read()
    assert answer.status in statuses, text
    connection.close()
    assert stack.post("transformer_model", {"text": SEED})[0] == 200


def test_every_answer_names_its_bundle(stack: Stack) -> None:
    rows = {row["endpoint"]: row for row in stack.json("status")["endpoints"]}
    kind = {"Content-Type": "application/json"}
    with closing(http.client.HTTPConnection("127.0.0.1", stack.base, timeout=20)) as connection:
        for body in ({"text": SEED}, {}):
            connection.request("POST", "/serve/transformer_model", json.dumps(body), kind)
            answer = connection.getresponse()
            answer.read()
            version = answer.headers["x-bundle-version"]
            assert int(version) == rows["transformer_model"]["bundle_version"]
