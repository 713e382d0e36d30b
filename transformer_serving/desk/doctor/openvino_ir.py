"""What an OpenVINO model's .xml says, and whether the .bin beside it is the whole of its weights.

Read as a stream without building a tree. Which versions are read was tried with OpenVINO 2026.4.1:
10 and 11 load; 5, 7, 9, 12 and 99 do not.

Tested by tests/doctor/test_engine_file.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.parsers import expat

from transformer_serving.contract.errors import ContractError

READ_VERSIONS = (10, 11)
# Weights lie in the .bin; an .xml of this size is no model of ours.
_MAX_BYTES = 256 << 20
_BLOCK = 1 << 18
_MAX_TEXT = 120
_AGAIN = "copy it again or convert again"


@dataclass
class OpenvinoModel:
    """`written_by` is the OpenVINO of the file's own words; `weights` is what the .bin must have,
    in bytes, 0 for a model without weights."""

    version: int | None = None
    written_by: str = ""
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    weights: int = 0


class _NoModel(Exception):
    """The document is XML, and no OpenVINO model."""


def read_openvino_model(path: Path) -> OpenvinoModel:
    """Raises ContractError that says what is wrong with the .xml or with its .bin."""
    if path.stat().st_size > _MAX_BYTES:
        raise ContractError(
            f"file '{path.name}' has {path.stat().st_size} bytes, a model's .xml has at most "
            f"{_MAX_BYTES}: it is no OpenVINO model; convert again"
        )
    reader = _Reader()
    try:
        with path.open("rb") as file:
            reader.read(file)
    except _NoModel as error:
        raise ContractError(
            f"file '{path.name}' is XML but no OpenVINO model: {error}; convert again"
        ) from error
    except (LookupError, ValueError) as error:
        raise ContractError(
            f"file '{path.name}' is damaged: it names an encoding that XML does not have; {_AGAIN}"
        ) from error
    except expat.ExpatError as error:
        cut = error.code in _CUT
        what = "is cut short: its XML ends early" if cut else "is damaged: it is no XML"
        raise ContractError(
            f"file '{path.name}' {what}, at line {error.lineno}; {_AGAIN}"
        ) from error
    _check_version(reader.model, path)
    _check_weights(reader.model, path)
    return reader.model


_CUT = {
    expat.errors.codes[name]
    for name in (
        expat.errors.XML_ERROR_NO_ELEMENTS,
        expat.errors.XML_ERROR_UNCLOSED_TOKEN,
        expat.errors.XML_ERROR_UNCLOSED_CDATA_SECTION,
        expat.errors.XML_ERROR_PARTIAL_CHAR,
    )
}


def _check_version(model: OpenvinoModel, path: Path) -> None:
    if model.version not in READ_VERSIONS:
        stated = "no version" if model.version is None else f"IR version {model.version}"
        raise ContractError(
            f"file '{path.name}' states {stated}; OpenVINO reads "
            f"{' and '.join(map(str, READ_VERSIONS))}; convert again"
        )


def _check_weights(model: OpenvinoModel, path: Path) -> None:
    weights = path.with_suffix(".bin")
    if not model.weights:
        return
    if not weights.is_file():
        raise ContractError(
            f"file '{weights.name}' is missing: the weights of '{path.name}' lie in it, "
            f"{model.weights} bytes; copy it beside the .xml or convert again"
        )
    size = weights.stat().st_size
    if size < model.weights:
        raise ContractError(
            f"file '{weights.name}' is cut short or another model's: {size} bytes of "
            f"{model.weights} that '{path.name}' reads; {_AGAIN}"
        )


class _Reader:
    """The parser's callbacks; entities, which could grow without end, are refused."""

    def __init__(self) -> None:
        self.model = OpenvinoModel()
        self._path: list[str] = []
        self._layer: dict[str, str] = {}

    def read(self, file: Any) -> None:
        parser = expat.ParserCreate()
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.StartDoctypeDeclHandler = self._doctype
        while block := file.read(_BLOCK):
            parser.Parse(block, False)
        parser.Parse(b"", True)

    def _doctype(self, *_: object) -> None:
        raise _NoModel("it has a document type")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if not self._path and name != "net":
            raise _NoModel(f"it starts with <{_line(name)}>, a model with <net>")
        self._path.append(name)
        if len(self._path) == 1:
            self.model.version = _number(attributes.get("version"))
        elif self._path == ["net", "layers", "layer"]:
            self._new_layer(attributes)
        elif self._path == ["net", "layers", "layer", "data"]:
            self._data(attributes)
        elif self._path == ["net", "rt_info", "Runtime_version"]:
            self.model.written_by = _line(attributes.get("value", ""))

    def _end(self, _name: str) -> None:
        self._path.pop()

    def _new_layer(self, layer: dict[str, str]) -> None:
        self._layer = layer
        if layer.get("type") == "Result":
            name = layer.get("name", "")
            self.model.outputs.append(_line(name.removesuffix("/sink_port_0")))

    def _data(self, data: dict[str, str]) -> None:
        if self._layer.get("type") == "Parameter":
            axes = data.get("shape", "?").replace(" ", "")
            kind = data.get("element_type", "?").upper()
            self.model.inputs.append(_line(f"{self._layer.get('name', '')} {kind}[{axes}]"))
        offset, size = _number(data.get("offset")), _number(data.get("size"))
        if self._layer.get("type") == "Const" and offset is not None and size is not None:
            self.model.weights = max(self.model.weights, offset + size)


def _number(text: str | None) -> int | None:
    """A number of at most 15 digits."""
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 16 else None


def _line(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text[:_MAX_TEXT])
