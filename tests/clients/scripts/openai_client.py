"""What openai's own client makes of the stack's answers."""

import json
import sys

from openai import OpenAI, OpenAIError

given = json.load(sys.stdin)
client = OpenAI(base_url=given["address"] + "/v1", api_key="none", max_retries=0)


def outcome(call):
    try:
        return call().model_dump()
    except OpenAIError as error:
        return {"raised": type(error).__name__, "body": error.body, "status": error.status_code}


answers = {
    name: outcome(lambda body=body: client.embeddings.create(**body))
    for name, body in given["bodies"].items()
}
tei = OpenAI(base_url=f"{given['address']}/tei/{given['tei']}/v1", api_key="none", max_retries=0)
answers["at TEI's"] = outcome(
    lambda: tei.embeddings.create(model="any", input=given["bodies"]["a list"]["input"])
)
answers["TEI refuses"] = outcome(lambda: tei.embeddings.create(model="any", input=[1, 2]))
answers["models"] = outcome(client.models.list)
answers["one model"] = outcome(lambda: client.models.retrieve(given["model"]))
answers["no model"] = outcome(lambda: client.models.retrieve("nobody"))
json.dump(answers, sys.stdout)
