"""A gateway's task in ClearML, on a real control plane."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.gateway.conftest import Session
from transformer_serving.gateway.host.task import lean_task

_LOOK = """
import importlib, json, os, sys
import psutil
from clearml import Task
from clearml.backend_api.session import datamodel
own = Task.init
importlib.import_module(sys.argv[1])
task = Task.current_task()
thread = task._detect_repo_async_thread
# Where it analyses it reads all that is installed, for minutes; that it has begun is enough.
task.reload()
script = task.data.script
json.dump(
    {
        "analysed": thread is not None,
        "parsers": [name for name in sys.modules if name.startswith("clearml.utilities.pigar")],
        "requirements": bool(script and script.requirements),
        "init": Task.init == own,
        "look_s": 1 / task._resource_monitor._sample_frequency,
        "checks": hasattr(datamodel._CustomValidator.check_schema, "__wrapped__"),
        "children": len(psutil.Process().children()),
        "pauses": hasattr(Task._send.__func__, "waits"),
    },
    sys.__stdout__,
)
sys.__stdout__.flush()
# Without what the SDK does at an end.
os._exit(0)
"""


def seen(session: Session, module: str, *without: str) -> dict[str, Any]:
    environment = {name: text for name, text in session.environment.items() if name not in without}
    done = subprocess.run(
        [sys.executable, "-P", "-c", _LOOK, module], env=environment, cwd=session.folder,
        capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout[done.stdout.rindex("{") :])
    return found


def test_a_gateway_has_its_code_not_analysed_and_forks_no_reporter(session: Session) -> None:
    """One that is forked keeps the port for half a minute from who comes after a gateway's kill."""
    by_hand = "CLEARML_BKG_THREAD_REPORT", "CLEARML_TASK_NO_REUSE"
    assert seen(session, "transformer_serving.gateway.host_app", *by_hand) == {
        "analysed": False,
        "parsers": [],
        "requirements": False,
        "init": True,
        # Of the machine's figures, which the SDK reads twice a second by itself.
        "look_s": 5.0,
        # The SDK's schemas are checked once each (contract/worker/sdk_schemas.py).
        "checks": True,
        "children": 0,
        # What ClearML refuses, it asks again after a pause (contract/worker/sdk_patience.py).
        "pauses": True,
    }


def test_the_host_alone_has_it_analysed(session: Session) -> None:
    """Else what the gateway does about it can go."""
    assert seen(session, "clearml_serving.serving.main")["analysed"]


def test_what_a_caller_says_stands_and_the_sdk_is_as_before() -> None:
    class Task:
        @classmethod
        def init(cls, **options: Any) -> dict[str, Any]:
            return options

    with lean_task(Task):
        assert Task.init(task_name="a") == {
            "task_name": "a",
            "auto_connect_frameworks": {"detect_repository": False},
            "auto_resource_monitoring": {"sample_frequency_per_sec": 0.2},
        }
        theirs = {"auto_connect_frameworks": True, "auto_resource_monitoring": False}
        assert Task.init(**theirs) == theirs
    assert Task.init() == {}
    with pytest.raises(OSError, match="gone"), lean_task(Task):
        raise OSError("gone")
    assert Task.init() == {}
