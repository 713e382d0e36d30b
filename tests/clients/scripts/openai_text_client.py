"""What openai's own client makes of generated text, whole and as it comes."""

import json
import sys

from openai import OpenAI, OpenAIError

given = json.load(sys.stdin)


def client_at(path):
    return OpenAI(base_url=given["address"] + path, api_key="none", max_retries=0)


def outcome(call):
    try:
        return call()
    except OpenAIError as error:
        body = getattr(error, "body", None)
        status = getattr(error, "status_code", None)
        return {"raised": type(error).__name__, "body": body, "status": status}


def whole(create, body):
    return lambda: create(**body).model_dump()


def streamed(create, body):
    def call():
        with create(**body, stream=True) as stream:
            return [chunk.model_dump() for chunk in stream]

    return call


def left(create, body):
    """Leave after the second chunk."""

    def call():
        with create(**body, stream=True) as stream:
            return [next(iter(stream)).model_dump() for _ in range(2)]

    return call


WAYS = {"whole": whole, "streamed": streamed, "left": left}
answers = {}
for name, (path, kind, way, body) in given["calls"].items():
    client = client_at(path)
    create = client.completions.create if kind == "text" else client.chat.completions.create
    answers[name] = outcome(WAYS[way](create, body))
answers["models"] = outcome(lambda: client_at("/v1").models.list().model_dump())
json.dump(answers, sys.stdout)
