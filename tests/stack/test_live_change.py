"""A new bundle under load: no request fails, and every answer is of exactly one bundle."""

from __future__ import annotations

import http.client
import json
import os
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tests.stack.conftest import Stack
from transformer_serving.bundle import BundleContent, write_bundle
from transformer_serving.bundle_folder import open_bundle
from transformer_serving.optimize import EngineFiles
from transformer_serving.tokenizer_file import TokenizerFile

BODY = json.dumps({"text": "The best meal I have had in years."})
OLD, NEW = ("NEGATIVE", "POSITIVE"), ("BAD", "GOOD")


@pytest.fixture
def relabelled(demo: Path, tmp_path: Path) -> Path:
    """The demo classifier with other label names: another bundle around the same engine."""
    old = open_bundle(demo / "transformer_model")
    files = tuple(tmp_path / name for name in ("model.xml", "model.bin"))
    for path in files:
        os.link(old.model_folder / path.name, path)
    assert old.endpoint.classification is not None
    tokens, golden = old.endpoint.tokens, old.manifest.golden
    names = dict(zip(OLD, NEW, strict=True))
    content = BundleContent(
        endpoint=replace(
            old.endpoint, classification=replace(old.endpoint.classification, labels=NEW)
        ),
        tokenizer=TokenizerFile(
            (old.folder / "tokenizer.json").read_bytes(),
            tokens.pad_id, tokens.pad_token, tokens.pad_type_id, tokens.padding_side,
        ),
        engine=EngineFiles(old.manifest.engine, old.manifest.precision, files),
        golden=replace(
            golden, answer={**golden.answer, "label": names[golden.answer["label"]]}
        ),
        parity=old.manifest.parity,
        source=old.manifest.source,
    )  # fmt: skip
    return write_bundle(content, tmp_path / "relabelled").folder


class Load(threading.Thread):
    """One client on a kept connection; counts (status, version, label)."""

    def __init__(self, base: int, stop: threading.Event) -> None:
        super().__init__()
        self.seen: Counter[tuple[int, str | None, str | None]] = Counter()
        self._base, self._stop_event = base, stop

    def run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._base, timeout=60)
        while not self._stop_event.is_set():
            connection.request("POST", "/serve/live", BODY, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            label = json.loads(answer.read()).get("label")
            self.seen[(answer.status, answer.headers["x-bundle-version"], label)] += 1


def test_new_labels_and_back_under_load(stack: Stack, demo: Path, relabelled: Path) -> None:
    first = demo / "transformer_model"
    before = stack.json("deploy", str(first), "--endpoint", "live")["bundle_version"]
    stop = threading.Event()
    clients = [Load(stack.base, stop) for _ in range(8)]
    for client in clients:
        client.start()
    try:
        after = stack.json("deploy", str(relabelled), "--endpoint", "live")["bundle_version"]
        again = stack.json("deploy", str(first), "--endpoint", "live")
    finally:
        stop.set()
        for client in clients:
            client.join(90)
    assert again["changed"]
    seen: Counter[tuple[int, str | None, str | None]] = sum(
        (client.seen for client in clients), Counter()
    )
    assert set(seen) == {(200, str(before), "POSITIVE"), (200, str(after), "GOOD")}, seen
    stack.run("remove", "live")
