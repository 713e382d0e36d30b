"""A stack that trusts one key: what is exchanged in ClearML after the deploy is not run."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.stack.conftest import Stack, started
from tests.stack.small_bundles import TEXT, Parts, write_small
from transformer_serving.desk.bundle.signing import new_key, sign_bundle
from transformer_serving.desk.deploy.model_add import add_arguments

pytestmark = pytest.mark.long


def test_only_signed_bundles_are_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, key = new_key("release", tmp_path)
    monkeypatch.setenv("TRANSFORMER_SERVING_TRUSTED_KEYS", key.public)
    bundle = write_small(tmp_path / "bundle", Parts(scale=6.0))
    with started(tmp_path / "state") as stack:
        said = stack.run("deploy", str(bundle.folder), "--endpoint", "kept", code=2)
        assert "is not signed" in said
        sign_bundle(bundle.folder, key)
        stack.run("deploy", str(bundle.folder), "--endpoint", "kept")
        assert stack.post("kept", {"text": TEXT})[0] == 200
        exchange(stack, bundle.folder, tmp_path / "ran")
        stack.until(lambda: stack.post("kept", {"text": TEXT})[0] != 200, "the exchange is refused")
        stack.until(lambda: "is not what" in str(stack.rows()["kept"]["reason"]), "it is told")
        assert "is not what 'release' signed" in stack.run("logs", "inference", "-n", "300")
        assert not (tmp_path / "ran").exists()
        stack.run("remove", "kept")


def exchange(stack: Stack, folder: Path, ran: Path) -> None:
    """The same model with the signed code and one more line, added as anybody can."""
    from transformer_serving.desk.bundle.folder import open_bundle

    bundle = open_bundle(folder)
    model = str(stack.rows()["kept"]["model_id"])
    assert re.fullmatch("[0-9a-f]{32}", model)
    with bundle.preprocess.open("a") as file:
        file.write(f"open({os.fspath(ran)!r}, 'w')\n")
    stack.clearml_serving(*add_arguments(bundle, "kept", model))
