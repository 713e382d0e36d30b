"""What cohere's own clients, v1 and v2, make of the stack's answers."""

import json
import sys

import cohere
from cohere.core.api_error import ApiError

given = json.load(sys.stdin)
clients = {
    name: kind(api_key="none", base_url=given["address"])
    for name, kind in {"v1": cohere.Client, "v2": cohere.ClientV2}.items()
}


def outcome(version, body):
    try:
        return clients[version].rerank(**body).model_dump()
    except ApiError as error:
        return {"raised": type(error).__name__, "status": error.status_code, "body": error.body}


answers = {name: outcome(version, body) for name, (version, body) in given["bodies"].items()}
json.dump(answers, sys.stdout)
