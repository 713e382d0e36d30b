"""What huggingface_hub's InferenceClient makes of the stack's answers."""

import dataclasses
import json
import sys

import numpy as np
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError

given = json.load(sys.stdin)


def plain(value):
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, list):
        return [plain(one) for one in value]
    if dataclasses.is_dataclass(value):
        return {name: one for name, one in dict(value).items() if one is not None}
    return value


def outcome(endpoint, method, arguments):
    # It asks these of its own provider's endpoints only.
    asks_itself = method in ("health_check", "get_endpoint_info")
    more = {"provider": "hf-inference"} if asks_itself else {}
    client = InferenceClient(model=f"{given['address']}/hf/{endpoint}", **more)
    try:
        return plain(getattr(client, method)(**arguments))
    except HfHubHTTPError as error:
        return {"raised": type(error).__name__, "message": str(error)}


answers = {name: outcome(*call) for name, call in given["calls"].items()}
json.dump(answers, sys.stdout)
