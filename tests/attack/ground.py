"""The stack that is attacked: one of its own on free ports, gone afterwards."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import psutil

from tests.gateway.conftest import Server
from tests.stack.conftest import PATIENT, Stack, started
from tests.stack.small_bundles import TEXT, Parts, answer_of, write_small
from transformer_serving.contract.signatures import TRUSTED_KEYS_VARIABLE
from transformer_serving.desk.bundle.signing import SigningKey, new_key, sign_bundle
from transformer_serving.desk.local.record import StackRecord, require_record
from transformer_serving.gateway.settings import BODY_STALL_SECONDS

# The endpoint that is asked; heavy_bodies.py asks for it by this name.
ENDPOINT = "ours"
GOOD = {"text": TEXT}
ANSWER = answer_of(Parts())


@dataclass(frozen=True)
class Ground:
    """`stack` trusts `key` alone; `short` where a case is to take seconds; `folder` is scratch."""

    stack: Stack
    folder: Path
    key: SigningKey
    short: bool

    @property
    def port(self) -> int:
        return self.stack.base

    @property
    def record(self) -> StackRecord:
        return require_record(self.stack.state)

    def process(self, part: str = "inference") -> psutil.Process:
        return psutil.Process(int(self.stack.parts()[part]["pid"]))

    def server(self) -> Server:
        """The front door and its worker, as the gateway's tests see theirs."""
        server = Server([], {}, self.port, self.stack.state / "logs")
        server.process = self.process()  # type: ignore[assignment]
        return server

    def bundle(self, name: str, parts: Parts) -> Path:
        """A signed bundle in the scratch folder."""
        bundle = write_small(self.folder / name, parts)
        sign_bundle(bundle.folder, self.key)
        return bundle.folder

    def deployed(self, endpoint: str, parts: Parts) -> Path:
        folder = self.bundle(endpoint, parts)
        self.stack.run("deploy", str(folder), "--endpoint", endpoint)
        return folder

    def well(self) -> bool:
        """Whether a good request is answered rightly, over a connection of its own."""
        status, body = self.stack.post(ENDPOINT, GOOD)
        return status == 200 and is_right(body)


def is_right(body: object) -> bool:
    return (
        isinstance(body, dict)
        and body.get("label") == ANSWER["label"]
        and abs(body.get("score", 0) - float(str(ANSWER["score"]))) < 1e-3
    )


@contextmanager
def opened(*, short: bool) -> Iterator[Ground]:
    """The stack with its endpoint; its scratch is open to others, as a careless user's would be."""
    folder = Path(tempfile.mkdtemp(prefix="attack-"))
    folder.chmod(0o755)
    try:
        _, key = new_key("release", folder)
        settings = {TRUSTED_KEYS_VARIABLE: key.public, "HF_HUB_OFFLINE": "1"}
        if short:
            settings |= {**PATIENT, BODY_STALL_SECONDS.name: "3"}
        with patch.dict(os.environ, settings), started(folder / "state") as stack:
            ground = Ground(stack, folder, key, short)
            ground.deployed(ENDPOINT, Parts())
            yield ground
    finally:
        shutil.rmtree(folder, ignore_errors=True)
