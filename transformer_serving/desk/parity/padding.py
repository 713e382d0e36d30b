"""How much what is computed of a text changes when the text is padded, which a mask is to prevent.

Tested by tests/own_engine/test_writer.py and tests/parity/test_check.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from transformer_serving.contract.endpoint import Endpoint
from transformer_serving.desk.builders.sample_rows import rows_of
from transformer_serving.desk.parity.local_endpoint import LocalEndpoint

if TYPE_CHECKING:
    from preprocess.rows import Row
    from preprocess.tokens import Encoded
    from transformer_serving.desk.builders.files import Call


def change_by_padding(
    endpoint: Endpoint, side: str, tokenizer_json: bytes, call: Call, encoded: Sequence[Encoded]
) -> float:
    """The largest change of a number by padding, as a part of the largest number."""
    largest = 0.0
    for one in encoded:
        text, roomier = _with_room(one, endpoint)
        rows = []
        for length in (len(text.ids), roomier):
            tokens = replace(
                endpoint.tokens, max_length=length, buckets=(length,), padding_side=side
            )
            local = LocalEndpoint(replace(endpoint, tokens=tokens), tokenizer_json, call)
            rows += local.run([text])
        largest = max(largest, _distance(*rows))
    return largest


def _with_room(text: Encoded, endpoint: Endpoint) -> tuple[Encoded, int]:
    """The text and a length that it can be padded to; a text that fills the last one is cut."""
    size = len(text.ids)
    roomier = next((one for one in endpoint.tokens.buckets if one > size), None)
    if roomier is None:
        [cut] = rows_of(endpoint.masks, [text], [max(1, size // 2)])
        return cut, size
    return text, roomier


def _distance(alone: Row, padded: Row) -> float:
    import numpy as np

    # Of a head that names tokens by their ids, these are no measure.
    pairs = [pair for pair in zip(alone, padded, strict=True) if pair[0].dtype.kind == "f"]
    scale = max(float(np.abs(one).max()) for one, _ in pairs) or 1.0
    far = max(float(np.abs(one - other).max()) for one, other in pairs) / scale
    return far if np.isfinite(far) else float("inf")
