"""What llama-index makes of the stack's answers, as TEI's and as an OpenAI-like server's."""

import asyncio
import json
import sys

from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference

given = json.load(sys.stdin)
texts, query = given["texts"], given["query"]
tei = TextEmbeddingsInference(
    model_name=given["embedding"], base_url=f"{given['address']}/tei/{given['embedding']}"
)
openai = OpenAILikeEmbedding(
    model_name=given["embedding"], api_base=given["address"] + "/v1", api_key="none", max_retries=0
)
answers = {
    name: {
        "query": client.get_query_embedding(query),
        "texts": client.get_text_embedding_batch(texts),
        "later": asyncio.run(client.aget_text_embedding_batch(texts)),
    }
    for name, client in {"tei": tei, "openai": openai}.items()
}
json.dump(answers, sys.stdout)
