"""A backend whose language model counts up from a prompt's last id, and fails where a prompt's
first one says so; the rest of it is that of every language model of ours.
"""

from __future__ import annotations

import time
from pathlib import Path

from transformer_serving.contract.generation import Finish
from transformer_serving.engine.backends.generation.calls import Call
from transformer_serving.engine.backends.generation.sequences import Part, Pipeline
from transformer_serving.engine.backends.generation.settings import GenerationSettings
from transformer_serving.engine.backends.generation.triton_streams import LanguageModel

# First ids: the step after the first token raises once a file FAILS is there, and then no other
# pipeline can be built; the second message, or the last one, holds a token that no tensor takes.
BAD_STEP, BAD_SECOND, BAD_LAST = 91, 92, 93
FAILS = "fails"
NO_TOKEN = 2**40


class Counting:
    def __init__(self, call: Call) -> None:
        self.first = int(call.ids[0])
        self.next = int(call.ids[-1])
        self.left = call.options.max_new_tokens
        self.made = 0
        self.cancelled = False

    def take(self) -> Part:
        if self.cancelled or not self.left:
            return Part((), (), Finish.CANCELLED if self.cancelled else Finish.LENGTH)
        self.left, self.made, self.next = self.left - 1, self.made + 1, self.next + 1
        bad = (self.first == BAD_SECOND and self.made == 2) or (
            self.first == BAD_LAST and not self.left
        )
        finish = Finish.RUNNING if self.left else Finish.LENGTH
        return Part((NO_TOKEN if bad else self.next,), (), finish)

    def cancel(self) -> None:
        self.cancelled = True


class CountingPipeline:
    def __init__(self, fails: Path) -> None:
        self.running: list[Counting] = []
        self.fails = fails

    def start(self, call: Call) -> Counting:
        self.running.append(Counting(call))
        return self.running[-1]

    def step(self) -> None:
        if any(one.first == BAD_STEP and one.made for one in self.running):
            while not self.fails.exists():
                time.sleep(0.01)
            raise RuntimeError("the step is broken")
        self.running = [one for one in self.running if one.left and not one.cancelled]
        time.sleep(0.001)

    def busy(self) -> bool:
        return bool(self.running)

    def cache_use(self) -> float:
        return 0.0


class TritonPythonModel(LanguageModel):
    """What Triton's stub looks for."""

    loads = 0

    @staticmethod
    def load(folder: Path, settings: GenerationSettings) -> Pipeline:
        TritonPythonModel.loads += 1
        if TritonPythonModel.loads > 1:
            raise MemoryError("no memory")
        return CountingPipeline(folder / FAILS)
