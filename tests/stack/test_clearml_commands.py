"""Every command of clearml-serving 1.3.5, unmodified, and a request that shows its effect."""

from __future__ import annotations

import functools
import http.server
import itertools
import math
import re
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.stack.conftest import Stack
from tests.stack.desk import OURS, TENSORS, THEIRS, Desk, Registered, served
from tests.stack.editor import Editor
from tests.stack.load import ask_many, load
from transformer_serving.desk.deploy.model_add import add_arguments
from transformer_serving.desk.local.record import require_record

# Shows what the host has put into its statistics queue, which Kafka would empty.
PEEK = """
import sys
class Preprocess:
    def process(self, data, state, collect=None):
        host = sys.modules["clearml_serving.serving.main"].processor
        return {"kafka": host._kafka_stats_url, "queued": list(host._stats_queue._deque)}
"""
SPREAD = 2_000


def test_create_and_list(plain: Stack) -> None:
    """The stack's own service, which is served, was made by the same command."""
    said = plain.clearml_serving(
        "create", "--name", "another", "--tags", "t", "--project", "others"
    )
    found = re.search(r"id=([0-9a-f]{32})", said)
    assert found, said
    listed = plain.clearml_serving("list")
    assert found[1] in listed
    assert plain.serving_id in listed
    assert served(plain, found[1]) == []


@pytest.fixture
def of_file(plain: Stack, desk: Desk) -> str:
    """An endpoint of an uploaded file, which whoever asks first adds; it answers with 2.0."""
    if "of_file" not in served(plain):
        model = desk.upload("a file", "--path", str(desk.model(2.0)))
        desk.add("of_file", "--model-id", model)
        desk.until_answers("of_file", 2.0)
    return "of_file"


def test_upload_a_file_and_serve_it(desk: Desk, of_file: str) -> None:
    desk.until_answers(of_file, 2.0)


def test_upload_a_folder_to_a_destination(desk: Desk) -> None:
    folder = str(desk.model(3.0).parent)
    model = desk.upload("a folder", "--path", folder, "--destination", f"{desk.files}/elsewhere")
    desk.add("of_folder", "--model-id", model)
    desk.until_answers("of_folder", 3.0)
    assert list((desk.stack.state / "control-plane" / "files").glob("elsewhere/**/*.zip"))


def test_upload_a_url_publish_and_tags(desk: Desk) -> None:
    """The endpoint is added by tags and 'published', so both must have come through."""
    with serving(desk.model(4.0, "by_url.onnx").parent) as address:
        desk.upload("of url", "--url", f"{address}/by_url.onnx", "--publish", "--tags", "mine")
        path = str(desk.model(5.0))
        desk.upload("of url", "--path", path, "--tags", "mine")  # newer, but not published
        desk.add("of_url", "--name", "of url", "--tags", "mine", "--published")
        desk.until_answers("of_url", 4.0)


class serving:
    """A web server over a folder, as another file server would be."""

    def __init__(self, folder: Path) -> None:
        handler = functools.partial(Quiet, directory=str(folder))
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)

    def __enter__(self) -> str:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


def test_add_list_and_remove(plain: Stack, desk: Desk, registered: list[Registered]) -> None:
    """A bundle of ours by the raw commands; a name may have a '/'."""
    row = registered[0]
    plain.clearml_serving(*add_arguments(row.bundle, "team/listed", row.model_id))
    desk.until_status("team/listed", 200)
    assert plain.seen("team/listed", OURS).version == row.version
    assert "team/listed" in served(plain)
    plain.clearml_serving("model", "remove", "--endpoint", "team/listed")
    desk.until_status("team/listed", 404)
    plain.until(lambda: "team/listed" not in plain.rows(), "the engine lets go of it")


def in_share(count: int, of: int, weight: float) -> bool:
    return abs(count - of * weight) <= 3 * math.sqrt(of * weight * (1 - weight))


def shares(plain: Stack, endpoint: str, weights: dict[int, float]) -> bool:
    """Whether the versions answer in these shares.

    Three sigma fail by chance once in 370 times, so a first miss is asked again.
    """
    for _ in range(2):
        found = ask_many(plain.base, endpoint, [OURS] * SPREAD)
        assert {seen.status for seen in found} == {200}, found
        by_version = Counter[int | None]()
        for seen, count in found.items():
            by_version[seen.version] += count
        assert set(by_version) == set(weights), found
        if all(in_share(by_version[v], SPREAD, weight) for v, weight in weights.items()):
            return True
    return False


def test_canary_over_fixed_and_prefixed_endpoints(
    plain: Stack, desk: Desk, edit: Editor, registered: list[Registered]
) -> None:
    one, two = registered[:2]
    for name, row in (("split/1", one), ("split/2", two)):
        edit.add(name, row.bundle, row.model_id)
    plain.clearml_serving(
        "model", "canary", "--endpoint", "fixed", "--weights", "0.3", "0.7",
        "--input-endpoints", "split/1", "split/2",
    )  # fmt: skip
    plain.clearml_serving(
        "model", "canary", "--endpoint", "prefixed", "--weights", "0.9", "0.1",
        "--input-endpoint-prefix", "split",
    )  # fmt: skip
    for name in ("split/1", "split/2", "fixed", "prefixed"):
        desk.until_status(name, 200)
    assert shares(plain, "fixed", {one.version: 0.3, two.version: 0.7})
    # By prefix the first weight is the highest version's.
    assert shares(plain, "prefixed", {two.version: 0.9, one.version: 0.1})


@pytest.mark.long
@pytest.mark.spare
def test_auto_update_of_published_models_under_load(
    plain: Stack, desk: Desk, edit: Editor, registered: list[Registered]
) -> None:
    """A service's load goes on while its auto-update endpoint takes up one model after another."""
    edit.add("steady", registered[0].bundle, registered[0].model_id)
    desk.until_status("steady", 200)
    steady = plain.seen("steady", OURS)
    plain.clearml_serving(
        "model", "auto-update", "--endpoint", "auto", "--name", "watched", "--project", "commands",
        "--published", "--max-versions", "2", "--preprocess", desk.code(), *TENSORS,
    )  # fmt: skip
    publish: Callable[[float], str] = lambda scale: desk.upload(  # noqa: E731
        "watched", "--path", str(desk.model(scale, f"watched{scale}.onnx")), "--publish"
    )
    with load(plain.base, "steady", OURS, clients=4) as log:
        publish(2.0)
        desk.until_answers("auto/1", 2.0)
        desk.upload("watched", "--path", str(desk.model(7.0, "draft.onnx")))
        publish(3.0)
        desk.until_answers("auto/2", 3.0)
        assert desk.answers("auto/1", 2.0)
        publish(4.0)
        desk.until_answers("auto/3", 4.0)
        desk.until_status("auto/1", 404, THEIRS)
        assert desk.answers("auto/2", 3.0)
    assert not log.except_(steady), log.counts
    assert set(plain.rows()) >= {"auto/2", "auto/3"}
    assert plain.seen("auto/4", THEIRS).status == 404  # the draft was never taken up
    plain.clearml_serving("model", "remove", "--endpoint", "auto")
    desk.until_status("auto/3", 404, THEIRS)


def test_config_and_metrics(plain: Stack, desk: Desk, of_file: str) -> None:
    """Values of a request, of its answer and of the code itself stand in the statistics queue."""
    plain.clearml_serving(
        "config", "--kafka-metric-server", "127.0.0.1:9", "--metric-log-freq", "1"
    )
    desk.until_answers(of_file, 2.0)
    plain.clearml_serving(
        "model", "add", "--engine", "custom", "--endpoint", "peek", "--preprocess", desk.code(PEEK)
    )
    plain.clearml_serving(
        "metrics", "add", "--endpoint", of_file, "--variable-scalar", "first=0,1,2", "weight=0,1",
        "--variable-enum", "kind=cat,dog", "--variable-value", "weight2",
    )  # fmt: skip
    assert '"kind"' in plain.clearml_serving("metrics", "list")

    def queued(mark: float) -> dict[str, Any] | None:
        plain.post(of_file, {**THEIRS, "weight": mark})
        rows = plain.post("peek", {})[1]["queued"]
        return next((row for row in rows if row.get("weight") == mark), None)

    desk.until_status("peek", 200, {})
    plain.until(lambda: queued(0.25) is not None, "the values in the queue")
    row = queued(0.25)
    assert row is not None
    assert row.keys() >= {"_latency", "_count", "_url", "first", "weight", "kind"}
    assert (row["_url"], row["kind"]) == (of_file, "cat")
    plain.clearml_serving("metrics", "remove", "--endpoint", of_file, "--variable", "weight")
    marks = itertools.count(1)  # a new one each time: old values stay in the queue
    plain.until(lambda: queued(next(marks)) is None, "no value of 'weight' after its removal")
    plain.clearml_serving("metrics", "remove", "--endpoint", of_file)
    assert '"kind"' not in plain.clearml_serving("metrics", "list")


def test_config_moves_the_triton_address(plain: Stack, desk: Desk, of_file: str) -> None:
    """The stock call to Triton follows the configured address, and comes back with it."""
    plain.clearml_serving("config", "--triton-grpc-server", "127.0.0.1:9")
    try:
        desk.until_status(of_file, 503, THEIRS)
    finally:
        home = require_record(plain.state).triton.grpc
        plain.clearml_serving("config", "--triton-grpc-server", home, "--base-serving-url", "x")
    desk.until_answers(of_file, 2.0)
