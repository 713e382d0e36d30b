"""What mlserver's types and codecs make of the stack's answers."""

import json
import sys
import urllib.error
import urllib.request

from mlserver.codecs import Base64Codec, NumpyCodec, StringCodec
from mlserver.types import InferenceRequest, InferenceResponse, Parameters, RequestOutput

given = json.load(sys.stdin)
CODECS = {
    "str": lambda name, values: StringCodec.encode_input(name, values, use_bytes=False),
    "base64": lambda name, values: Base64Codec.encode_input(
        name, [value.encode() for value in values], use_bytes=False
    ),
    "np": lambda name, values: NumpyCodec.encode_input(name, __import__("numpy").array(values)),
}


def outcome(endpoint, tensors, named=False):
    request = InferenceRequest(
        id="7",
        parameters=Parameters(content_type="str"),
        inputs=[CODECS[codec](name, values) for name, codec, values in tensors],
        outputs=[RequestOutput(name="output")] if named else None,
    )
    raw = request.model_dump_json(exclude_none=True).encode()
    asked = urllib.request.Request(
        f"{given['address']}/v2/models/{endpoint}/infer", raw, {"content-type": "application/json"}
    )
    with urllib.request.urlopen(asked, timeout=60) as answer:
        response = InferenceResponse.model_validate_json(answer.read())
    assert (response.id, response.model_name) == ("7", endpoint)
    (output,) = response.outputs
    if named:
        return NumpyCodec.decode_output(output).tolist()
    assert output.parameters.content_type == "hg_jsonlist"
    return [json.loads(row) for row in StringCodec.decode_output(output)]


answers = {name: outcome(*call) for name, call in given["calls"].items()}
json.dump(answers, sys.stdout)
