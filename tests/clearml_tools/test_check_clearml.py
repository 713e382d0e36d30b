"""scripts/check_clearml.sh where a step fails, and its question to a gateway with keys.

tests/stack/test_check_clearml.py runs all of it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.stand_in import stand_in

SCRIPTS = Path(__file__).parents[2] / "scripts"
# In Python's place: says what it is asked, and fails at the steps that it is told to.
PYTHON = """#!/bin/sh
echo "$*" >>"$ASKED"
for failing in $FAILING; do
    case "$*" in *"$failing"*) exit 1 ;; esac
done
"""


@pytest.fixture
def python(tmp_path: Path) -> Path:
    return stand_in(tmp_path, "python", PYTHON)


def checked(python: Path, failing: str) -> tuple[int, str, list[str]]:
    """The script's status, what it says, and what it asked clearml-serving."""
    asked = python.with_name("asked")
    done = subprocess.run(
        ["bash", SCRIPTS / "check_clearml.sh"],
        env={
            "PATH": os.environ["PATH"], "PYTHON": str(python), "ASKED": str(asked),
            "FAILING": failing, "CLEARML_SERVING_TASK_ID": "id",
            "CLEARML_DEFAULT_BASE_SERVE_URL": "http://127.0.0.1:1/serve",
        },
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    rows = asked.read_text().splitlines()
    return done.returncode, done.stdout, [row for row in rows if "clearml_serving" in row]


@pytest.mark.parametrize("failing", ["pipeline.py", "served.py"])
def test_a_step_that_fails_leaves_no_endpoint(python: Path, failing: str) -> None:
    status, _, (added, removed) = checked(python, failing)
    assert status == 1
    endpoint = added.split("--endpoint ")[1].split()[0]
    assert removed == f"-m clearml_serving --id id model remove --endpoint {endpoint}"


def test_it_says_what_it_cannot_remove(python: Path) -> None:
    status, said, _ = checked(python, "pipeline.py remove")
    assert status == 1
    assert said.splitlines()[-1].startswith("left    endpoint check_clearml_")


def test_before_an_endpoint_was_added_none_is_removed(python: Path) -> None:
    status, _, asked = checked(python, "read.py")
    assert (status, asked) == (1, [])


def test_where_all_works_it_is_removed_once(python: Path) -> None:
    status, said, asked = checked(python, "")
    assert status == 0
    assert said.splitlines()[-1] == "all steps worked"
    assert ["remove" in row for row in asked] == [False, True]


@contextmanager
def gateway(key: str) -> Iterator[str]:
    """One that serves the pipeline's value to who shows the key."""

    class Answers(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.dumps({"value": 70}).encode()
            self.send_response(200 if self.headers["x-api-key"] == key else 401)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/serve"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_gateway_with_keys_is_shown_one() -> None:
    with gateway("secret") as url:
        given = {"CLEARML_DEFAULT_BASE_SERVE_URL": url, "TRANSFORMER_SERVING_KEY": "secret"}
        done = subprocess.run(
            [sys.executable, SCRIPTS / "check_clearml" / "served.py", "name"],
            env={**os.environ, **given}, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert done.stdout == "SERVED\n", done.stderr
