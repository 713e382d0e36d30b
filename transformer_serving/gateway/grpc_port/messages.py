"""From the messages of gRPC to bodies of the Open Inference Protocol's HTTP, and back.

Tested by tests/gateway/test_grpc.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from tritonclient.grpc import service_pb2 as messages

from transformer_serving.contract.errors import ServingError

HEADER = "inference-header-content-length"
_MAX_TIMEOUT_MS = 86_400_000
_LENGTH_BYTES = 4
# Where a message has numbers that are not raw.
_CONTENTS = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
}


def body_of(request: Any, seconds_left: float | None, most: int) -> tuple[bytes, bytes]:
    """The JSON of a ModelInferRequest and the bytes after it; `most` numbers a tensor.

    Raises ServingError (400, 413).
    """
    is_raw = bool(request.raw_input_contents)
    if is_raw and len(request.raw_input_contents) != len(request.inputs):
        raise ServingError(
            "malformed_body", "there must be as many 'raw_input_contents' as 'inputs'",
            limit=len(request.inputs), got=len(request.raw_input_contents),
        )  # fmt: skip
    parameters = _values(request.parameters)
    if is_raw:
        # As the tensors came, so they go.
        parameters["binary_data_output"] = True
    if seconds_left is not None:
        left_ms = min(max(1, int(1000 * seconds_left)), _MAX_TIMEOUT_MS)
        named_ms = parameters.get("timeout_ms", left_ms)
        # What is no number stays, to be refused.
        parameters["timeout_ms"] = min(named_ms, left_ms) if type(named_ms) is int else named_ms
    raws = [_raw(tensor) for tensor in request.inputs]
    if is_raw:
        raws = list(request.raw_input_contents)
    inputs = [_input(row, raw, most) for row, raw in zip(request.inputs, raws, strict=True)]
    body: dict[str, Any] = {"inputs": inputs, "parameters": parameters}
    if request.id:
        body["id"] = request.id
    if request.outputs:
        body["outputs"] = [
            {"name": output.name, "parameters": _values(output.parameters)}
            for output in request.outputs
        ]
    return orjson.dumps(body), b"".join(raw for raw in raws if raw is not None)


def _values(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: getattr(value, value.WhichOneof("parameter_choice") or "string_param")
        for name, value in parameters.items()
    }


def _raw(tensor: Any) -> bytes | None:
    """Its texts as bytes; None of numbers, which JSON can carry."""
    if tensor.datatype != "BYTES":
        return None
    texts = tensor.contents.bytes_contents
    return b"".join(len(text).to_bytes(_LENGTH_BYTES, "little") + text for text in texts)


def _input(tensor: Any, raw: bytes | None, most: int) -> dict[str, Any]:
    row = {"name": tensor.name, "shape": list(tensor.shape), "datatype": tensor.datatype}
    told = _values(tensor.parameters)
    if raw is None:
        row["data"] = _numbers(tensor, most)
    else:
        told["binary_data_size"] = len(raw)
    return {**row, "parameters": told}


def _numbers(tensor: Any, most: int) -> list[Any]:
    field = _CONTENTS.get(tensor.datatype)
    values = getattr(tensor.contents, field) if field else ()
    if len(values) > most:
        raise ServingError(
            "too_large", "a tensor has too many elements; send them in several requests",
            limit=most, got=len(values),
        )  # fmt: skip
    return list(values)


def infer_response(body: bytes, headers: Mapping[str, str]) -> Any:
    """The ModelInferResponse of an answer: raw where its body is binary."""
    size = headers.get(HEADER)
    answer = orjson.loads(body if size is None else body[: int(size)])
    (output,) = answer["outputs"]
    told = output.get("parameters", {})
    tensor = messages.ModelInferResponse.InferOutputTensor(
        name=output["name"], datatype=output["datatype"], shape=output["shape"]
    )
    if "content_type" in told:
        tensor.parameters["content_type"].string_param = told["content_type"]
    response = messages.ModelInferResponse(
        model_name=answer["model_name"],
        model_version=answer.get("model_version", ""),
        id=answer.get("id", ""),
    )
    if size is not None:
        response.raw_output_contents.append(body[int(size) :])
    elif output["datatype"] == "BYTES":
        tensor.contents.bytes_contents.extend(row.encode() for row in output["data"])
    else:
        tensor.contents.fp32_contents.extend(output["data"])
    response.outputs.append(tensor)
    return response


def model_metadata(told: Mapping[str, Any]) -> Any:
    """The ModelMetadataResponse of what HTTP says."""
    tensors = {
        side: [messages.ModelMetadataResponse.TensorMetadata(**row) for row in told[side]]
        for side in ("inputs", "outputs")
    }
    return messages.ModelMetadataResponse(
        name=told["name"], versions=told["versions"], platform=told["platform"], **tensors
    )
