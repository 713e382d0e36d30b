"""Triton's generate extension: POST /v2/models/NAME/generate and /generate_stream.

`text_input` and `text_output` are the names of its vLLM and TensorRT-LLM backends, and so are the
parameters beside ours; as with those, a stream has the new text alone.

Tested by tests/preprocess/generation/test_voices.py.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows
from typing import Any

from preprocess.dialects.operation import Asked, given, read_fields, read_flag
from preprocess.generation.dialects.tgi import one_text, refuse_others
from preprocess.generation.sequence import Piece, Sequence
from preprocess.generation.voice import Spoken, event
from preprocess.request import wrong
from transformer_serving.contract.dialects import dialect_of
from transformer_serving.contract.errors import ServingError

_TAKEN = {
    **{
        name: name
        for name in (
            "do_sample", "max_new_tokens", "repetition_penalty", "seed", "stop", "temperature",
            "top_k", "top_p", "ignore_eos", "truncate",
        )
    },
    "max_tokens": "max_new_tokens", "random_seed": "seed", "stop_words": "stop",
}  # fmt: skip
_OWN = ("exclude_input_in_output", "stream")
_FIELDS = ("id", "text_input", "parameters", "stream", *_TAKEN, *_OWN)


def read_whole(asked: Asked) -> dict[str, Any]:
    return _read(asked, stream=False)


def read_stream(asked: Asked) -> dict[str, Any]:
    return _read(asked, stream=True)


def _read(asked: Asked, *, stream: bool) -> dict[str, Any]:
    """Parameters may stand in `parameters` or beside it; `stream` is the path's to say."""
    body = read_fields(asked.body, _FIELDS)
    if not isinstance(body.get("id"), str | None):
        raise wrong("id", "a string", body["id"])
    inner = body.get("parameters")
    if not isinstance(inner, dict | None):
        raise wrong("parameters", "an object", inner)
    beside = {name: body[name] for name in (*_TAKEN, *_OWN) if name in body}
    parameters = {**beside, **(inner or {})}
    refuse_others(parameters, (*_TAKEN, *_OWN), {})
    read_flag(parameters, "stream")
    without = read_flag(parameters, "exclude_input_in_output")
    own = given(parameters, _TAKEN)
    if own.get("temperature") == 0:
        own = {**own, "do_sample": False}
        del own["temperature"]
    return {
        "text": one_text(body, "text_input"),
        "parameters": {**own, "return_full_text": not (without or stream)},
        "stream": stream,
    }


class GenerateVoice:
    """An object with `text_output`; of a stream, one an event."""

    def __init__(self, spoken: Spoken) -> None:
        self._spoken = spoken

    def whole(self, sequences: Rows[Sequence]) -> Any:
        return self._answer(self._spoken.text(0, sequences[0]))

    def _answer(self, text: str) -> dict[str, Any]:
        spoken = self._spoken
        named = {"id": spoken.body["id"]} if spoken.body.get("id") is not None else {}
        version = spoken.version or "1"
        return {
            **named, "model_name": spoken.name, "model_version": version, "text_output": text,
        }  # fmt: skip

    def begin(self) -> bytes:
        return b""

    def piece(self, at: int, piece: Piece, sequence: Sequence) -> bytes:
        return event(self._answer(piece.text)) if piece.text else b""

    def end(self, at: int, sequence: Sequence) -> bytes:
        return b""

    def last(self, sequences: Rows[Sequence]) -> bytes:
        return b""

    def fault(self, error: ServingError) -> bytes:
        return event(dialect_of("v2").error_body(error))
