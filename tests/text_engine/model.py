"""A decoupled model that answers tokens by a rule, for tests of what stands before it.

The tokens are those of the prompt once more, one after the other and over again; the prompt's first
token says how: see the marks. Errors and silences come at the fourth token, errors of a mark that
stands there twice in the place of the first. A step of `slow` takes 50 ms; where it stands there
twice, a second. Of `every` three tokens are a message; where it stands there twice, the end is a
message of its own, without tokens. The parameter `places` is how many run at once; without it all
do.
"""

import ctypes
import json
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
RUNNING, STOP, LENGTH, CANCELLED, CACHE_FULL = range(5)
# Ids of the tests' tokenizer's first tokens.
EOS, SLOW, FAIL, HANG, FULL, CACHE, REFUSE, EVERY, NEVER = 3, 4, 5, 6, 7, 8, 9, 10, 11


REFUSALS = {
    FULL: ("UNAVAILABLE", "3 calls wait, and 3 may; come back later"),
    REFUSE: ("INVALID_ARG", "something of the input"),
}

_set_name = ctypes.pythonapi.PyCapsule_SetName
_set_name.argtypes = (ctypes.py_object, ctypes.c_char_p)


def tensor_of(name: str, array: np.ndarray) -> Any:
    # The stub's own numpy conversion was built for numpy 1.
    capsule = array.__dlpack__()
    tensor = pb_utils.Tensor.from_dlpack(name, capsule)
    _set_name(capsule, b"used_dltensor")
    return tensor


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        self.left: set[str] = set()
        self.lived = Path(args["model_repository"]) / "lived"
        self.on = self.lived.with_name("on")
        places = json.loads(args["model_config"]).get("parameters", {}).get("places")
        self.line: SimpleQueue[tuple[Any, ...]] | None = SimpleQueue() if places else None
        for _ in range(int(places["string_value"]) if places else 0):
            threading.Thread(target=self.work, daemon=True).start()

    def execute(self, requests: Sequence[Any]) -> None:
        for request in requests:
            tensors = {one.name(): np.from_dlpack(one).copy() for one in request.inputs()}
            options = json.loads(tensors["options"].tobytes())
            sender = request.get_response_sender()
            if "ends" in options:
                self.left.add(options["ends"])
                sender.send(flags=FINAL)
                continue
            arguments = (sender, tensors["input_ids"], options, request.request_id())
            if self.line is None:
                threading.Thread(target=self.answer, args=arguments, daemon=True).start()
            else:
                self.line.put(arguments)

    def work(self) -> None:
        """One place: in the order of their coming."""
        assert self.line is not None
        while True:
            self.answer(*self.line.get())

    def answer(self, sender: Any, prompt: np.ndarray, options: Any, identity: str) -> None:
        ids = [int(one) for one in prompt.reshape(-1)]
        mark = ids[0]
        if mark in REFUSALS:
            self.refuse(sender, *REFUSALS[mark])
        elif mark == NEVER:
            while not self.is_left(sender, identity):
                time.sleep(0.05)
            self.send(sender, [], options, (CANCELLED, len(ids), 0))
        else:
            self.generate(sender, ids, options, identity)

    def generate(self, sender: Any, ids: list[int], options: Any, identity: str) -> None:
        mark, most = ids[0], options["max_new_tokens"]
        size = 3 if mark == EVERY else 1
        made = 0
        wrong_at = 0 if ids[1:2] == [mark] else 3
        for at in range(0, most, size):
            self.pause(sender, ids[:2], at, identity)
            if self.is_left(sender, identity):
                self.note("cancelled", made)
                return self.send(sender, [], options, (CANCELLED, len(ids), made))
            if at == wrong_at and mark in (FAIL, CACHE):
                return self.give_up(sender, mark, options, (CACHE_FULL, len(ids), made))
            new = [ids[(at + one) % len(ids)] for one in range(min(size, most - at))]
            stops = [one for one in new if one in options["eos_ids"]]
            if stops:
                new = new[: new.index(stops[0]) + 1]
            made += len(new)
            done = STOP if stops else LENGTH if made >= most else RUNNING
            ends_alone = done and ids[:2] == [EVERY, EVERY]
            if ends_alone:
                self.send(sender, new, options, (RUNNING, len(ids), made))
            self.send(sender, [] if ends_alone else new, options, (done, len(ids), made))
            if done:
                return self.note("ended", made)
        return None

    def pause(self, sender: Any, marks: list[int], at: int, identity: str) -> None:
        """HANG: until it is left, or a file `on` is there."""
        if marks[0] == SLOW:
            time.sleep(1.0 if marks == [SLOW, SLOW] else 0.05)
        while marks[0] == HANG and at == 3 and not self.on.exists():
            if self.is_left(sender, identity):
                break
            time.sleep(0.05)

    def is_left(self, sender: Any, identity: str) -> bool:
        return identity in self.left or sender.is_cancelled()

    def give_up(self, sender: Any, mark: int, options: Any, state: tuple[int, int, int]) -> None:
        if mark == FAIL:
            self.refuse(sender, "INTERNAL", "the step failed")
        elif mark == CACHE:
            self.send(sender, [], options, state)

    def send(self, sender: Any, new: list[int], options: Any, state: tuple[int, int, int]) -> None:
        logprobs = [-0.5 * (1 + one % 3) for one in new] if options["logprobs"] else []
        [sampling] = [told for name, told in options.items() if name.endswith("sampling")]
        seeded = options["seed"] if sampling["do_sample"] else None
        if seeded is not None:
            new = [12 + (one + seeded) % 20 for one in new]
        tensors = [
            tensor_of("token_ids", np.array(new, np.int32)),
            tensor_of("logprobs", np.array(logprobs, np.float32)),
            tensor_of("state", np.array(state, np.int32)),
        ]
        answer = pb_utils.InferenceResponse(output_tensors=tensors)
        sender.send(answer, flags=FINAL if state[0] else 0)

    def refuse(self, sender: Any, code: str, text: str) -> None:
        error = pb_utils.TritonError(f"{code}: {text}", getattr(pb_utils.TritonError, code))
        sender.send(pb_utils.InferenceResponse(output_tensors=[], error=error), flags=FINAL)

    def note(self, what: str, tokens: int) -> None:
        with self.lived.open("a") as file:
            file.write(f"{what} {tokens}\n")
