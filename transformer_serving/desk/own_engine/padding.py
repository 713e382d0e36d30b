"""Where the calls of an engine that was brought may be padded: found out by running it.

Tested by tests/own_engine/test_writer.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from transformer_serving.contract.endpoint import Endpoint
from transformer_serving.desk.builders.sample_rows import of_length
from transformer_serving.desk.failure import ConversionRefused
from transformer_serving.desk.parity.local_endpoint import LocalEndpoint

if TYPE_CHECKING:
    from preprocess.rows import Row
    from preprocess.tokens import Encoded
    from transformer_serving.desk.builders.files import Call

# How much of the largest number padding may change; dynamic int8 takes its ranges over it too.
_ALLOWED = {"int8": 0.2}
_ALLOWED_ELSE = 0.02


def side_of_engine(
    endpoint: Endpoint, tokenizer_json: bytes, call: Call, body: Any, precision: str
) -> str:
    """The side on which padding does not change what the engine gives for `body`.

    The right is tried first. Raises ConversionRefused where padding changes the
    result on either side: texts of different lengths could then not share a call. Raises
    ServingError where the endpoint would refuse the body.
    """
    encoded = LocalEndpoint(endpoint, tokenizer_json, call).work(body).encoded
    found = []
    for side in ("right", "left"):
        found.append(_change(endpoint, side, tokenizer_json, call, encoded))
        if found[-1] <= _ALLOWED.get(precision, _ALLOWED_ELSE):
            return side
    raise ConversionRefused(
        f"padding changes what the engine gives by {min(found):.0%} on either side; it "
        "needs an input attention_mask that it heeds; export it again with one, use "
        "'transformer-serving convert', or say --precision int8 if it is quantized"
    )


def _change(
    endpoint: Endpoint, side: str, tokenizer_json: bytes, call: Call, encoded: Sequence[Encoded]
) -> float:
    """The largest change of a number by padding, as a part of the largest number."""
    largest = 0.0
    for one in encoded:
        text, roomier = _with_room(one, endpoint.tokens.buckets)
        rows = []
        for length in (len(text.ids), roomier):
            tokens = replace(
                endpoint.tokens, max_length=length, buckets=(length,), padding_side=side
            )
            local = LocalEndpoint(replace(endpoint, tokens=tokens), tokenizer_json, call)
            rows += local.run([text])
        largest = max(largest, _distance(*rows))
    return largest


def _with_room(text: Encoded, buckets: Sequence[int]) -> tuple[Encoded, int]:
    """The text and a length that it can be padded to; a text that fills the last one is cut."""
    size = len(text.ids)
    roomier = next((one for one in buckets if one > size), None)
    if roomier is None:
        return of_length(text, max(1, size // 2)), size
    return text, roomier


def _distance(alone: Row, padded: Row) -> float:
    import numpy as np

    scale = max(float(np.abs(array).max()) for array in alone) or 1.0
    pairs = zip(alone, padded, strict=True)
    far = max(float(np.abs(one - other).max()) for one, other in pairs) / scale
    return far if np.isfinite(far) else float("inf")
