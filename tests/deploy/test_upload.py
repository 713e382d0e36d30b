"""An upload that is ended leaves no model, over the real commands and control plane."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.deploy.played import NAME, Target
from tests.doctor.conftest import answering
from tests.stack.small_bundles import write_small
from transformer_serving.desk.clearml_tools.api import ClearmlApi
from transformer_serving.desk.deploy.registry import Registered
from transformer_serving.desk.deploy.target import target_of
from transformer_serving.desk.deploy.time_limit import cleaning_up, within
from transformer_serving.desk.deploy.upload import upload
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.interruption import interruptible


def test_what_the_sdk_has_registered_leaves_and_nobody_elses_upload(
    clearml_environment: dict[str, str], tmp_path: Path
) -> None:
    """Ctrl-C while the file is on its way; another machine uploads the same bundle."""
    api = ClearmlApi(clearml_environment)
    made = api.call("tasks.create", name="a service", type="service")
    named = {
        "CLEARML_SERVING_TASK_ID": made["id"],
        "CLEARML_DEFAULT_BASE_SERVE_URL": "http://127.0.0.1:9/serve",
    }
    target = target_of(clearml_environment | named)
    assert target is not None
    bundle = write_small(tmp_path / "bundle")
    theirs = api.call(
        "models.create", name=f"texts {bundle.manifest.bundle_version}", task=made["id"],
        uri="http://127.0.0.1:9/bundles/theirs/uploading_file",
    )  # fmt: skip
    seen: list[list[Registered]] = []
    over = threading.Event()

    def file_server(_: str) -> tuple[int, bytes, dict[str, str]]:
        seen.append(target.registry().bundles("texts"))
        if len(seen) == 1:
            os.kill(os.getpid(), signal.SIGINT)
        over.wait()
        return 500, b"", {}

    limit: Any = SimpleNamespace(after_alarm=lambda: 600.0)
    try:
        with answering(file_server) as host, pytest.raises(KeyboardInterrupt), interruptible():
            upload(replace(target, files_host=host), bundle, "texts", limit)
    finally:
        over.set()
    assert len(seen[0]) == 2
    assert [row.model_id for row in target.registry().bundles("texts")] == [theirs["id"]]


def fail() -> None:
    raise Failure("ClearML is away")


def run_out() -> None:
    signal.raise_signal(signal.SIGALRM)


def answer_otherwise() -> None:
    raise KeyError("models")


def end_again() -> None:
    signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("meanwhile", [lambda: None, end_again, fail, answer_otherwise])
@pytest.mark.parametrize("ended", [fail, run_out, end_again])
def test_however_it_is_ended_what_was_registered_leaves(
    tmp_path: Path, ended: Callable[[], None], meanwhile: Callable[[], None]
) -> None:
    """Unless ClearML does not do it."""
    target, bundle = Target(tmp_path), write_small(tmp_path / "bundle")

    def upload_model(name: str, _project: str, _folder: Path, to: str, *, timeout_s: float) -> str:
        target.upload(target, bundle, NAME, None)
        target.kept.models.rows[0]["uri"] = f"{to}/uploading_file"
        ended()
        pytest.fail("it was not ended")

    def registry() -> Any:
        registries.append(target.kept)
        if len(registries) > 1:
            meanwhile()
        return target.kept

    registries: list[Any] = []
    cli = SimpleNamespace(upload_model=upload_model)
    asked: Any = SimpleNamespace(cli=cli, files_host="http://files", registry=registry)
    how = pytest.raises(KeyboardInterrupt if ended is end_again else Failure)
    with how as raised, interruptible(), within(3600, "x", lambda _: None, look="here") as limit:
        upload(asked, bundle, NAME, limit)
    if ended is run_out:
        assert "x did not end within 3600 s; it was starting" in str(raised.value)
    assert bool(target.tags) == (meanwhile in (fail, answer_otherwise))


def test_a_clean_up_ends_with_its_time() -> None:
    with within(3600, "x", lambda _: None, look="here"):
        with cleaning_up(0.01):
            time.sleep(60)
        assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
