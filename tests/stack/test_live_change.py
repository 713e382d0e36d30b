"""Sixteen clients never stop asking while everything about an endpoint changes.

No request fails, and every answer is that of exactly the bundle that its header names: what each
bundle must answer is computed here, in numpy.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.stack.conftest import Stack
from tests.stack.load import Log, Seen, load
from tests.stack.small_bundles import TEXT, Parts, answer_of, write_small

pytestmark = pytest.mark.long

BODY = {"text": TEXT}
FIRST = Parts()
CHANGES = {
    "engine": Parts(scale=-1),
    "other engine program": Parts(engine="openvino"),
    "preprocess": Parts(revision="another comment"),
    "labels": Parts(labels=("uno", "due", "tre")),
    "tokenizer": Parts(rotated=3),
}


@dataclass
class Live:
    """The endpoint 'live' under load; `right` is the answer of every version ever deployed."""

    stack: Stack
    folder: Path
    log: Log
    right: dict[int, Seen] = field(default_factory=dict)

    def bundle(self, parts: Parts) -> Path:
        bundle = write_small(self.folder / str(len(self.right)), parts)
        answer = answer_of(parts)
        version = bundle.manifest.bundle_version
        self.right[version] = Seen(200, version, f"{answer['label']} {answer['score']:.2f}")
        return bundle.folder

    def deploy(self, parts: Parts) -> int:
        version: int = self.stack.json("deploy", str(self.bundle(parts)), "--endpoint", "live")[
            "bundle_version"
        ]
        self.check()
        return version

    def check(self) -> None:
        assert not self.log.except_(*self.right.values()), self.log.counts

    def seen(self) -> Seen:
        return self.stack.seen("live", BODY)

    def until_seen_by_clients(self, version: int) -> None:
        seen, before = self.right[version], self.log.counts[self.right[version]]
        self.stack.until(lambda: self.log.counts[seen] > before, f"answers of {version}")


@pytest.fixture(scope="module")
def live(plain: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    live = Live(plain, tmp_path_factory.mktemp("live"), Log())
    live.deploy(FIRST)
    with load(plain.base, "live", BODY, clients=16) as log:
        live.log = log
        yield live
    plain.run("remove", "live")


@pytest.mark.parametrize("what", CHANGES)
def test_a_new(live: Live, what: str) -> None:
    live.until_seen_by_clients(live.deploy(CHANGES[what]))
    live.check()


def test_rollback_goes_one_further_each_time_and_never_to_what_was_withdrawn(live: Live) -> None:
    versions = [live.deploy(parts) for parts in (FIRST, CHANGES["labels"], CHANGES["tokenizer"])]
    first, second, third = versions
    done = live.stack.json("rollback", "live")
    assert (done["withdrawn_version"], done["bundle_version"]) == (third, second)
    assert live.stack.json("rollback", "live")["bundle_version"] == first
    assert live.seen() == live.right[first]
    fourth = live.deploy(CHANGES["engine"])
    done = live.stack.json("rollback", "live")
    assert (done["withdrawn_version"], done["bundle_version"]) == (fourth, first)
    live.until_seen_by_clients(first)
    live.check()


def test_a_bad_bundle_is_refused_and_taken_back(live: Live) -> None:
    """Refused at the desk where its files are not the manifest's, in the engine where they are."""
    before = live.seen()
    altered = shutil.copytree(live.bundle(Parts(scale=9)), live.folder / "altered")
    (altered / "model" / "model.onnx").write_bytes(b"other bytes")
    said = live.stack.run("deploy", str(altered), "--endpoint", "live", code=2)
    assert "is no valid bundle" in said
    broken = write_small(live.folder / "broken", Parts(engine="openvino", broken=True)).folder
    # The limit is that of the whole command, uploads included.
    arguments = ("deploy", str(broken), "--endpoint", "live", "--timeout")
    said = live.stack.run(*arguments, "40", code=1)
    if "it was uploading" in said or "it was adding" in said:
        said = live.stack.run(*arguments, "200", code=1)
    assert "transformer-serving rollback live" in said
    live.stack.until(lambda: bool(live.stack.rows()["live"]["reason"]), "the reason in status")
    assert live.seen() == before
    assert live.stack.json("rollback", "live")["bundle_version"] == before.version
    live.stack.until(lambda: live.stack.rows()["live"]["reason"] is None, "well again")
    live.check()


def test_removed_and_added_again(live: Live) -> None:
    """Another endpoint goes and comes back; the one under load does not notice."""
    stack = live.stack
    bundle = str(live.bundle(Parts(scale=5)))
    stack.run("deploy", bundle, "--endpoint", "other")
    there = stack.seen("other", BODY)
    stack.run("remove", "other")
    stack.until(lambda: stack.seen("other", BODY).status == 404, "it is gone")
    stack.run("deploy", bundle, "--endpoint", "other")
    assert stack.seen("other", BODY) == there
    stack.run("remove", "other")
    live.check()


@pytest.mark.spare
def test_rollback_refuses_with_the_fix(live: Live) -> None:
    assert "there is no endpoint 'nobody'" in live.stack.run("rollback", "nobody", code=2)
    bundle = str(live.bundle(Parts(scale=6)))
    live.stack.run("deploy", bundle, "--endpoint", "alone")
    said = live.stack.run("rollback", "alone", code=2)
    assert "transformer-serving deploy BUNDLE --endpoint alone" in said
    assert live.stack.seen("alone", BODY).status == 200
    live.stack.run("remove", "alone")
    live.check()
