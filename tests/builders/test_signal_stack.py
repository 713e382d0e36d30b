"""Signals are heard after engines of OpenVINO were opened and left, in whichever order."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from transformer_serving.engine.backends.openvino_quiet import openvino

# In a process of its own, which dies where the thread's signal stack is gone.
OPENED_AND_LEFT = """
import gc, os, pathlib, signal, sys
from transformer_serving.desk.builders.files import EngineFiles
from transformer_serving.desk.builders.openvino import open_openvino

graph = pathlib.Path(sys.argv[1])
files = EngineFiles("openvino", "fp32", (graph, graph.with_suffix(".bin")))
opened = [open_openvino(files) for _ in range(2)]
while opened:
    del opened[0]
    gc.collect()
signal.signal(signal.SIGTERM, lambda *_: print("heard"))
os.kill(os.getpid(), signal.SIGTERM)
"""


def test_a_signal_is_heard_after_two_engines(tmp_path: Path) -> None:
    operations = openvino.opset13
    given = operations.parameter([-1, 4], openvino.Type.f32)
    graph = tmp_path / "model.xml"
    openvino.save_model(openvino.Model([operations.relu(given)], [given]), str(graph))
    done = subprocess.run(
        [sys.executable, "-c", OPENED_AND_LEFT, str(graph)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "heard\n"), done.stderr
