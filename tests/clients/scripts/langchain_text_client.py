"""What langchain-openai makes of generated text, whole and as it comes."""

import json
import sys

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI, OpenAI
from openai import OpenAIError

given = json.load(sys.stdin)
OPTIONS = {
    "base_url": given["address"] + "/v1", "api_key": "none", "model": "text", "temperature": 0,
    "max_tokens": 4, "max_retries": 0,
}  # fmt: skip


def refused(call):
    try:
        return call()
    except OpenAIError as error:
        return {"raised": type(error).__name__, "message": str(error)}


text, chat = OpenAI(**OPTIONS), ChatOpenAI(**OPTIONS)
chain = ChatPromptTemplate.from_messages([("user", "{prompt}")]) | chat | StrOutputParser()
prompt = given["prompt"]
message = chat.invoke(prompt)
chunks = list(chat.stream(prompt, stream_usage=True))
answers = {
    "text": text.invoke(prompt),
    "several": [row[0].text for row in text.generate([prompt, prompt]).generations],
    "text in chunks": list(text.stream(prompt)),
    "stop": text.invoke(prompt, stop=[" w21"]),
    "chat": message.content,
    "finish": message.response_metadata["finish_reason"],
    "usage": message.usage_metadata,
    "chat in chunks": [chunk.content for chunk in chunks],
    "usage of chunks": [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata],
    "chain": chain.invoke({"prompt": prompt}),
    "chain in chunks": list(chain.stream({"prompt": prompt})),
    "no room": refused(lambda: text.invoke("w20 " * 62)),
    "fails": refused(lambda: list(chat.stream("fail w20"))),
}
json.dump(answers, sys.stdout)
