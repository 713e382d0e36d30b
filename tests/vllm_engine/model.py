"""The rule as a decoupled model of the Python backend; its environment has numpy 1."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import rule  # type: ignore[import-not-found]  # beside it in the version's folder
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
DTYPES = {"BYTES": np.object_, "UINT32": np.uint32, "FP32": np.float32}


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        self.lived = Path(args["model_repository"]) / "lived"
        self.messages = rule.messages

    def execute(self, requests: Sequence[Any]) -> None:
        for request in requests:
            inputs = {one.name(): one.as_numpy()[0] for one in request.inputs()}
            told = {
                name: value.decode() if isinstance(value, bytes) else bool(value)
                for name, value in inputs.items()
            }
            arguments = (request.get_response_sender(), told)
            threading.Thread(target=self.answer, args=arguments, daemon=True).start()

    def answer(self, sender: Any, inputs: dict[str, Any]) -> None:
        ended = False
        try:
            for message in self.messages(inputs, sender.is_cancelled, self.note):
                tensors = [
                    pb_utils.Tensor(name, np.asarray([raw(value)], DTYPES[rule.OUTPUTS[name]]))
                    for name, value in message.outputs.items()
                ]
                answer = pb_utils.InferenceResponse(output_tensors=tensors)
                ended = message.last
                sender.send(answer, flags=FINAL if ended else 0)
        except rule.BackendError as error:
            nothing = pb_utils.Tensor("text_output", np.asarray([b"N/A"], np.object_))
            fault = pb_utils.TritonError(str(error))
            answer = pb_utils.InferenceResponse(output_tensors=[nothing], error=fault)
            sender.send(answer, flags=FINAL)
            return
        # Triton 2.51 does not survive the question once the last answer is sent.
        if not ended and sender.is_cancelled():
            fault = pb_utils.TritonError("Request was cancelled", pb_utils.TritonError.CANCELLED)
            answer = pb_utils.InferenceResponse(output_tensors=[], error=fault)
            sender.send(answer, flags=FINAL)

    def note(self, what: str) -> None:
        with self.lived.open("a") as file:
            file.write(f"{what}\n")


def raw(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value
