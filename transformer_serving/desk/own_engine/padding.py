"""Where the calls of an engine that was brought may be padded: found out by running it.

Tested by tests/own_engine/test_writer.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformer_serving.contract.endpoint import Endpoint
from transformer_serving.desk.command_line import command_line
from transformer_serving.desk.failure import ConversionRefused
from transformer_serving.desk.parity.local_endpoint import LocalEndpoint
from transformer_serving.desk.parity.padding import change_by_padding

if TYPE_CHECKING:
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
        found.append(change_by_padding(endpoint, side, tokenizer_json, call, encoded))
        if found[-1] <= _ALLOWED.get(precision, _ALLOWED_ELSE):
            return side
    raise ConversionRefused(
        f"padding changes what the engine gives by {min(found):.0%} on either side; it "
        "needs an input attention_mask that it heeds; export it again with one, use "
        f"'{command_line('convert')}', or say --precision int8 if it is quantized"
    )
