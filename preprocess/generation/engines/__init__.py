"""How the engines of language models are asked, a row each, by the `engine` of endpoint.json.

Tested by tests/preprocess/generation/test_text_generation.py and
tests/preprocess/generation/test_vllm.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from preprocess.generation.engines import openvino, vllm
from preprocess.generation.prompt import Prompt
from preprocess.generation.step import EngineStep
from preprocess.triton.replies import Outputs
from preprocess.triton.streamed_request import StreamedRequest
from transformer_serving.contract.generation import Options

# From one message to a step. Raises ServingError `engine_failed`.
ReadStep = Callable[[Outputs], EngineStep]


@dataclass(frozen=True)
class EngineRow:
    """`request` makes that of one sequence, with the stop strings that preprocess looks for, and
    with a farewell where the engine knows one: else its stream is cancelled. `reader` is made
    anew for each sequence. `takes_text`: the engine tokenizes itself, and takes no ids.
    """

    request: Callable[[Prompt, Options, tuple[str, ...]], StreamedRequest]
    reader: Callable[[Prompt], ReadStep]
    takes_text: bool


ENGINES = {
    "openvino": EngineRow(openvino.request, openvino.reader, takes_text=False),
    "vllm": EngineRow(vllm.request, vllm.reader, takes_text=True),
}
