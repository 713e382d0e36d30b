"""--aux-config of an endpoint, key=value pairs or a whole config.pbtxt, as a ModelConfig.

Tested by tests/engine/test_endpoint_config.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from google.protobuf import json_format  # type: ignore[import-untyped]  # no stubs wanted
from tritonclient.grpc import model_config_pb2

from transformer_serving.contract.error_line import one_line
from transformer_serving.engine.errors import ConfigError
from transformer_serving.engine.model_config import ModelConfig, from_text

_NUMBERS = {"true": True, "false": False}


def parse_auxiliary(auxiliary: Mapping[str, Any] | str | None) -> ModelConfig:
    """The configuration that --aux-config states. Raises ConfigError naming the field.

    Pairs come as ClearML keeps them: nested by dots, list positions as keys '0', '1', strings
    with the quotes of the command line still on.
    """
    if not auxiliary:
        return model_config_pb2.ModelConfig()
    if isinstance(auxiliary, str):
        return from_text(auxiliary, "--aux-config")
    config = model_config_pb2.ModelConfig()
    try:
        json_format.ParseDict(_message(config.DESCRIPTOR, auxiliary, ""), config)
    except json_format.ParseError as error:
        reason = one_line(str(error).split("Available Fields")[0])
        raise ConfigError(f"--aux-config: {reason}") from None
    return config


def _message(descriptor: Any, values: Any, path: str) -> dict[str, Any]:
    if not isinstance(values, Mapping):
        raise ConfigError(f"field '{path}' of --aux-config must have fields of its own")
    message: dict[str, Any] = {}
    for key, value in values.items():
        known = descriptor.fields_by_name.get(str(key))
        place = f"{path}.{key}" if path else str(key)
        if known is None:
            raise ConfigError(f"field '{place}' of --aux-config is unknown to Triton; remove it")
        message[known.name] = _field(known, value, place)
    return message


def _field(descriptor: Any, value: Any, path: str) -> Any:
    kind = descriptor.message_type
    if kind is not None and kind.GetOptions().map_entry:
        if not isinstance(value, Mapping):
            raise ConfigError(f"field '{path}' of --aux-config must have names below it")
        entry = kind.fields_by_name["value"]
        return {str(key): _field(entry, inner, f"{path}.{key}") for key, inner in value.items()}
    if descriptor.is_repeated:
        return [
            _single(descriptor, inner, f"{path}.{index}")
            for index, inner in enumerate(_as_list(value, path))
        ]
    return _single(descriptor, value, path)


def _as_list(value: Any, path: str) -> Sequence[Any]:
    if isinstance(value, Mapping):
        if [str(key) for key in value] != [str(index) for index in range(len(value))]:
            raise ConfigError(f"field '{path}' of --aux-config must be numbered from 0")
        return list(value.values())
    return value if isinstance(value, (list, tuple)) else [value]


def _single(descriptor: Any, value: Any, path: str) -> Any:
    if descriptor.message_type is not None:
        return _message(descriptor.message_type, value, path)
    read = _SCALARS.get(descriptor.cpp_type)
    if isinstance(value, (Mapping, list, tuple)) or read is None:
        raise ConfigError(f"field '{path}' of --aux-config must be a single value")
    try:
        return read(value)
    except (KeyError, ValueError):
        raise ConfigError(
            f"field '{path}' of --aux-config must be {_KINDS[descriptor.cpp_type]}, "
            f"got '{_unquoted(value)}'"
        ) from None


def _unquoted(value: Any) -> str:
    """A shell's leftovers around a string: platform=\\"x\\" and 'platform="x"' both mean x."""
    return str(value).strip().strip("\\\"'")


def _truth(value: Any) -> bool:
    return value if isinstance(value, bool) else _NUMBERS[_unquoted(value).lower()]


def _whole(value: Any) -> int:
    return int(_unquoted(value))


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else _unquoted(value)


# By protobuf's CPPTYPE: int32, int64, uint32, uint64, double, float, bool, enum, string.
_SCALARS: dict[int, Callable[[Any], Any]] = {
    1: _whole,
    2: _whole,
    3: _whole,
    4: _whole,
    5: lambda value: float(_unquoted(value)),
    6: lambda value: float(_unquoted(value)),
    7: _truth,
    8: _text,
    9: _text,
}
_KINDS = {
    **dict.fromkeys((1, 2, 3, 4), "a whole number"),
    **dict.fromkeys((5, 6), "a number"),
    7: "true or false",
    **dict.fromkeys((8, 9), "a name"),
}
