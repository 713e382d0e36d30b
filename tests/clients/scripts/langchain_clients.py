"""What langchain-openai and langchain-cohere make of the stack's answers."""

import json
import sys

import tiktoken
from langchain_cohere import CohereRerank
from langchain_core.documents import Document
from langchain_openai import OpenAIEmbeddings
from openai import BadRequestError

given = json.load(sys.stdin)
base = given["address"] + "/v1"


def embeddings(**options):
    return OpenAIEmbeddings(
        base_url=base, api_key="none", model=given["embedding"], max_retries=0, **options
    )


unchecked = embeddings(check_embedding_ctx_length=False)
# The default sends tokens of OpenAI's vocabulary, which it would load from the internet.
tiktoken.registry.ENCODINGS["cl100k_base"] = tiktoken.Encoding(
    "cl100k_base", pat_str=r"(?s:.)", mergeable_ranks={bytes([at]): at for at in range(256)},
    special_tokens={},
)  # fmt: skip
try:
    embeddings().embed_documents(given["texts"])
    refused = None
except BadRequestError as error:
    refused = error.body

reranker = CohereRerank(
    base_url=given["address"], cohere_api_key="none", model=given["rerank"], top_n=2
)
documents = [Document(page_content=text) for text in given["texts"]]
answers = {
    "query": unchecked.embed_query(given["query"]),
    "documents": unchecked.embed_documents(given["texts"]),
    "refused": refused,
    "rerank": reranker.rerank(given["texts"], given["query"]),
    "compressed": [
        {"text": one.page_content, **one.metadata}
        for one in reranker.compress_documents(documents, given["query"])
    ],
}
json.dump(answers, sys.stdout)
