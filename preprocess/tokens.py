"""Texts to token ids with the model's own tokenizer.json; no hub, no transformers."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar
from weakref import WeakValueDictionary

import tokenizers

from preprocess.longest_first import cut_columns
from preprocess.same_tokens import Beginning, is_plain, plain_library
from transformer_serving.contract.endpoint import Limits, Tokens
from transformer_serving.contract.errors import ServingError

# The latest, kept also when nobody has them any more.
_KEPT = 8
# Texts of more are tokenized in several turns, each cut before the next.
_CHARACTERS_AT_ONCE = 1 << 16

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
    """The model's tokenizer for tasks whose rows are each one text or pair.

    `library` is the tokenizers library's own object, which cuts nothing.
    """

    def __init__(self, tokenizer_json: bytes, tokens: Tokens) -> None:
        self.library = library_of(tokenizer_json, tokens)
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
        cut = self._tokens.truncate if truncate is None else truncate
        read = self._begun if cut else self._encoded
        rows: list[Encoded] = []
        for encoding in (one for some in _batches(inputs) for one in read(some)):
            if not cut and len(encoding) > self._tokens.max_length:
                raise too_long(
                    self._tokens.max_length, len(encoding), field, len(rows), len(inputs)
                )
            rows.append(self._row(encoding))
        check_rows(rows, limits, self.known_ids)
        return rows

    def _row(self, encoding: tokenizers.Encoding) -> Encoded:
        if len(encoding) <= self._tokens.max_length:
            return Encoded(encoding.ids, encoding.type_ids)
        return Encoded(*cut_columns(encoding, self._tokens))

    def _begun(self, inputs: Sequence[Input]) -> list[tokenizers.Encoding]:
        """As _encoded, of long texts without a look at what is cut off."""
        begun = [self._beginning.of(given) if type(given) is str else given for given in inputs]
        encodings = self._encoded(begun)
        for at, (given, read) in enumerate(zip(inputs, begun, strict=True)):
            if read is not given and len(encodings[at]) < self._tokens.max_length:
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
        encodings: list[tokenizers.Encoding] = self.library.encode_batch(
            list(texts), add_special_tokens=special
        )
        return encodings


def _batches(inputs: Sequence[Input]) -> Iterator[Sequence[Input]]:
    """The inputs in turns: of many long texts, whose encodings take a hundred bytes a token, only
    the rows are kept.
    """
    begin = characters = 0
    for at, given in enumerate(inputs):
        if characters > _CHARACTERS_AT_ONCE:
            yield inputs[begin:at]
            begin, characters = at, 0
        characters += len(given) if type(given) is str else len(given[0]) + len(given[1])
    yield inputs[begin:]


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
