"""From the body that the host parsed to what is to be generated: checks only.

Tested by tests/preprocess/generation/test_request.py.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from preprocess.body_form import BodyForm, TextField
from preprocess.generation.messages import Message, characters_of, read_messages
from preprocess.parameters import (
    CHARACTERS_A_TEXT,
    FLAG,
    Kind,
    Parameter,
    Parameters,
    between,
    is_unicode,
    number,
    read_parameters,
    whole,
)
from preprocess.raw_body import text_of
from preprocess.request import (
    check_count,
    check_object,
    check_text,
    read_timeout,
    refuse_unknown,
    wrong,
)
from transformer_serving.contract.endpoint import Limits
from transformer_serving.contract.errors import ServingError
from transformer_serving.contract.generation import (
    LEAST_SAMPLING,
    MAX_SEED,
    MOST_PENALTY,
    Generation,
    Sampling,
)

# What the prompt may stand in, one of them: ours, the Inference API's, and a conversation.
PROMPTS = ("text", "inputs", "messages")
_FIELDS = (*PROMPTS, "parameters", "stream", "timeout_ms")
_MOST_STOPS, _STOP_CHARACTERS = 16, 256
_MOST_SEQUENCES = 64
# None of them says anything where the likeliest token is taken.
OF_SAMPLING = ("temperature", "top_k", "top_p", "min_p")
# Nothing here is padded.
_WITHOUT_EFFECT = (Parameter("pad_token_id", whole(0)),)
# What `generate` takes beside, and what to send for it.
_INSTEAD = {
    "max_length": "it counts the prompt too; send max_new_tokens",
    "min_length": "it counts the prompt too; send min_new_tokens",
    "eos_token_id": "the model's own tokens end a text; send more ends as texts in stop",
    "no_repeat_ngram_size": "the engine does not do it; leave it out",
}
# A seed that is drawn is exact in every client's JSON.
_DRAWN_BITS = 53


@dataclass(frozen=True)
class TextParameters(Parameters):
    """None where the request does not say. `seed` is the first sequence's, drawn where none came;
    the next have the numbers after it.
    """

    max_new_tokens: int | None
    sampling: Sampling
    seed: int
    stop: tuple[str, ...]
    return_full_text: bool | None
    sequences: int
    truncate: int | None
    logprobs: bool
    ignore_eos: bool


@dataclass(frozen=True)
class Wanted:
    """Continuations of each of `prompts`, or of the conversation `messages`.

    `many` tells a list from a single prompt, `pipeline_shape` the Inference API's `inputs`.
    """

    prompts: tuple[str, ...]
    messages: tuple[Message, ...] | None
    many: bool
    pipeline_shape: bool
    stream: bool
    timeout_s: float | None
    parameters: TextParameters

    @property
    def characters(self) -> int:
        """What tokenizing will cost: those of all prompts together, and as many for each as take
        as long."""
        once = sum(map(len, self.prompts)) + CHARACTERS_A_TEXT * len(self.prompts)
        return once + characters_of(self.messages or ())

    @property
    def field(self) -> str:
        """The one that the prompt came in."""
        if self.messages is not None:
            return "messages"
        return "inputs" if self.pipeline_shape else "text"

    @property
    def with_prompt(self) -> bool:
        """Whether the answer begins with the prompt, as it does where nobody says otherwise."""
        given = self.parameters.return_full_text
        return self.messages is None if given is None else given


class TextTask:
    """What others may know of the task: its body's form, its parameters."""

    form = BodyForm(TextField("text"))

    def __init__(self, generation: Generation) -> None:
        self.parameters = _table(generation)
        self._has_penalties = _has_penalties(generation)

    def read_parameters(self, values: Mapping[str, Any]) -> TextParameters:
        """Raises ServingError `invalid_field`, and `impossible` for what the engine does not do."""
        read = read_parameters(values, self.parameters, _WITHOUT_EFFECT, _INSTEAD)
        if not self._has_penalties:
            _refuse_penalties(read)
        if values.get("do_sample") is None:
            # Who speaks of it wants it, whatever the model does unasked.
            read["do_sample"] |= any(values.get(name) is not None for name in OF_SAMPLING)
        stop, seed = read["stop"] or (), read["seed"]
        return TextParameters(
            max_new_tokens=read["max_new_tokens"],
            sampling=Sampling(
                read["do_sample"], float(read["temperature"]), float(read["top_p"]), read["top_k"],
                float(read["repetition_penalty"]), float(read["frequency_penalty"]),
                float(read["presence_penalty"]), read["min_new_tokens"], float(read["min_p"]),
            ),
            seed=secrets.randbits(_DRAWN_BITS) if seed is None else seed,
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
            return_full_text=read["return_full_text"],
            sequences=read["num_return_sequences"],
            truncate=read["truncate"],
            logprobs=read["logprobs"],
            ignore_eos=read["ignore_eos"],
        )  # fmt: skip


_PENALTIES = ("frequency_penalty", "presence_penalty")
_PENALTY = between(-MOST_PENALTY, MOST_PENALTY)
# As it is described where there is none: clients send a 0.
_NO_PENALTY = replace(_PENALTY, schema=between(0, 0).schema)


def _has_penalties(generation: Generation) -> bool:
    """openvino_genai adds them where a score is below 0, so that texts repeat themselves."""
    return generation.engine != "openvino"


def _refuse_penalties(read: Mapping[str, Any]) -> None:
    """Raises ServingError `impossible`."""
    for name in _PENALTIES:
        if read[name]:
            raise ServingError(
                "impossible", f"parameter '{name}' is not supported by the engine openvino; leave "
                "it out, or send repetition_penalty (a model that is converted with --engine vllm "
                "has it)", field=name, limit=0,
            )  # fmt: skip


def _table(generation: Generation) -> tuple[Parameter, ...]:
    """What may be asked; the model's own defaults."""
    usual = generation.sampling
    penalty = _PENALTY if _has_penalties(generation) else _NO_PENALTY
    return (
        Parameter("max_new_tokens", whole(1, generation.max_new_tokens)),
        Parameter("min_new_tokens", whole(0, generation.max_new_tokens), usual.min_new_tokens),
        Parameter("do_sample", FLAG, usual.do_sample),
        Parameter("temperature", number(LEAST_SAMPLING, 100), usual.temperature),
        Parameter("top_p", number(LEAST_SAMPLING, 1), usual.top_p),
        Parameter("top_k", whole(0, 2**31 - 1), usual.top_k),
        Parameter("min_p", between(0, 1), usual.min_p),
        Parameter("repetition_penalty", number(LEAST_SAMPLING, 100), usual.repetition_penalty),
        Parameter("frequency_penalty", penalty, usual.frequency_penalty),
        Parameter("presence_penalty", penalty, usual.presence_penalty),
        Parameter("seed", whole(0, MAX_SEED)),
        Parameter("stop", _STOPS),
        Parameter("return_full_text", FLAG),
        Parameter("num_return_sequences", whole(1, _MOST_SEQUENCES), 1),
        Parameter("truncate", whole(1, generation.max_positions)),
        Parameter("logprobs", FLAG, False),
        Parameter("ignore_eos", FLAG, False),
    )


def _are_stops(value: Any) -> bool:
    stops = value if isinstance(value, list) else [value]
    return len(stops) <= _MOST_STOPS and all(
        isinstance(stop, str) and 0 < len(stop) <= _STOP_CHARACTERS and is_unicode(stop)
        for stop in stops
    )


_STOPS = Kind(
    f"a string or at most {_MOST_STOPS} of them, each of 1 to {_STOP_CHARACTERS} characters",
    _are_stops,
    _MOST_STOPS,
    {
        "anyOf": [
            {"type": "string", "minLength": 1, "maxLength": _STOP_CHARACTERS},
            {"type": "array", "items": {"type": "string"}, "maxItems": _MOST_STOPS},
        ]
    },
)


def read_wanted(body: Any, task: TextTask, limits: Limits) -> Wanted:
    """Check the body against the task and the limits. Raises ServingError (400, 413, 422)."""
    if isinstance(body, bytes | bytearray):
        body = {"text": text_of(bytes(body), PROMPTS)}
    check_object(body)
    refuse_unknown(body, _FIELDS, parameters=task.parameters)
    named = [name for name in PROMPTS if name in body]
    if len(named) != 1:
        raise ServingError(
            "invalid_field", f"one of the fields {', '.join(PROMPTS)} must hold the prompt",
            field="text", limit=1, got=len(named),
        )  # fmt: skip
    messages = None
    prompts: tuple[str, ...] = ()
    if named == ["messages"]:
        messages = read_messages(body["messages"], limits)
    else:
        prompts = _prompts(body[named[0]], named[0], limits)
    many = isinstance(body[named[0]], list) and messages is None
    parameters = task.read_parameters(_parameters(body))
    _check_sequences(max(1, len(prompts)) * parameters.sequences, limits)
    stream = _stream(body)
    if stream and len(prompts) > 1:
        raise ServingError(
            "impossible", "a stream has one prompt; send several requests", field=named[0],
            limit=1, got=len(prompts),
        )  # fmt: skip
    return Wanted(
        prompts, messages, many, named == ["inputs"], stream, read_timeout(body), parameters
    )


def _check_sequences(count: int, limits: Limits) -> None:
    most = max(limits.max_texts, _MOST_SEQUENCES)
    if count > most:
        raise ServingError(
            "too_large", "the prompts, each with 'num_return_sequences', are too many sequences; "
            "send several requests", field="num_return_sequences", limit=most, got=count,
        )  # fmt: skip


def _prompts(value: Any, name: str, limits: Limits) -> tuple[str, ...]:
    rows = value if isinstance(value, list) else [value]
    check_count(rows, name, limits, "prompts")
    for row in rows:
        check_text(row, TextField(name), limits)
    return tuple(rows)


def _stream(body: Mapping[str, Any]) -> bool:
    value = body.get("stream")
    if not isinstance(value, bool | None):
        raise wrong("stream", "true or false", value)
    return bool(value)


def _parameters(body: Mapping[str, Any]) -> Mapping[str, Any]:
    value = body.get("parameters")
    if not isinstance(value, Mapping | None):
        raise wrong("parameters", "an object", value)
    return value or {}
