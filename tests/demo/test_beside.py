"""A conversion beside others is the same one, and its end is told whatever it is."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from tests.tiny_models import save_classifier
from transformer_serving.desk.conversion.encoder import STEPS, ConvertRequest
from transformer_serving.desk.demo.beside import conversion, made
from transformer_serving.desk.failure import ConversionRefused, Failure


def nothing(step: str, detail: str) -> None:
    """Steps that nobody looks at."""


def children() -> list[int]:
    return [one.pid for one in psutil.Process().children()]


def test_it_makes_the_same_bundle_and_tells_its_steps(tmp_path: Path) -> None:
    request = ConvertRequest(str(save_classifier(tmp_path / "tiny", seed=3)), precision="fp32")
    steps: list[str] = []
    with conversion(request, tmp_path / "beside", lambda step, _: steps.append(step)) as begun:
        here = made(request, tmp_path / "here", nothing)
        found = begun.result()
    # How far the answers are depends on the cores that were free.
    assert (found.version, found.reference) == (here.version, here.reference)
    assert found.largest_difference == pytest.approx(here.largest_difference, abs=1e-5)
    assert tuple(steps) == STEPS


def test_a_refusal_is_raised_here_as_it_was_there(tmp_path: Path) -> None:
    request = ConvertRequest(str(tmp_path / "nothing"), precision="fp32")
    with pytest.raises(ConversionRefused) as here:
        made(request, tmp_path / "here", nothing)
    with (
        pytest.raises(ConversionRefused) as there,
        conversion(request, tmp_path / "beside", nothing) as begun,
    ):
        begun.result()
    assert (str(there.value), there.value.exit_code) == (str(here.value), here.value.exit_code)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_process_is_a_failure_that_says_so(tmp_path: Path, number: signal.Signals) -> None:
    request = ConvertRequest(str(save_classifier(tmp_path / "tiny", seed=3)), precision="fp32")
    before = children()
    with conversion(request, tmp_path / "beside", nothing) as begun:
        [pid] = set(children()) - set(before)
        os.kill(pid, number)
        with pytest.raises(Failure, match=f"status -{number.value} before it was done; where mem"):
            begun.result()
    assert children() == before


def test_it_ends_with_the_block_that_failed(tmp_path: Path) -> None:
    request = ConvertRequest(str(save_classifier(tmp_path / "tiny", seed=3)), precision="fp32")
    before = children()
    with pytest.raises(ZeroDivisionError), conversion(request, tmp_path / "beside", nothing):
        raise ZeroDivisionError
    assert children() == before
    assert not (tmp_path / "beside").exists()
