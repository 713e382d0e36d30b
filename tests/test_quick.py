"""The rule and the guard of `make test-quick`."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests import quick

TESTS = """
    import contextlib
    import subprocess
    import time

    import psutil
    import pytest


    @pytest.fixture(scope="module")
    def made_once(tmp_path_factory):
        return tmp_path_factory.mktemp("once")


    def test_with_a_folder_made_once(made_once):
        pass


    @pytest.mark.slow
    def test_marked():
        pass


    def test_in_a_folder(tmp_path):
        pass


    def test_that_imports_torch():
        import torch


    def test_that_hides_it():
        with contextlib.suppress(BaseException):
            import torch


    def test_that_starts_a_tritonserver():
        subprocess.run(["/bin/tritonserver"])


    def test_whose_process_starts_one(tmp_path):
        server = tmp_path / "tritonserver"
        server.write_bytes(open("/bin/sleep", "rb").read())
        server.chmod(0o755)
        subprocess.Popen(["sh", "-c", f"{server} 5 & wait"])
        while not any(p.name() == server.name for p in psutil.Process().children(recursive=True)):
            time.sleep(0.05)
"""

# The rule does not see it, and no test of another file is to be blamed for it.
HIDES_IT = """
    import contextlib
    import importlib

    with contextlib.suppress(BaseException):
        importlib.import_module("torch")
"""


@pytest.mark.slow
def test_what_is_costly_is_left_out_and_what_gets_past_the_rule_fails(tmp_path: Path) -> None:
    (tmp_path / "test_made_up.py").write_text(textwrap.dedent(TESTS))
    (tmp_path / "test_heavy.py").write_text("import torch\n\n\ndef test_it():\n    pass\n")
    (tmp_path / "test_hides_it.py").write_text(textwrap.dedent(HIDES_IT))
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow\n")
    done = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-p", "tests.quick", "-rA", "-q",
            "--continue-on-collection-errors", str(tmp_path),
        ],
        cwd=quick.ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    found = set(re.findall(r"^(PASSED|FAILED|ERROR) \S+::(\w+)", done.stdout, re.MULTILINE))
    assert found == {
        ("PASSED", "test_in_a_folder"),
        ("FAILED", "test_that_imports_torch"),
        ("ERROR", "test_that_imports_torch"),
        ("PASSED", "test_that_hides_it"),
        ("ERROR", "test_that_hides_it"),
        ("FAILED", "test_that_starts_a_tritonserver"),
        ("ERROR", "test_that_starts_a_tritonserver"),
        ("PASSED", "test_whose_process_starts_one"),
        ("ERROR", "test_whose_process_starts_one"),
    }, done.stdout + done.stderr
    assert re.findall(r"^ERROR \S+/(\w+\.py)\b(?!::)", done.stdout, re.MULTILINE) == [
        "test_hides_it.py"
    ]
    assert "a quick file imports torch" in done.stdout
    assert "a quick test leaves tritonserver: mark it slow" in done.stdout


@pytest.mark.parametrize(
    ("file", "reaches"),
    [
        ("tests/test_architectures.py", "torch"),
        ("tests/export/test_onnx.py", "transformers"),
        ("tests/engine/test_backends.py", "tests"),
        ("tests/preprocess/test_coalesce.py", ""),
        ("tests/gateway/test_statistics.py", "clearml_serving"),
        ("tests/engine/test_plan.py", ""),
    ],
)
def test_what_a_file_reaches_by_its_imports(file: str, reaches: str) -> None:
    found = quick.costly_import(quick.ROOT / file) or ""
    assert found.partition(".")[0] == reaches
