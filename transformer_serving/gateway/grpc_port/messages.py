"""From the messages of gRPC to bodies of the Open Inference Protocol's HTTP, and back.

Tested by tests/gateway/test_grpc.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson
from google.protobuf import json_format  # type: ignore[import-untyped]  # no stubs wanted
from tritonclient.grpc import service_pb2 as messages

from transformer_serving.contract.body_limits import MAX_TIMEOUT_MS
from transformer_serving.contract.errors import ServingError
from transformer_serving.gateway.settings import MAX_BODY_ELEMENTS

HEADER = "inference-header-content-length"
_LENGTH_BYTES = 4
# Where a message has what is not raw.
_CONTENTS = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
# A tensor and an output without anything in them, counted as HTTP counts the JSON that they become
# (body/json_body.py). In a message they are two bytes.
_TENSOR_ELEMENTS, _OUTPUT_ELEMENTS = 7, 4
# No more are in a byte of any message.
_ELEMENTS_A_BYTE = 4


# Before the bytes of `fp32_contents`, which are as a message carries them.
_PACKED = 2
_FP32_KEY = messages.InferTensorContents.DESCRIPTOR.fields_by_name["fp32_contents"].number << 3


def check_elements(request: Any, size: int, most: int) -> None:
    """Refuse a ModelInferRequest of `size` bytes that would become too many objects.

    Raises ServingError (413). What is small enough is cleared by its size. Looking at a tensor
    costs as much as some elements, so their number is looked at first.
    """
    if size * _ELEMENTS_A_BYTE <= most:
        return
    got = (
        _TENSOR_ELEMENTS * len(request.inputs)
        + _OUTPUT_ELEMENTS * len(request.outputs)
        + len(request.parameters)
    )
    if got <= most:
        got += sum(len(output.parameters) for output in request.outputs)
        got += sum(
            len(tensor.shape) + len(tensor.parameters) + len(_values(tensor))
            for tensor in request.inputs
        )
    if got > most:
        raise ServingError(
            "too_large",
            "the message has too many tensors, parameters and values; send several requests, or "
            f"raise {MAX_BODY_ELEMENTS.name}",
            limit=most, got=got,
        )  # fmt: skip


def body_of(request: Any, seconds_left: float | None) -> tuple[bytes, bytes]:
    """The JSON of a ModelInferRequest, whose elements were checked, and the bytes after it.

    Raises ServingError (400).
    """
    is_raw = bool(request.raw_input_contents)
    if is_raw and len(request.raw_input_contents) != len(request.inputs):
        raise ServingError(
            "malformed_body", "there must be as many 'raw_input_contents' as 'inputs'",
            limit=len(request.inputs), got=len(request.raw_input_contents),
        )  # fmt: skip
    parameters = _told(request.parameters)
    if is_raw or request.outputs:
        # Whether they are raw to the caller or not: to read numbers from JSON takes long.
        parameters["binary_data_output"] = True
    if seconds_left is not None:
        left_ms = min(max(1, int(1000 * seconds_left)), MAX_TIMEOUT_MS)
        named_ms = parameters.get("timeout_ms", left_ms)
        # What is no number stays, to be refused.
        parameters["timeout_ms"] = min(named_ms, left_ms) if type(named_ms) is int else named_ms
    raws = [_raw(tensor) for tensor in request.inputs]
    if is_raw:
        raws = list(request.raw_input_contents)
    inputs = [_input(row, raw) for row, raw in zip(request.inputs, raws, strict=True)]
    body: dict[str, Any] = {"inputs": inputs, "parameters": parameters}
    if request.id:
        body["id"] = request.id
    if request.outputs:
        body["outputs"] = [
            {"name": output.name, "parameters": _told(output.parameters) | {"binary_data": True}}
            for output in request.outputs
        ]
    return orjson.dumps(body), b"".join(raw for raw in raws if raw is not None)


def is_answered_raw(request: Any) -> bool:
    """As its tensors came, so those of the answer go, unless the caller says otherwise."""
    is_raw = bool(request.raw_input_contents)
    is_raw = is_raw or _told(request.parameters).get("binary_data_output") is True
    for output in request.outputs:
        is_raw = bool(_told(output.parameters).get("binary_data", is_raw))
    return is_raw


def _told(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: getattr(value, value.WhichOneof("parameter_choice") or "string_param")
        for name, value in parameters.items()
    }


def _raw(tensor: Any) -> bytes | None:
    """Its texts as bytes; None of numbers, which JSON can carry."""
    if tensor.datatype != "BYTES":
        return None
    texts = _values(tensor)
    return b"".join(len(text).to_bytes(_LENGTH_BYTES, "little") + text for text in texts)


def _input(tensor: Any, raw: bytes | None) -> dict[str, Any]:
    row = {"name": tensor.name, "shape": list(tensor.shape), "datatype": tensor.datatype}
    told = _told(tensor.parameters)
    if raw is None:
        row["data"] = list(_values(tensor))
    else:
        told["binary_data_size"] = len(raw)
    return {**row, "parameters": told}


def _values(tensor: Any) -> Sequence[Any]:
    """Those that are in the message itself."""
    field = _CONTENTS.get(tensor.datatype)
    return getattr(tensor.contents, field) if field else ()


def infer_response(body: bytes, headers: Mapping[str, str], *, is_raw: bool) -> Any:
    """The ModelInferResponse of an answer, its tensor's bytes `is_raw` or in the tensor's contents.

    Without any its JSON has texts, as who names no output is answered.
    """
    size = int(headers.get(HEADER, len(body)))
    answer = orjson.loads(body[:size])
    (output,) = answer["outputs"]
    told = output.get("parameters", {})
    response = messages.ModelInferResponse(
        model_name=answer["model_name"],
        model_version=answer.get("model_version", ""),
        id=answer.get("id", ""),
    )
    tensor = response.outputs.add(
        name=output["name"], datatype=output["datatype"], shape=output["shape"]
    )
    if "content_type" in told:
        tensor.parameters["content_type"].string_param = told["content_type"]
    if "data" in output:
        tensor.contents.bytes_contents.extend(row.encode() for row in output["data"])
    elif is_raw:
        response.raw_output_contents.append(body[size:])
    elif output["datatype"] == "BYTES":
        tensor.contents.bytes_contents.extend(_texts(body, size))
    else:
        # Number by number they would hold the loop up for hundreds of times as long.
        key = bytes([_FP32_KEY | _PACKED]) + _varint(len(body) - size)
        tensor.contents.MergeFromString(b"".join((key, memoryview(body)[size:])))
    return response


def _texts(body: bytes, at: int) -> Iterator[bytes]:
    """Those of a tensor of BYTES, each behind its length."""
    while at < len(body):
        begin = at + _LENGTH_BYTES
        at = begin + int.from_bytes(body[at:begin], "little")
        yield body[begin:at]


def _varint(number: int) -> bytes:
    """As a message writes a length: seven bits a byte, the least first."""
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def model_config(told: Mapping[str, Any]) -> Any:
    """The ModelConfigResponse of what HTTP says."""
    response = messages.ModelConfigResponse()
    return json_format.ParseDict({"config": told}, response)


def model_metadata(told: Mapping[str, Any]) -> Any:
    """The ModelMetadataResponse of what HTTP says."""
    tensors = {
        side: [messages.ModelMetadataResponse.TensorMetadata(**row) for row in told[side]]
        for side in ("inputs", "outputs")
    }
    return messages.ModelMetadataResponse(
        name=told["name"], versions=told["versions"], platform=told["platform"], **tensors
    )
