"""One call of the engine, checked before the engine sees it: past these it says nothing.

openvino_genai 2026.4 takes ids outside the vocabulary and positions outside the model's table
without a word, and makes up an answer.

Tested by tests/engine/test_generation_calls.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transformer_serving.contract.engine_parameters import BLOCK_TOKENS
from transformer_serving.contract.errors import ContractError
from transformer_serving.contract.generation import (
    INPUT_IDS,
    OPTIONS,
    SAMPLING,
    Farewell,
    Options,
    read_options,
)
from transformer_serving.engine.backends.generation.settings import (
    GenerationSettings,
    blocks_of,
)


class Fault(Enum):
    """Whose fault it is: the call's own, of too many calls, or of the engine. Names are Triton's.

    The first word of what a caller reads, as a stream's error has a text and no code.
    """

    INVALID_ARG = "INVALID_ARG"
    UNAVAILABLE = "UNAVAILABLE"
    INTERNAL = "INTERNAL"


class CallRefused(Exception):
    """Why a call gets no tokens, or no more of them."""

    def __init__(self, fault: Fault, reason: str) -> None:
        super().__init__(f"{fault.value}: {reason}")
        self.fault = fault


@dataclass(frozen=True)
class Call:
    """The ids (INT32 [tokens]) and what is asked of them; `blocks` of the cache hold it whole."""

    ids: NDArray[np.int32]
    options: Options

    @property
    def tokens(self) -> int:
        """Of the prompt and the most new ones together."""
        return len(self.ids) + self.options.max_new_tokens

    @property
    def blocks(self) -> int:
        return blocks_of(self.tokens)


def read_call(settings: GenerationSettings, tensors: Mapping[str, NDArray[Any]]) -> Call | Farewell:
    """What a request's tensors say. Raises CallRefused with the limit and what was found."""
    for name in (INPUT_IDS, OPTIONS):
        if name not in tensors:
            raise _invalid(f"input '{name}' is missing")
    ids = tensors[INPUT_IDS].reshape(-1)
    try:
        options = read_options(bytes(tensors[OPTIONS].reshape(-1)))
    except ContractError as error:
        raise _invalid(str(error)) from None
    if isinstance(options, Farewell):
        return options
    call = Call(ids, options)
    _check_ids(settings, ids)
    _check_eos(settings, options)
    _check_penalties(options)
    _check_lengths(settings, call)
    return call


def _check_ids(settings: GenerationSettings, ids: NDArray[np.int32]) -> None:
    if ids.size == 0:
        raise _invalid(f"input '{INPUT_IDS}' is empty; send at least one token")
    if int(ids.min()) < 0:
        raise _invalid(f"input '{INPUT_IDS}' has an id below 0")
    if int(ids.max()) >= settings.vocabulary:
        raise _invalid(
            f"input '{INPUT_IDS}' has an id above {settings.vocabulary - 1}, the model's last"
        )


def _check_eos(settings: GenerationSettings, options: Options) -> None:
    if any(one >= settings.vocabulary for one in options.eos_ids):
        raise _invalid(
            f"{OPTIONS}: field 'eos_ids' has an id above {settings.vocabulary - 1}, the model's "
            "last"
        )


def _check_penalties(options: Options) -> None:
    """In the words that a bundle answers as a caller's fault which still sends them (its
    preprocess/triton/errors.py): those of an engine that did not know them yet."""
    if options.sampling.frequency_penalty or options.sampling.presence_penalty:
        raise _invalid(
            f"{OPTIONS}: field '{SAMPLING}' is missing, without a frequency and a presence "
            "penalty: openvino_genai adds them to a score that is below 0"
        )


def _check_lengths(settings: GenerationSettings, call: Call) -> None:
    new = call.options.max_new_tokens
    if call.tokens > settings.max_positions:
        raise _invalid(
            f"the prompt's {len(call.ids)} tokens and max_new_tokens {new} are {call.tokens}, and "
            f"the model has {settings.max_positions} positions; ask for fewer"
        )
    if call.blocks > settings.kv_blocks:
        raise _invalid(
            f"the prompt's {len(call.ids)} tokens and max_new_tokens {new} need {call.blocks} "
            f"blocks of the cache of {BLOCK_TOKENS} tokens, and it has {settings.kv_blocks}; ask "
            "for fewer, or raise the model's parameter num_kv_blocks"
        )


def _invalid(reason: str) -> CallRefused:
    return CallRefused(Fault.INVALID_ARG, reason)
