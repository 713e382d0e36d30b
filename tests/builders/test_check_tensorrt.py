"""What our code calls of TensorRT against signatures, and by CHECK_TENSORRT the real bindings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from scripts.check_tensorrt import CALLS, ROOT, Call, fault, named


def test_every_name_that_our_modules_use_has_a_row() -> None:
    used, rows = named(), {call.name for call in CALLS}
    assert {"build_serialized_network", "execute_async_v3", "ignore_mismatch"} - used == {
        "ignore_mismatch"
    }
    assert used <= rows


def bindings(signature: str) -> SimpleNamespace:
    """A module with one method of pybind11's kind."""
    method = SimpleNamespace(__doc__=f"{signature}\n\n    What it does.\n")
    return SimpleNamespace(Config=SimpleNamespace(set_cache=method))


@pytest.mark.parametrize(
    ("signature", "right"),
    [
        ("set_cache(self: t.t.Config, cache: t.t.Cache, ignore: bool) -> bool", True),
        (
            "set_cache(self: t.t.Config, cache: t.t.Cache, ignore: bool, more: int = 0) -> bool",
            True,
        ),
        ("set_cache(self: t.t.Config, cache: t.t.Cache, ignore: bool, more: int) -> bool", False),
        ("set_cache(self: t.t.Config, cache: t.t.Cache, strict: bool) -> bool", False),
        ("set_cache(self: t.t.Config, cache: buffer, ignore: bool) -> bool", False),
        ("set_cache(self: t.t.Config, cache: t.t.Cache, ignore: bool) -> None", False),
    ],
)
def test_a_call_that_the_signature_does_not_take_is_a_fault(signature: str, right: bool) -> None:
    call = Call("Config", "set_cache", ("Cache",), ("ignore",), "bool")
    assert (fault(bindings(signature), call) is None) == right


def test_a_name_that_is_gone_is_a_fault() -> None:
    assert fault(bindings("x()"), Call("Config", "set_flag", ("Flag",))) == "is not there"
    assert fault(bindings("x()"), Call("Network", "num_layers")) == "is not there"


@pytest.mark.skipif(
    "CHECK_TENSORRT" not in os.environ,
    reason="installs the bindings of the pinned TensorRT below build: make check-tensorrt",
)
def test_the_pinned_bindings_have_all_that_we_call() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "scripts.check_tensorrt", "--json"],
        cwd=ROOT, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["checked"] > 50
    assert found["faults"] == {}
