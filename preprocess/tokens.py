"""Texts to token ids with the model's own tokenizer.json; no hub, no transformers."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

import tokenizers

from contract.endpoint import Limits, Tokens
from contract.errors import ServingError
from preprocess.request import Request

# Above this many characters the loop would stand still for about a millisecond.
OFF_LOOP_CHARACTERS = 4096
_KEPT_TOKENIZERS = 8

Result = TypeVar("Result")

_pool = ThreadPoolExecutor(max_workers=2, thread_name_prefix="tokenize")
_shared: OrderedDict[str, Tokenizer] = OrderedDict()


@dataclass(frozen=True)
class Encoded:
    """One row of an engine call: token ids, special tokens included, not yet padded.

    `extras` holds the values of the head's extra inputs by role.
    """

    ids: list[int]
    type_ids: list[int]
    extras: Mapping[str, Sequence[int]] = field(default_factory=dict)


class Tokenizer:
    """A tokenizer whose truncation is set once: changing it per call is not thread-safe."""

    def __init__(self, tokenizer_json: bytes, tokens: Tokens) -> None:
        self._tokenizer = tokenizers.Tokenizer.from_buffer(tokenizer_json)
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(tokens.max_length)
        self._tokens = tokens

    def encode(self, request: Request, limits: Limits) -> list[Encoded]:
        """Token ids of each text in order.

        Raises ServingError `too_large` when a text is longer than the model takes and truncation
        was not asked for, or when all texts together are too many tokens.
        """
        inputs = (
            request.texts
            if request.pairs is None
            else list(zip(request.texts, request.pairs, strict=True))
        )
        encodings = self._tokenizer.encode_batch_fast(list(inputs))
        truncate = self._tokens.truncate if request.truncate is None else request.truncate
        if not truncate:
            self._refuse_long(encodings, request.pairs is not None)
        total = sum(len(encoding.ids) for encoding in encodings)
        if total > limits.max_tokens:
            raise ServingError(
                "too_large",
                "the texts have too many tokens together; send them in several requests",
                limit=limits.max_tokens,
                got=total,
            )
        return [Encoded(encoding.ids, encoding.type_ids) for encoding in encodings]

    def _refuse_long(self, encodings: list[tokenizers.Encoding], pair: bool) -> None:
        special = self._tokenizer.num_special_tokens_to_add(pair)
        for encoding in encodings:
            if encoding.overflowing:
                cut = sum(len(window.ids) - special for window in encoding.overflowing)
                raise ServingError(
                    "too_large",
                    "a text has more tokens than the model takes; shorten it or send truncate",
                    limit=self._tokens.max_length,
                    got=len(encoding.ids) + cut,
                )


async def off_loop(characters: int, work: Callable[[], Result]) -> Result:
    """`work()`, in a thread when its texts are long."""
    if characters <= OFF_LOOP_CHARACTERS:
        return work()
    return await asyncio.get_running_loop().run_in_executor(_pool, work)


def shared_tokenizer(tokenizer_json: bytes, tokens: Tokens) -> Tokenizer:
    """The worker's one tokenizer of this content.

    The host drops and rebuilds every Preprocess at any configuration change; without this each
    rebuild would parse tokenizer.json again inside the event loop.
    """
    key = f"{hashlib.sha256(tokenizer_json).hexdigest()}:{tokens}"
    if key not in _shared:
        _shared[key] = Tokenizer(tokenizer_json, tokens)
    _shared.move_to_end(key)
    while len(_shared) > _KEPT_TOKENIZERS:
        _shared.popitem(last=False)
    return _shared[key]
