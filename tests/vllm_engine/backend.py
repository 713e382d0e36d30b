"""Stands in for Triton's vLLM backend, in a folder `vllm` of the backends: its tensors, started by
model.json, with transformers for an engine, in a process of the Python that the tests run in."""

import json
import os
import queue
import subprocess
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import rule  # type: ignore[import-not-found]  # beside it, as the next one
import rule_model  # type: ignore[import-not-found]
import triton_python_backend_utils as pb_utils

# Set for the tritonserver: the command that takes model.json's content and its folder.
COMMAND, FOLDER = "STAND_IN_COMMAND", "STAND_IN_FOLDER"


class TritonPythonModel(rule_model.TritonPythonModel):  # type: ignore[misc]
    def initialize(self, args: dict[str, str]) -> None:
        super().initialize(args)
        config = json.loads(args["model_config"])
        assert pb_utils.using_decoupled_model_transaction_policy(config)
        arguments = Path(pb_utils.get_model_dir(), "model.json").read_text()
        self.engine = Process(json.loads(os.environ[COMMAND]) + [arguments])
        self.messages = self.engine.messages

    def finalize(self) -> None:
        self.engine.end()


class Process:
    def __init__(self, command: list[str]) -> None:
        self.process = subprocess.Popen(
            command, cwd=os.environ[FOLDER], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        self.answers: dict[str, Any] = {}
        self.lock = threading.Lock()
        self.reading = threading.Thread(target=self.read, daemon=True)
        self.reading.start()

    def read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            said = json.loads(line)
            self.answers[said.pop("id")].put(said)

    def messages(
        self, inputs: Mapping[str, Any], gone: Callable[[], bool], note: Callable[[str], None]
    ) -> Iterator[Any]:
        identity = uuid.uuid4().hex
        answers = self.answers[identity] = queue.Queue()
        assert self.process.stdin is not None
        with self.lock:
            self.process.stdin.write(json.dumps({"id": identity, "inputs": inputs}) + "\n")
            self.process.stdin.flush()
        last = False
        while not last:
            said = answers.get(timeout=60)
            if "fault" in said:
                raise rule.BackendError(said["fault"])
            last = said["last"]
            yield rule.Message(said["outputs"], last)
        note("ended")

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.reading.join()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
