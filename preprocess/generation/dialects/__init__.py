"""The table of what text-generation can be asked, by the path that a request came to.

The rows of preprocess.dialects say what an operation is called and how its errors are told; these
read its body and speak its answer.

Tested by tests/preprocess/generation/test_voices.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from preprocess.answers.work import Work
from preprocess.dialects import OPERATIONS, OURS_OPERATION, operation_by_body
from preprocess.dialects.operation import Answered, Asked, Operation
from preprocess.generation.dialects import generate, openai, openai_voice, ours, tgi, v2
from preprocess.generation.voice import Spoken, Voice
from preprocess.request import Request
from preprocess.response import Reply, answer_body
from transformer_serving.contract.errors import ServingError
from transformer_serving.contract.heads import GENERATION
from transformer_serving.contract.worker.request_context import current_operation


@dataclass(frozen=True)
class Way:
    """`read` gives a body of our own form; it raises ServingError, as reading that will. `write`
    frames what the voice says whole.
    """

    read: Callable[[Asked], Any]
    voice: Callable[[Spoken], Voice]
    write: Callable[[Answered], Reply] = lambda answered: Reply(answer_body(answered.answer))


# No rows are computed for text: an answer's frame is made without them.
NO_WORK = Work(cast("Request", None), ())

WAYS = {
    OURS_OPERATION.name: Way(lambda asked: asked.body, ours.OwnVoice),
    "openai.completions": Way(openai.read_completion, openai_voice.CompletionVoice),
    "openai.tgi_completions": Way(openai.read_tgi_completion, openai_voice.CompletionVoice),
    "openai.chat": Way(openai.read_chat, openai_voice.ChatVoice),
    "openai.tgi_chat": Way(openai.read_chat, openai_voice.TgiChatVoice),
    "tgi.generate": Way(tgi.read_whole, tgi.TgiVoice),
    "tgi.generate_stream": Way(tgi.read_stream, tgi.TgiVoice),
    "tgi.root": Way(tgi.read_root, tgi.RootVoice),
    "tgi.tokenize": Way(tgi.read_tokenize, tgi.TgiVoice),
    "hf.inference": Way(tgi.read_root, tgi.RootVoice),
    "v2.infer": Way(v2.read, ours.OwnVoice, v2.write),
    "v2.generate": Way(generate.read_whole, generate.GenerateVoice),
    "v2.generate_stream": Way(generate.read_stream, generate.GenerateVoice),
}


def operation_of(body: Any) -> Operation:
    """What the request's path, or its body, says that it is."""
    named = current_operation.get()
    return operation_by_body(body) if named is None else OPERATIONS[named[0]]


def binary_part() -> bytes:
    """The bytes after a body's JSON."""
    named = current_operation.get()
    return b"" if named is None else named[1]


def way_of(operation: Operation) -> Way:
    """Raises ServingError (422) where text-generation cannot answer that."""
    way = WAYS.get(operation.name)
    if way is None:
        raise ServingError(
            "refused", "the endpoint cannot answer this: its model generates text",
            got=GENERATION,
        )  # fmt: skip
    return way
