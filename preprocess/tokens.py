"""Texts to token ids with the model's own tokenizer.json; no hub, no transformers."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar
from weakref import WeakValueDictionary

import tokenizers

from preprocess.same_tokens import Beginning, is_plain, plain_library
from transformer_serving.contract.endpoint import Limits, Tokens
from transformer_serving.contract.errors import ServingError

# The latest, kept also when nobody has them any more.
_KEPT = 8
# Texts of more for each token that the model takes are likely too long for it.
_CHARACTERS_A_TOKEN = 4

Result = TypeVar("Result")
# One text, or a text and its pair.
Input = str | tuple[str, str]


class Encoded(NamedTuple):
    """One row of an engine call: token ids, special tokens included, not yet padded.

    `extras` holds the values of the head's extra inputs by role.
    """

    ids: list[int]
    type_ids: list[int]
    extras: Mapping[str, Sequence[int]] = MappingProxyType({})


def library_of(tokenizer_json: bytes, tokens: Tokens) -> Any:
    """The tokenizers library's own object, which neither pads nor cuts."""
    library = tokenizers.Tokenizer.from_buffer(tokenizer_json)
    library.no_padding()
    library.no_truncation()
    # tokenizer.json does not hold it.
    library.encode_special_tokens = tokens.split_special_tokens
    return library


class Tokenizer:
    """A tokenizer whose truncation is set once: changing it per call is not thread-safe.

    `library` is the tokenizers library's own object, for looking up and decoding.
    """

    def __init__(self, tokenizer_json: bytes, tokens: Tokens) -> None:
        self.library = library_of(tokenizer_json, tokens)
        self.library.enable_truncation(tokens.max_length, direction=tokens.truncation_side)
        self._plain = plain_library(self.library, tokens)
        self._beginning = Beginning(self.library, tokens)
        self.known_ids = tokens.known_ids
        self._tokens = tokens

    def encode(
        self,
        inputs: Sequence[Input],
        truncate: bool | None,
        limits: Limits,
        field: str | None = None,
    ) -> list[Encoded]:
        """Token ids of each text or pair in order; `field` is the one that all of them are of.

        Raises ServingError `too_large` when a text is longer than the model takes and truncation
        was not asked for, or when all texts together are too many tokens; `impossible` when a text
        has no token at all, or one that the model does not know.
        """
        if self._tokens.truncate if truncate is None else truncate:
            encodings = self._cut(inputs)
        else:
            encodings = self._encoded(inputs)
            for at, (given, encoding) in enumerate(zip(inputs, encodings, strict=True)):
                if windows := encoding.overflowing:
                    got = self._length(given, encoding, windows)
                    raise too_long(self._tokens.max_length, got, field, at, len(inputs))
        rows = [Encoded(encoding.ids, encoding.type_ids) for encoding in encodings]
        check_rows(rows, limits, self.known_ids)
        return rows

    def _cut(self, inputs: Sequence[Input]) -> list[tokenizers.Encoding]:
        """As _encoded, of long texts without a look at what is cut off."""
        begun = [self._beginning.of(given) if type(given) is str else given for given in inputs]
        encodings = self._encoded(begun)
        for at, (given, read) in enumerate(zip(inputs, begun, strict=True)):
            if read is not given and not encodings[at].overflowing:
                # It has longer words than most.
                [encodings[at]] = self._encoded([given])
        return encodings

    def _encoded(self, inputs: Sequence[Input]) -> list[tokenizers.Encoding]:
        library = self.library
        if self._plain is not None and all(
            is_plain(given) if type(given) is str else all(map(is_plain, given)) for given in inputs
        ):
            library = self._plain
        encodings: list[tokenizers.Encoding] = library.encode_batch_fast(list(inputs))
        return encodings

    def whole(self, texts: Sequence[str], *, special: bool) -> list[tokenizers.Encoding]:
        """Each text uncut, with special tokens around it or without."""
        most = _CHARACTERS_A_TOKEN * self._tokens.max_length
        library = self._uncut if any(len(text) > most for text in texts) else self.library
        encodings: list[tokenizers.Encoding] = library.encode_batch(
            list(texts), add_special_tokens=special
        )
        if any(encoding.overflowing for encoding in encodings):
            # What was cut off cannot be put together again: offsets are trimmed in each piece.
            encodings = self._uncut.encode_batch(list(texts), add_special_tokens=special)
        return encodings

    @cached_property
    def _uncut(self) -> Any:
        """The library's tokenizer without truncation, made when the first such text comes."""
        return library_of(self.library.to_str().encode(), self._tokens)

    def _length(
        self,
        given: Input,
        encoding: tokenizers.Encoding,
        windows: Sequence[tokenizers.Encoding],
    ) -> int:
        """Tokens of a text or pair before it was cut, whose first window and others these are."""
        special: int = self.library.num_special_tokens_to_add(False)
        if isinstance(given, str):
            return special + sum(len(window) - special for window in (encoding, *windows))
        size: int = self.library.num_special_tokens_to_add(True)
        # The windows of a pair are those of one text with those of the other.
        for one in self._encoded(given):
            size += sum(len(window) - special for window in (one, *one.overflowing))
        return size


def too_long(
    limit: int, got: int, field: str | None, at: int, count: int, *, strides: bool = False
) -> ServingError:
    """The refusal of a text that does not fit into the model, the one `at` of `count` of a field
    where that is known; `strides` that the task reads one in windows where it is asked to."""
    which = "a text" if field is None or count == 1 else f"text {at + 1} of {count}"
    more = ", or the parameter stride, which reads it to its end" if strides else ""
    return ServingError(
        "too_large",
        f"{which} has more tokens than the model takes; shorten it or send truncate: true{more}",
        field=field,
        limit=limit,
        got=got,
    )


def check_rows(rows: Sequence[Encoded], limits: Limits, known_ids: int | None) -> None:
    """Raises ServingError `too_large` for too many tokens, `impossible` for a row of none or with
    one that the model does not know."""
    sizes = [len(row.ids) for row in rows]
    check_total(sum(sizes), limits)
    if 0 in sizes:
        raise _empty()
    if known_ids is not None:
        for row in rows:
            check_ids(row.ids, known_ids)


def check_ids(ids: Sequence[int], known_ids: int | None, field: str | None = None) -> None:
    """Raises ServingError `impossible` where one of them is beyond the model's rows: engines fail
    there, or take another token's."""
    if known_ids is not None and max(ids) >= known_ids:
        raise ServingError(
            "impossible",
            "a text has a token that the tokenizer has and the model does not know; leave it out",
            field=field,
            limit=known_ids,
        )


def check_total(total: int, limits: Limits, field: str | None = None) -> None:
    """Raises ServingError `too_large` for too many tokens of all texts together."""
    if total > limits.max_tokens:
        raise ServingError(
            "too_large",
            "the texts have too many tokens together; send them in several requests",
            field=field,
            limit=limits.max_tokens,
            got=total,
        )


class TokenTotal:
    """The tokens of a request whose rows are made one after the other.

    Of such a request each row is small, and all together may be more than the worker has memory
    for: what no request may hold is refused before it is made.
    """

    def __init__(self, limits: Limits, known_ids: int | None = None) -> None:
        self.limits = limits
        self._known_ids = known_ids
        self.tokens = 0

    def check(self, more: int) -> None:
        """Raises ServingError `too_large` where so many more would be too many."""
        check_total(self.tokens + more, self.limits)

    def add(self, row: Encoded) -> Encoded:
        """The row, counted. Raises as check_rows does."""
        if not row.ids:
            raise _empty()
        check_ids(row.ids, self._known_ids)
        self.check(len(row.ids))
        self.tokens += len(row.ids)
        return row


def _empty() -> ServingError:
    return ServingError("impossible", "a text has no tokens, so the model has nothing to read")


_shared: WeakValueDictionary[str, Any] = WeakValueDictionary()
_latest: OrderedDict[str, Any] = OrderedDict()


def shared_tokenizer(
    kind: Callable[[bytes, Tokens], Result], tokenizer_json: bytes, tokens: Tokens
) -> Result:
    """The worker's one tokenizer of this kind and content.

    The host drops and rebuilds every Preprocess at any configuration change; without this each
    rebuild would parse tokenizer.json again inside the event loop. What serves is held by the
    handover until its rebuild takes over, however many there are; some are kept besides.
    """
    key = f"{kind}:{hashlib.sha256(tokenizer_json).hexdigest()}:{tokens}"
    tokenizer: Result | None = _shared.get(key)
    if tokenizer is None:
        tokenizer = _shared[key] = kind(tokenizer_json, tokens)
    _latest[key] = tokenizer
    _latest.move_to_end(key)
    while len(_latest) > _KEPT:
        _latest.popitem(last=False)
    return tokenizer
