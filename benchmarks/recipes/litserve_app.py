"""LitServe around the same pipeline, with its own batching. BENCH_MODEL names the folder."""

import os
import sys
from typing import Any

import litserve
import torch
from transformers import pipeline


class Classifier(litserve.LitAPI):
    def setup(self, device: str) -> None:
        torch.set_num_threads(len(os.sched_getaffinity(0)))
        self.pipe = pipeline("text-classification", model=os.environ["BENCH_MODEL"])

    def decode_request(self, request: dict[str, Any]) -> str:
        return str(request["text"])

    def predict(self, texts: list[str]) -> Any:
        return self.pipe(list(texts), batch_size=len(texts))

    def unbatch(self, results: Any) -> Any:
        return list(results)

    def encode_response(self, result: Any) -> Any:
        return result


if __name__ == "__main__":
    classifier = Classifier(max_batch_size=64, batch_timeout=0.001)
    server = litserve.LitServer(classifier, accelerator="cpu", timeout=60)
    server.run(host="127.0.0.1", port=int(sys.argv[1]), generate_client_file=False)
