"""Text generation: what endpoint.json says of it, and what preprocess and its engine exchange.

One call of the engine is one sequence. It goes in as the tensors `input_ids` (INT32 [tokens], the
prompt) and `options` (UINT8 [bytes], `Options` as JSON), and comes back as a stream of answers of
`token_ids` (INT32 [new]), `logprobs` (FP32 [new], of each token in the model's own distribution,
before temperature; empty where none were asked for) and `state` (INT32 [3]: a `Finish`, the tokens
of the prompt, the tokens generated so far). The last answer's `Finish` is not RUNNING. A call whose
caller has left is ended by a second one on a stream of its own, with a `Farewell` as its `options`,
which has no answer.

Tested by tests/contract/test_generation.py.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import Any

from transformer_serving.contract.errors import ContractError
from transformer_serving.contract.fields import Fields, parse_object

INPUT_IDS, OPTIONS = "input_ids", "options"
TOKEN_IDS, LOGPROBS, STATE = "token_ids", "logprobs", "state"
# The engines that a bundle may be for: our backend `openvino_generate`, and Triton's vLLM backend,
# whose tensors are its own.
ENGINES = ("openvino", "vllm")
MAX_POSITIONS = 10_000_000
MAX_SEED = 2**63 - 1
# Temperature, top_p and repetition penalty are above it: engines hold them in 32 bits, where less
# becomes zero, which they refuse.
LEAST_SAMPLING = 1e-6
# Frequency and presence penalties are from its negative to it, as OpenAI has them.
MOST_PENALTY = 2.0
# Of a message's role, which names who speaks: chat templates know of a few short words.
MAX_ROLE_CHARACTERS = 64
# Of the options: how to choose, and the same where it asks more than an engine of before knows, or
# than one knows that came after that.
SAMPLING, _FULL_SAMPLING, _MIN_P_SAMPLING = "sampling", "full_sampling", "min_p_sampling"
_MAX_ID = 2**31 - 1
_MAX_IDS = 256


class Finish(IntEnum):
    """Why a sequence is at its end. STOP: a token of `eos_ids`, which is its last token then."""

    RUNNING = 0
    STOP = 1
    LENGTH = 2
    CANCELLED = 3
    CACHE_FULL = 4


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen; the terms and their meaning are transformers'.

    `top_k` 0, `top_p` 1.0 and `min_p` 0.0 leave every token in. Without `do_sample` the likeliest
    is taken and these and the temperature say nothing. The frequency and presence penalties are
    OpenAI's: taken off a token's score for each time that it was generated, and once where it was
    at all, which openvino_genai does not do (docs/decisions/generation.md). No token of `eos_ids`
    is chosen before there are `min_new_tokens`.
    """

    do_sample: bool
    temperature: float
    top_p: float
    top_k: int
    repetition_penalty: float
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    min_new_tokens: int = 0
    min_p: float = 0.0

    @property
    def field(self) -> str:
        """Its name in the options: an engine of before that would write another text misses what it
        has always been told, and refuses the call."""
        if self.do_sample and self.min_p:
            return _MIN_P_SAMPLING
        asks_more = any((self.frequency_penalty, self.presence_penalty, self.min_new_tokens))
        return _FULL_SAMPLING if asks_more else SAMPLING


@dataclass(frozen=True)
class Generation:
    """What the model allows, in tokens: prompt and new ones have `max_positions` together.

    A request that does not say gets `default_new_tokens` and `sampling`, from the model's
    generation_config.json; `top_k_is_unsaid` where that file has none, so that the number is
    transformers' own. `eos_ids` end a sequence. `special_tokens` are texts by their names
    (bos_token, eos_token, ...) as the chat template, Jinja of transformers' dialect, reads them.
    """

    engine: str
    vocabulary: int
    max_positions: int
    max_new_tokens: int
    default_new_tokens: int
    eos_ids: tuple[int, ...]
    sampling: Sampling
    special_tokens: dict[str, str]
    chat_template: str | None = None
    top_k_is_unsaid: bool = False


@dataclass(frozen=True)
class Options:
    """What one sequence asks of the engine. The seed is the only source of chance.

    `first` is a health check's: it stands before whoever waits, and is not refused for them. An
    engine of before passes over it.
    """

    max_new_tokens: int
    eos_ids: tuple[int, ...]
    sampling: Sampling
    seed: int
    logprobs: bool = False
    first: bool = False

    @property
    def min_new_tokens(self) -> int:
        """As many as there may be, where the model's own number is above that."""
        return min(self.sampling.min_new_tokens, self.max_new_tokens)

    def to_json(self) -> bytes:
        told = asdict(self)
        told[self.sampling.field] = told.pop(SAMPLING)
        return json.dumps(told).encode()


@dataclass(frozen=True)
class Farewell:
    """In the place of options: nobody waits for the call of the request id `ends` any more."""

    ends: str

    @property
    def input_ids(self) -> tuple[int, ...]:
        """Triton wants the tensor; nobody reads it."""
        return (0,)

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()


def read_generation(fields: Fields) -> Generation:
    """The `generation` of endpoint.json. Raises ContractError naming field, limit and got."""
    positions = fields.number("max_positions", low=2, high=MAX_POSITIONS)
    most = fields.number("max_new_tokens", low=1, high=positions - 1)
    special: dict[str, Any] = fields.take("special_tokens", dict)
    if not all(isinstance(text, str) for text in special.values()):
        raise ContractError(f"{fields.where}: field 'special_tokens' must hold texts by name")
    vocabulary = fields.number("vocabulary", low=1, high=_MAX_ID)
    return Generation(
        engine=fields.choice("engine", ENGINES),
        vocabulary=vocabulary,
        max_positions=positions,
        max_new_tokens=most,
        default_new_tokens=fields.number("default_new_tokens", low=1, high=most),
        eos_ids=_ids(fields, vocabulary - 1),
        sampling=_sampling(fields.inner(SAMPLING)),
        special_tokens=special,
        chat_template=fields.optional("chat_template", str),
        top_k_is_unsaid=fields.take("top_k_is_unsaid", bool, default=False),
    )


def read_options(text: bytes) -> Options | Farewell:
    """The `options` of one sequence. Raises ContractError naming field, limit and got."""
    fields = parse_object(text, OPTIONS)
    if "ends" in fields.values:
        return Farewell(fields.take("ends", str))
    told = (name for name in (_MIN_P_SAMPLING, _FULL_SAMPLING) if name in fields.values)
    return Options(
        max_new_tokens=fields.number("max_new_tokens", low=1, high=MAX_POSITIONS),
        eos_ids=_ids(fields, _MAX_ID),
        sampling=_sampling(fields.inner(next(told, SAMPLING))),
        seed=fields.number("seed", low=0, high=MAX_SEED),
        logprobs=fields.take("logprobs", bool, default=False),
        first=fields.take("first", bool, default=False),
    )


def _sampling(fields: Fields) -> Sampling:
    return Sampling(
        do_sample=fields.take("do_sample", bool),
        temperature=_sampled(fields, "temperature", 100.0),
        top_p=_sampled(fields, "top_p", 1.0),
        top_k=fields.number("top_k", low=0, high=_MAX_ID),
        repetition_penalty=_sampled(fields, "repetition_penalty", 100.0),
        frequency_penalty=_between(fields, "frequency_penalty", -MOST_PENALTY, MOST_PENALTY),
        presence_penalty=_between(fields, "presence_penalty", -MOST_PENALTY, MOST_PENALTY),
        min_new_tokens=fields.number("min_new_tokens", low=0, high=MAX_POSITIONS, default=0),
        min_p=_between(fields, "min_p", 0.0, 1.0),
    )


def _sampled(fields: Fields, name: str, most: float) -> float:
    value = fields.take(name, float)
    # Also false for NaN.
    if not LEAST_SAMPLING < value <= most:
        raise ContractError(
            f"{fields.where}: field '{name}' must be above {LEAST_SAMPLING:g} and at most "
            f"{most:g}, got {value:g}"
        )
    return value


def _between(fields: Fields, name: str, low: float, high: float) -> float:
    """0 where it is not told, as an endpoint and a bundle of before do not."""
    value = fields.take(name, float, default=0.0)
    # Also false for NaN.
    if not low <= value <= high:
        raise ContractError(
            f"{fields.where}: field '{name}' must be from {low:g} to {high:g}, got {value:g}"
        )
    return value


def _ids(fields: Fields, highest: int) -> tuple[int, ...]:
    ids: list[Any] = fields.take("eos_ids", list)
    if len(ids) > _MAX_IDS or not all(type(one) is int and 0 <= one <= highest for one in ids):
        raise ContractError(
            f"{fields.where}: field 'eos_ids' must be a list of at most {_MAX_IDS} token ids "
            f"from 0 to {highest}"
        )
    return tuple(ids)
