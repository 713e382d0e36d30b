"""ClearML's own metric logging takes labels and scores, in both set-ups: the host's real queue."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.engine.triton_server import wait_until
from tests.gateway.conftest import Server, running
from tests.gateway.text_serving import TextServing

LABELS = ("LENGTH", "SUM")


@pytest.fixture(scope="module")
def text_serving(own_text_serving: TextServing) -> TextServing:
    """Its service logs metrics."""
    return own_text_serving


@pytest.fixture(scope="module")
def ways(text_serving: TextServing) -> Iterator[dict[str, Server]]:
    """Servers whose statistics go to a broker that never answers, so that they stay queued."""
    service = text_serving.session
    service.clearml_serving(
        "metrics", "add", "--endpoint", "texts", "--variable-scalar", "score=0,10,100000",
        "--variable-enum", f"label={','.join(LABELS)}", "--variable-value", "timeout_ms",
    )  # fmt: skip
    broker = {"CLEARML_DEFAULT_KAFKA_SERVE_URL": "127.0.0.1:9"}
    try:
        with running(text_serving.gateway(**broker), text_serving.stock(**broker)) as servers:
            yield servers
    finally:
        service.clearml_serving("metrics", "remove", "--endpoint", "texts")


def logged(server: Server, body: dict[str, Any], mark: int) -> dict[str, Any]:
    """The row of a request, found by its timeout; as JSON, which is how the host sends it."""
    found: list[dict[str, Any]] = []

    def queued() -> bool:
        server.post("texts", {**body, "timeout_ms": mark})
        rows = server.post("queued", {}).json["queued"]
        found[:] = [row for row in rows if row.get("timeout_ms") == mark]
        return bool(found)

    wait_until(queued, 60)
    return found[0]


@pytest.mark.parametrize("way", ["gateway", "stock"])
def test_labels_and_scores_are_logged(ways: dict[str, Server], way: str) -> None:
    server = ways[way]
    tea = "a kettle of tea"
    answer = server.post("texts", {"text": tea, "timeout_ms": 30_000}).json
    one = logged(server, {"text": tea}, 30_001)
    assert (one["label"], one["score"], one["_url"]) == (answer["label"], answer["score"], "texts")
    many = logged(server, {"text": [tea, "rain", "rain"]}, 30_002)
    assert len(many["label"]) == len(many["score"]) == 3
    assert (many["label"][0], many["score"][0]) == (answer["label"], answer["score"])
    assert set(many["label"]) <= set(LABELS)
    refused = logged(server, {"text": "[FAIL]"}, 30_003)
    assert not {"label", "score"} & set(refused)


def test_golden_requests_are_in_no_statistics(ways: dict[str, Server]) -> None:
    """Each worker asks every endpoint; the rows of callers here all have their timeout."""
    server = ways["gateway"]
    asked = 'gateway_golden_ok{endpoint="texts"'
    wait_until(lambda: asked in server.ask("GET", "/metrics").raw.decode(), 60)
    rows = server.post("queued", {}).json["queued"]
    assert [row for row in rows if row["_url"] == "texts" and "timeout_ms" not in row] == []
