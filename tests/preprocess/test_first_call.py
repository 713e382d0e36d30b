"""A worker's first answer from an engine is told once."""

from __future__ import annotations

import time
from pathlib import Path

import psutil
import pytest
from prometheus_client import REGISTRY

from preprocess import first_call
from transformer_serving.contract.worker.process_wide import process_wide

NAME = "transformer_serving_first_engine_call_seconds"


def test_the_first_call_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    process_wide("first_engine_call", dict).clear()
    monkeypatch.setattr(first_call, "process_age_s", lambda: 4.25)
    first_call.note_call()
    monkeypatch.setattr(first_call, "process_age_s", lambda: 9.5)
    first_call.note_call()
    assert REGISTRY.get_sample_value(NAME) == 4.25


def test_the_age_is_the_processs() -> None:
    started = psutil.Process().create_time()
    before = time.time() - started
    age_s = first_call.process_age_s()
    after = time.time() - started
    assert age_s is not None
    # psutil knows the time of the machine's start in whole seconds.
    assert before - 1 <= age_s <= after + 1


def test_a_system_that_does_not_say_has_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_call, "_STAT", Path("/absent"))
    assert first_call.process_age_s() is None
