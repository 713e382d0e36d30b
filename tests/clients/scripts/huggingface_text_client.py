"""What huggingface_hub's InferenceClient makes of generated text, whole and as it comes."""

import dataclasses
import json
import sys

from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError

given = json.load(sys.stdin)


def plain(value):
    if isinstance(value, list):
        return [plain(one) for one in value]
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if dataclasses.is_dataclass(value):
        return {
            field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    return value


def outcome(path, method, arguments):
    client = InferenceClient(model=given["address"] + path)
    try:
        answer = getattr(client, method)(**arguments)
        return plain(list(answer) if arguments.get("stream") else answer)
    except HfHubHTTPError as error:
        return {"raised": type(error).__name__, "message": str(error)}
    except Exception as error:
        # What its stream raises of an error event has no class in common.
        return {"raised": type(error).__name__, "message": str(error)}


answers = {name: outcome(*call) for name, call in given["calls"].items()}
json.dump(answers, sys.stdout)
