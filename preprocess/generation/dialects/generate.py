"""Triton's generate extension: POST /v2/models/NAME/generate and /generate_stream.

`text_input` and `text_output` are the names of its vLLM and TensorRT-LLM backends, and so are the
parameters beside ours; as with those, a stream has the new text alone.

Tested by tests/preprocess/generation/test_voices.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence as Rows
from types import NoneType
from typing import Any

from preprocess.dialects.operation import Asked, check_name, read_fields, read_flag
from preprocess.generation.dialects.parameters import (
    VLLM_LACKS,
    VLLM_TAKEN,
    differ,
    said_twice,
    taken,
)
from preprocess.generation.dialects.sampling import as_vllm
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
            "do_sample", "max_new_tokens", "min_new_tokens", "repetition_penalty", "seed", "stop",
            "temperature", "top_k", "top_p", "ignore_eos", "truncate",
        )
    },
    "max_tokens": "max_new_tokens", "random_seed": "seed", "stop_words": "stop", **VLLM_TAKEN,
}  # fmt: skip
# No words: TensorRT-LLM's own examples send "", and LiteLLM and others of its clients [""].
_NO_WORDS: tuple[Any, ...] = ("", [], [""])
# What this engine does not have, and the values that ask for nothing.
LACKS: Mapping[str, tuple[Any, ...]] = {
    **VLLM_LACKS, "bad_words": (None, *_NO_WORDS), "beam_width": (None, 1),
    "return_log_probs": (None, False), "return_context_logits": (None, False),
    "return_generation_logits": (None, False),
}  # fmt: skip
_END, _PAD = "end_id", "pad_id"
_OWN = ("exclude_input_in_output", "stream", _END, _PAD)
_FIELDS = ("id", "text_input", "parameters", *_TAKEN, *_OWN)


def read_whole(asked: Asked) -> dict[str, Any]:
    return _read(asked, stream=False)


def read_stream(asked: Asked) -> dict[str, Any]:
    return _read(asked, stream=True)


def _read(asked: Asked, *, stream: bool) -> dict[str, Any]:
    """Parameters may stand in `parameters` or beside it; `stream` is the path's to say."""
    body = read_fields(asked.body, _FIELDS, tuple(LACKS))
    check_name(body, "id")
    inner = body.get("parameters")
    if not isinstance(inner, dict | None):
        raise wrong("parameters", "an object", inner)
    parameters = _both(body, inner or {})
    refuse_others(parameters, (*_TAKEN, *_OWN), LACKS)
    _check_ids(parameters, asked)
    read_flag(parameters, "stream")
    without = read_flag(parameters, "exclude_input_in_output")
    if parameters.get("stop_words") in _NO_WORDS:
        del parameters["stop_words"]
    own = taken(parameters, _TAKEN)
    as_vllm(own, asked.endpoint.generation)
    return {
        "text": one_text(body, "text_input"),
        "parameters": {**own, "return_full_text": not (without or stream)},
        "stream": stream,
    }


def _both(body: Mapping[str, Any], inner: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of both places."""
    beside = {name: body[name] for name in (*_TAKEN, *_OWN, *LACKS) if name in body}
    for name in beside.keys() & inner.keys():
        if None not in (inner[name], beside[name]) and differ(inner[name], beside[name]):
            raise said_twice(name, f"'{name}' in 'parameters' and beside it")
    sent = {name: value for name, value in inner.items() if value is not None}
    return {**inner, **beside, **sent}


def _check_ids(parameters: Mapping[str, Any], asked: Asked) -> None:
    """Of the tokens that TensorRT-LLM is told: that of the end must be the model's own, and with
    that of padding, which one text has none of, nothing is done.
    """
    for name in (_END, _PAD):
        if type(parameters.get(name)) not in (int, NoneType):
            raise wrong(name, "a whole number", parameters[name])
    end, generation = parameters.get(_END), asked.endpoint.generation
    ids = () if generation is None else generation.eos_ids
    if end is not None and end not in ids:
        raise ServingError(
            "impossible",
            f"parameter '{_END}' is no token that the model ends a text with; leave it out, and "
            "name other ends as texts in 'stop_words'",
            field=_END, limit=", ".join(map(str, ids)) or None,
        )  # fmt: skip


class GenerateVoice:
    """An object with `text_output`; of a stream, one an event."""

    def __init__(self, spoken: Spoken) -> None:
        self._spoken = spoken
        self._has_told = False

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
        if not piece.text:
            return b""
        self._has_told = True
        return event(self._answer(piece.text))

    def end(self, at: int, sequence: Sequence) -> bytes:
        """Of no text at all, too, there is an answer."""
        return b"" if self._has_told else event(self._answer(""))

    def last(self, sequences: Rows[Sequence]) -> bytes:
        return b""

    def fault(self, error: ServingError) -> bytes:
        return event(dialect_of("v2").error_body(error))
