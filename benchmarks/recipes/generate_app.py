"""The seed's way of generating: FastAPI, and every worker holds the model and answers with
transformers' own generate. BENCH_MODEL names the model's folder, BENCH_NEW_TOKENS how many tokens
are made of each prompt, whatever they are.
"""

import os

import torch
from fastapi import FastAPI
from pydantic import BaseModel
from transformers import AutoModelForCausalLM, AutoTokenizer

_NEW = int(os.environ["BENCH_NEW_TOKENS"])
torch.set_num_threads(len(os.sched_getaffinity(0)))
tokenizer = AutoTokenizer.from_pretrained(os.environ["BENCH_MODEL"])
model = AutoModelForCausalLM.from_pretrained(os.environ["BENCH_MODEL"], dtype=torch.float32).eval()
app = FastAPI()


class Prompt(BaseModel):
    text: str


# A coroutine, as the seed's: one call after the other.
@app.post("/generate")
async def generate(body: Prompt) -> dict[str, str]:
    asked = tokenizer(body.text, return_tensors="pt")
    with torch.inference_mode():
        found = model.generate(
            **asked, min_new_tokens=_NEW, max_new_tokens=_NEW, do_sample=False, pad_token_id=0
        )
    return {"text": tokenizer.decode(found[0])}
