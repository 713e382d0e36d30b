"""What kserve's clients, REST and gRPC, make of the stack's answers."""

import asyncio
import json
import sys

import httpx
import numpy as np
from kserve import InferenceRESTClient, InferInput, InferRequest, RESTConfig
from kserve.inference_client import InferenceGRPCClient
from kserve.protocol.infer_type import RequestedOutput

given = json.load(sys.stdin)
KINDS = {"BYTES": object, "INT64": np.int64, "BOOL": np.bool_}


def plain(output):
    data = output.as_numpy()
    if output.datatype == "BYTES":
        return [json.loads(row) for row in data.ravel()]
    return data.tolist()


def request(endpoint, tensors, binary=None):
    inputs = []
    for name, datatype, values in tensors:
        array = np.array(values, KINDS[datatype])
        tensor = InferInput(name, list(array.shape), datatype)
        tensor.set_data_from_numpy(array, binary_data=binary is not False)
        inputs.append(tensor)
    outputs = None
    if binary is not None:
        outputs = [RequestedOutput("output", {"binary_data": binary})]
    return InferRequest(endpoint, inputs, request_id="7", request_outputs=outputs)


async def main():
    rest = InferenceRESTClient(RESTConfig(protocol="v2", retries=0))
    v1 = InferenceRESTClient(RESTConfig(protocol="v1", retries=0))
    grpc = InferenceGRPCClient(given["grpc"], retries=0)
    base = given["address"]
    answers = {"rest": {}, "grpc": {}}
    for name, call in given["calls"].items():
        try:
            response = await rest.infer(base, request(*call), model_name=call[0])
            answers["rest"][name] = plain(response.outputs[0])
        except httpx.HTTPStatusError as error:
            raised = {"raised": type(error).__name__, "status": error.response.status_code}
            answers["rest"][name] = {**raised, "message": str(error)}
        try:
            response = await grpc.infer(request(*call))
            answers["grpc"][name] = plain(response.outputs[0])
        except Exception as error:
            answers["grpc"][name] = {"raised": type(error).__name__, "message": str(error)}
    answers["v1"] = {}
    for name, (endpoint, body) in given.get("v1", {}).items():
        try:
            answers["v1"][name] = await v1.infer(base, body, model_name=endpoint)
        except httpx.HTTPStatusError as error:
            answers["v1"][name] = {"status": error.response.status_code, "message": str(error)}
    answers["about"] = {
        "rest": [
            await rest.is_server_live(base),
            await rest.is_server_ready(base),
            await rest.is_model_ready(base, "rerank"),
            await rest.is_model_ready(base, "nobody"),
        ],
        "v1": await v1.is_model_ready(base, "rerank"),
        "grpc": [
            await grpc.is_server_live(),
            await grpc.is_server_ready(),
            await grpc.is_model_ready("rerank"),
            await grpc.is_model_ready("nobody"),
        ],
    }
    await grpc.close()
    return answers


json.dump(asyncio.run(main()), sys.stdout)
