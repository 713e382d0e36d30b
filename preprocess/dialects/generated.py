"""What only text-generation answers: the names of its operations, and of their fields.

Their bodies and answers are preprocess/generation/dialects/; a bundle of another task refuses them.

Tested by tests/preprocess/test_dialects.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from preprocess.dialects.operation import Operation
from preprocess.response import Reply, answer_body
from transformer_serving.contract.heads import GENERATION

_OPENAI = {
    "max_completion_tokens": "max_new_tokens", "max_tokens": "max_new_tokens",
    "n": "num_return_sequences", "min_tokens": "min_new_tokens",
}  # fmt: skip
_TGI = {"inputs": "text", "ignore_eos_token": "ignore_eos"}
_GENERATE = {
    "text_input": "text", "max_tokens": "max_new_tokens", "stop_words": "stop",
    "random_seed": "seed", "min_tokens": "min_new_tokens",
}  # fmt: skip


def _row(name: str, names: Mapping[str, str], *, needs_engine: bool = True) -> Operation:
    return Operation(
        name, frozenset({GENERATION}), lambda asked: asked.body,
        lambda answered: Reply(answer_body(answered.answer)), names, needs_engine=needs_engine,
    )  # fmt: skip


OPERATIONS = (
    _row("openai.completions", {"prompt": "text", **_OPENAI}),
    _row("openai.tgi_completions", {"prompt": "text", **_OPENAI}),
    _row("openai.chat", _OPENAI),
    _row("openai.tgi_chat", _OPENAI),
    _row("tgi.root", _TGI),
    _row("tgi.generate", _TGI),
    _row("tgi.generate_stream", _TGI),
    _row("tgi.tokenize", _TGI, needs_engine=False),
    _row("v2.generate", _GENERATE),
    _row("v2.generate_stream", _GENERATE),
)
