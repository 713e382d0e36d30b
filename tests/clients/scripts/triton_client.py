"""What tritonclient, over HTTP and gRPC, makes of the stack's answers."""

import json
import sys

import numpy as np
import tritonclient.grpc as over_grpc
import tritonclient.http as over_http
from tritonclient.utils import InferenceServerException

given = json.load(sys.stdin)
KINDS = {"BYTES": object, "INT64": np.int64, "BOOL": np.bool_}
clients = {
    "http": (over_http, over_http.InferenceServerClient(given["address"].partition("//")[2])),
    "grpc": (over_grpc, over_grpc.InferenceServerClient(given["grpc"])),
}


def plain(array):
    if array.dtype == object:
        return [json.loads(row) for row in array.ravel()]
    return array.tolist()


def outcome(door, endpoint, tensors, binary=None):
    module, client = clients[door]
    inputs, more = [], {}
    for name, datatype, values in tensors:
        array = np.array(values, KINDS[datatype])
        tensor = module.InferInput(name, list(array.shape), datatype)
        if door == "http":
            tensor.set_data_from_numpy(array, binary_data=binary is not False)
        else:
            tensor.set_data_from_numpy(array)
        inputs.append(tensor)
    if binary is not None:
        options = {"binary_data": binary} if door == "http" else {}
        more["outputs"] = [module.InferRequestedOutput("output", **options)]
    try:
        result = client.infer(endpoint, inputs, request_id="7", **more)
    except InferenceServerException as error:
        return {"raised": type(error).__name__, "status": error.status(), "message": str(error)}
    return plain(result.as_numpy("output"))


def about(door):
    _, client = clients[door]
    as_json = {} if door == "http" else {"as_json": True}
    return {
        "live": client.is_server_live(),
        "ready": client.is_server_ready(),
        "model_ready": client.is_model_ready("rerank"),
        "unknown_ready": client.is_model_ready("nobody"),
        "server": client.get_server_metadata(**as_json),
        "model": client.get_model_metadata("question-answering", **as_json),
        "config": client.get_model_config("question-answering", "1", **as_json),
    }


answers = {
    door: {name: outcome(door, *call) for name, call in given["calls"].items()} for door in clients
}
json.dump({**answers, "about": {door: about(door) for door in clients}}, sys.stdout)
