"""The input tensors of an Open Inference Protocol request, from its JSON and the bytes after it.

Errors name a tensor by its place in `inputs`: its name is the caller's.

Tested by tests/preprocess/test_v2.py.
"""

from __future__ import annotations

import base64
import binascii
import math
import struct
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import orjson

from preprocess.request import wrong
from transformer_serving.contract.body_limits import USUAL_ELEMENTS
from transformer_serving.contract.errors import ServingError
from transformer_serving.contract.fields import kind_of

# Of numbers, what numpy calls them in bytes, and what JSON may hold for them.
_NUMBERS: dict[str, tuple[str, frozenset[type]]] = {
    "BOOL": ("?", frozenset({bool})),
    **{f"{sign}INT{8 * size}": (f"<{sign[:1].lower() or 'i'}{size}", frozenset({int}))
       for sign in ("", "U") for size in (1, 2, 4, 8)},
    **{f"FP{8 * size}": (f"<f{size}", frozenset({int, float})) for size in (2, 4, 8)},
}  # fmt: skip
DATATYPES = ("BYTES", *_NUMBERS)
# Longer shapes are none of a text, and their product would take time.
_MAX_DIMENSIONS = 8
# Before each element of a BYTES tensor.
_LENGTH = struct.Struct("<I")
_LENGTH_BYTES = _LENGTH.size
# Of JSON inside of a request's tensors, which the gateway cannot count: as many as it takes by
# default.
_MAX_MARKS = USUAL_ELEMENTS
# Where an error is; written only when there is one.
_WHERE = "inputs[{}]"
_PARAMETERS = f"{_WHERE}.parameters"
_NONE: Mapping[str, Any] = {}


def _from_base64(value: Any) -> str:
    try:
        return base64.b64decode(value, validate=True).decode()
    except (TypeError, ValueError, binascii.Error):
        raise ServingError("invalid_field", "an element is no base64 of UTF-8") from None


def _from_json(value: Any) -> Any:
    if not isinstance(value, str):
        raise ServingError("invalid_field", "an element must be JSON text", got=kind_of(value))
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise ServingError(
            "invalid_field", f"an element cannot be read as JSON (at character {error.pos})"
        ) from None


def _marks(value: Any) -> int:
    """How many lists, objects and values JSON text may hold."""
    if not isinstance(value, str):
        return 0
    return value.count(",") + value.count("[") + value.count("{")


class Content(NamedTuple):
    """What a content type of MLServer makes of an element; of `whole` ones there is just one.

    `marks` counts what reading an element costs.
    """

    read: Callable[[Any], Any] | None = None
    whole: bool = False
    marks: Callable[[Any], int] | None = None


# MLServer takes any other name for its default too.
_DEFAULT = Content()
CONTENTS = {
    "str": _DEFAULT,
    "base64": Content(_from_base64),
    "raw": Content(whole=True),
    "hg_json": Content(_from_json, whole=True, marks=_marks),
    "hg_jsonlist": Content(_from_json, marks=_marks),
}


def read_tensors(
    body: Mapping[str, Any], binary: bytes, most: int, default: Any = None
) -> dict[str, Given]:
    """By name, each with at most `most` elements; `default` is the content type of those that name
    none. Raises ServingError (400, 413).
    """
    rows = body.get("inputs")
    if not isinstance(rows, list) or not rows:
        raise wrong("inputs", "a list of tensors", rows)
    found: dict[str, Given] = {}
    marks = at = 0
    for place, row in enumerate(rows):
        if not isinstance(row, dict):
            raise wrong(_WHERE.format(place), "an object", row)
        name = row.get("name")
        if not isinstance(name, str) or name in found:
            raise wrong(f"{_WHERE}.name".format(place), "a name that no other tensor has", name)
        parameters = parameters_of(row, _PARAMETERS, place)
        kind, size = parameters.get("content_type") or default, parameters.get("binary_data_size")
        content = _DEFAULT if kind is None else _content(kind)
        found[name] = tensor = Given(row, place, content.whole)
        if size is None:
            tensor.read_json(most)
        else:
            at = tensor.read_bytes(binary, at, size, most)
        if content is not _DEFAULT:
            marks = tensor.convert(content, marks)
    if at != len(binary):
        raise ServingError(
            "malformed_body", "there are bytes after those of the last tensor",
            limit=at, got=len(binary),
        )  # fmt: skip
    return found


def parameters_of(row: Mapping[str, Any], where: str, place: int = 0) -> Mapping[str, Any]:
    """The object `parameters`, empty where there is none. Raises ServingError (400), which names
    the field `where`, a pattern for the tensor's `place`.
    """
    value = row.get("parameters")
    if value is None:
        return _NONE
    if not isinstance(value, dict):
        raise wrong(where.format(place), "an object", value)
    if "shared_memory_region" in value:
        raise ServingError(
            "invalid_field", "shared memory is not read; send the tensor itself",
            field=where.format(place),
        )  # fmt: skip
    return value


def _content(name: Any) -> Content:
    return CONTENTS.get(name, _DEFAULT) if isinstance(name, str) else _DEFAULT


class Given:
    """A tensor of `inputs`: its elements in order. `whole` where its one is the value itself."""

    __slots__ = ("_datatype", "_place", "_row", "values", "whole")

    def __init__(self, row: Mapping[str, Any], place: int, whole: bool) -> None:
        self._row = row
        self._place = place
        self._datatype: str = row.get("datatype", "")
        self.whole = whole
        self.values: list[Any] = []
        if self._datatype not in DATATYPES:
            raise ServingError(
                "invalid_field", f"a tensor's datatype must be one of {', '.join(DATATYPES)}",
                field=f"{self._where}.datatype", got=kind_of(self._datatype),
            )  # fmt: skip

    @property
    def _where(self) -> str:
        return _WHERE.format(self._place)

    def read_json(self, most: int) -> None:
        values = self._row.get("data")
        if not isinstance(values, list) or list in set(map(type, values)):
            values = self._flat(values)
        # MLServer's own hg_json writes the length of the text where the shape belongs.
        count = 1 if self.whole else self._count()
        if count is not None and len(values) != count and not self._says_one(len(values)):
            raise self._mismatch(count, len(values))
        if len(values) > most:
            raise self._too_many(most, len(values))
        if self._datatype != "BYTES":
            _, kinds = _NUMBERS[self._datatype]
            if not kinds.issuperset(map(type, values)):
                raise wrong(f"{self._where}.data", f"of datatype {self._datatype}", values)
        self.values = values

    def read_bytes(self, binary: bytes, at: int, size: Any, most: int) -> int:
        """`size` bytes at `at`. Where they end."""
        if type(size) is not int or not 0 <= size <= len(binary) - at:
            raise ServingError(
                "malformed_body", "a tensor's 'binary_data_size' is not in the body",
                field=self._where, limit=len(binary) - at,
                got=size if type(size) is int else kind_of(size),
            )  # fmt: skip
        count = self._count()
        if count is None:
            raise wrong(f"{self._where}.shape", "known where the data is binary", None)
        if count > most:
            raise self._too_many(most, count)
        if "data" in self._row:
            raise ServingError(
                "invalid_field", "a tensor has data both in the JSON and after it",
                field=self._where,
            )  # fmt: skip
        end = at + size
        if self._datatype == "BYTES":
            self.values = self._texts(binary[at:end], count)
        else:
            self.values = self._numbers(binary[at:end], count)
        return end

    def convert(self, content: Content, marks: int) -> int:
        """What the content type makes of the elements; with those of JSON here, the `marks`."""
        if self.whole and len(self.values) != 1:
            raise self._mismatch(1, len(self.values))
        if content.read is not None and self._datatype == "BYTES":
            if content.marks is not None:
                marks += sum(map(content.marks, self.values))
                self._check_marks(marks)
            self.values = list(map(content.read, self.values))
        return marks

    def open(self) -> None:
        """Where the one element of JSON is a list: its elements."""
        if isinstance(self.values[0], list):
            self.values, self.whole = self.values[0], False

    def _numbers(self, raw: bytes, count: int) -> list[Any]:
        name, _ = _NUMBERS[self._datatype]
        size = count * np.dtype(name).itemsize
        if len(raw) != size:
            raise self._cut(size, len(raw))
        values: list[Any] = np.frombuffer(raw, name).tolist()
        return values

    def _texts(self, raw: bytes, count: int) -> list[Any]:
        """Each element is its length, little-endian, and so many bytes."""
        texts = []
        at, end = 0, len(raw)
        for _ in range(count):
            start = at + _LENGTH_BYTES
            if start > end:
                raise self._cut(start, end)
            at = start + _LENGTH.unpack_from(raw, at)[0]
            if at > end:
                raise self._cut(at, end)
            try:
                texts.append(raw[start:at].decode())
            except UnicodeDecodeError:
                raise ServingError(
                    "invalid_field", "an element of a BYTES tensor is not UTF-8", field=self._where
                ) from None
        if at != end:
            raise self._cut(at, end)
        return texts

    def _check_marks(self, marks: int) -> None:
        if marks > _MAX_MARKS:
            raise ServingError(
                "too_large", "the JSON in tensors has too many lists, objects and values; send "
                "them in several requests", field=self._where, limit=_MAX_MARKS, got=marks,
            )  # fmt: skip

    def _flat(self, data: Any) -> list[Any]:
        """JSON data, which may be nested as the shape is."""
        if not isinstance(data, list):
            raise wrong(f"{self._where}.data", "a list", data)
        values: list[Any] = data
        for _ in range(_MAX_DIMENSIONS):
            kinds = set(map(type, values))
            if list not in kinds:
                return values
            if len(kinds) > 1:
                break
            values = list(chain.from_iterable(values))
        raise wrong(f"{self._where}.data", "nested as its shape is, or flat", values)

    def _count(self) -> int | None:
        """Elements by the shape, None where a dimension of it is -1: any."""
        shape = self._row.get("shape")
        if not isinstance(shape, list) or len(shape) > _MAX_DIMENSIONS:
            raise wrong(f"{self._where}.shape", f"at most {_MAX_DIMENSIONS} sizes", shape)
        for size in shape:
            if type(size) is not int or size < -1:
                raise wrong(f"{self._where}.shape", "a list of sizes", shape)
        return None if -1 in shape else math.prod(shape)

    def _says_one(self, got: int) -> bool:
        """Whether its shape is the one that MLServer's documentation writes beside many texts."""
        shape = self._row.get("shape")
        return got > 1 and self._datatype == "BYTES" and not self.whole and shape in ([1], [1, 1])

    def _too_many(self, most: int, count: int) -> ServingError:
        return ServingError(
            "too_large", "a tensor has too many elements; send them in several requests",
            field=self._where, limit=most, got=min(count, 2**53),
        )  # fmt: skip

    def _mismatch(self, wanted: int, got: int) -> ServingError:
        return ServingError(
            "invalid_field", "a tensor has not as many elements as its shape says",
            field=f"{self._where}.data", limit=min(wanted, 2**53), got=got,
        )  # fmt: skip

    def _cut(self, wanted: int, got: int) -> ServingError:
        return ServingError(
            "malformed_body", "a tensor's bytes are not as many as its shape and lengths say",
            field=self._where, limit=wanted, got=got,
        )  # fmt: skip
