"""text-generation-inference: /tgi/NAME/generate, /generate_stream, /tokenize, and its root, which
is the Hugging Face Inference API's too.

Fields and answers are those of its openapi.json, as npm's @huggingface/tasks has them in types.
A stop string ends the text and is not part of it. Its router reads the fields that it knows and
passes over others.

Tested by tests/preprocess/generation/test_voices.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence as Rows
from types import MappingProxyType
from typing import Any

from preprocess.dialects.operation import Asked, given, read_flag, read_object
from preprocess.dialects.token_list import tokens_of
from preprocess.generation.dialects.sampling import as_tgi, fold_seed
from preprocess.generation.request import Wanted
from preprocess.generation.sequence import Piece, Sequence, Token
from preprocess.generation.voice import Spoken, ending_of, event
from preprocess.request import wrong
from preprocess.tokens import Tokenizer
from transformer_serving.contract.dialects import dialect_of
from transformer_serving.contract.errors import ServingError

_TAKEN = {
    **{
        name: name
        for name in (
            "do_sample", "frequency_penalty", "max_new_tokens", "repetition_penalty",
            "return_full_text", "seed", "stop", "temperature", "top_k", "top_p", "truncate",
        )
    },
    # vLLM's load generator sends it with every request; its router passes it over.
    "ignore_eos_token": "ignore_eos",
}  # fmt: skip
# What this engine does not have, and the values that ask for nothing.
LACKS: Mapping[str, tuple[Any, ...]] = {
    "adapter_id": (None,), "best_of": (None, 1), "grammar": (None,), "top_n_tokens": (None, 0),
    "typical_p": (None, 1), "watermark": (None, False), "decoder_input_details": (None, False),
}  # fmt: skip
_SEVERAL = "num_return_sequences"
_OWN = ("details", _SEVERAL)
# Where an answer, or a stream, is of one text.
_LACKS_OF_ONE = {**LACKS, _SEVERAL: (None, 1)}
# Of what is refused, whose default it is and how that is turned off.
_ADVICE = {"typical_p": "langchain's HuggingFaceEndpoint sends it unless typical_p is None"}


def read_whole(asked: Asked) -> dict[str, Any]:
    return _read_one(asked, stream=False)


def read_stream(asked: Asked) -> dict[str, Any]:
    return _read_one(asked, stream=True)


def read_root(asked: Asked) -> dict[str, Any]:
    """Of several prompts, or sequences, the answers are those of the pipeline. The text begins with
    the prompt, as its router has it there of a model whose task is text-generation; `options` of
    the Inference API, about loading, is passed over as any field is.
    """
    body = read_object(asked.body)
    stream = read_flag(body, "stream")
    own = _read(body, _LACKS_OF_ONE if stream else LACKS, stream=stream, full_text=True)
    return {"text": body.get("inputs"), "parameters": own, "stream": stream}


def read_tokenize(asked: Asked) -> dict[str, Any]:
    """A body as for /generate, whose parameters change no token."""
    body = read_object(asked.body)
    read_flag(body, "add_special_tokens")
    return {"text": one_text(body, "inputs")}


def list_tokens(asked: Asked, wanted: Wanted, tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """Of the whole text, however long; special tokens have none of it."""
    [text] = wanted.prompts
    special = read_flag(asked.body, "add_special_tokens", default=True)
    [encoding] = tokenizer.whole([text], special=special)
    return [
        {"id": row["id"], "text": "", "start": 0, "stop": 0}
        if row["special"] and row["start"] is None
        else {name: row[name] for name in ("id", "text", "start", "stop")}
        for row in tokens_of(text, encoding)
    ]


def _read_one(asked: Asked, *, stream: bool) -> dict[str, Any]:
    body = read_object(asked.body)
    own = _read(body, _LACKS_OF_ONE, stream=stream, full_text=False)
    return {"text": one_text(body, "inputs"), "parameters": own, "stream": stream}


def _read(
    body: Mapping[str, Any], lacks: Mapping[str, tuple[Any, ...]], *, stream: bool, full_text: bool
) -> dict[str, Any]:
    """Its parameters in our terms."""
    parameters = body.get("parameters")
    if not isinstance(parameters, dict | None):
        raise wrong("parameters", "an object", parameters)
    parameters = parameters or {}
    refuse_others(parameters, (*_TAKEN, *_OWN), lacks, _ADVICE)
    details = read_flag(parameters, "details")
    own = given(parameters, {**_TAKEN, _SEVERAL: _SEVERAL})
    as_tgi(own, parameters)
    fold_seed(own)
    own.setdefault("return_full_text", full_text)
    own["logprobs"] = details or stream
    return own


def one_text(body: Mapping[str, Any], name: str) -> Any:
    """The prompt where one is answered. Raises ServingError (400) for a list: the others' answers
    would be missing."""
    value = body.get(name)
    if isinstance(value, list):
        raise wrong(name, "a string: one prompt is answered here", value)
    return value


def refuse_others(
    parameters: Mapping[str, Any],
    taken: Rows[str],
    lacks: Mapping[str, tuple[Any, ...]],
    advice: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Raises ServingError (400) for a parameter that nobody knows, unless it is null, which
    serializers write for what they leave out, (422) for what is not here, with the `advice` that
    there is.
    """
    for name, value in parameters.items():
        if name in lacks and value not in lacks[name]:
            told = f"; {advice[name]}" if name in advice else ""
            raise ServingError(
                "impossible", f"parameter '{name}' is not supported; leave it out{told}", field=name
            )
        if value is not None and name not in lacks and name not in taken:
            raise ServingError(
                "invalid_field", f"an unknown parameter; allowed are {', '.join(taken)}",
                field="parameters",
            )  # fmt: skip


class TgiVoice:
    """An object with the text, its details where they were asked for; an event a token."""

    def __init__(self, spoken: Spoken) -> None:
        self._spoken = spoken
        parameters = spoken.body.get("parameters") or {}
        self._details = bool(parameters.get("details"))
        self._told = 0
        self._is_whole = False

    def whole(self, sequences: Rows[Sequence]) -> Any:
        return self._answer(0, sequences[0])

    def _answer(self, at: int, sequence: Sequence) -> dict[str, Any]:
        answer: dict[str, Any] = {"generated_text": self._spoken.text(at, sequence)}
        if self._details:
            tokens = [_token(one) for one in sequence.tokens]
            answer["details"] = {**_end(sequence), "prefill": [], "tokens": tokens}
        return answer

    def begin(self) -> bytes:
        return b""

    def piece(self, at: int, piece: Piece, sequence: Sequence) -> bytes:
        """An event a token; that of the last carries the whole text."""
        tokens = piece.tokens or (Token(0, piece.text, None, special=False),)
        events = []
        for token in tokens:
            self._told += 1
            is_last = sequence.ending is not None and token is tokens[-1]
            events.append(self._event(at, token, sequence if is_last else None))
        return b"".join(events)

    def _event(self, at: int, token: Token, ended: Sequence | None) -> bytes:
        self._is_whole = ended is not None
        return event(
            {
                "index": self._told,
                "token": _token(token),
                "generated_text": None if ended is None else self._spoken.text(at, ended),
                "details": None if ended is None else {
                    **_end(ended), "input_length": ended.prompt_tokens,
                },
            }
        )  # fmt: skip

    def end(self, at: int, sequence: Sequence) -> bytes:
        if self._is_whole:
            return b""
        # An end without a token: its clients wait for the whole text all the same.
        self._told += 1
        return self._event(at, Token(0, "", None, special=True), sequence)

    def last(self, sequences: Rows[Sequence]) -> bytes:
        return b""

    def fault(self, error: ServingError) -> bytes:
        return event(dialect_of("tgi").error_body(error))


class RootVoice(TgiVoice):
    """As the Inference API answers, and its pipeline: a list, and of a list of prompts one each."""

    def whole(self, sequences: Rows[Sequence]) -> Any:
        spoken = self._spoken
        rows = [[self._answer(at, one) for at, one in row] for row in spoken.by_prompt(sequences)]
        return rows if spoken.wanted.many else rows[0]


def _token(token: Token) -> dict[str, Any]:
    # Clients leave out what is special: an end token may come with text that was held back.
    special = token.special and not token.text
    return {"id": token.id, "text": token.text, "logprob": token.logprob, "special": special}


def _end(sequence: Sequence) -> dict[str, Any]:
    return {
        "finish_reason": ending_of(sequence),
        "generated_tokens": sequence.new_tokens,
        "seed": sequence.seed,
    }
