"""The FastAPI + gunicorn recipe: every worker holds the pipeline and answers one call at a time.

BENCH_MODEL names the model's folder.
"""

import os
from typing import Any

import torch
from fastapi import FastAPI
from pydantic import BaseModel
from transformers import pipeline

# One worker a core: more threads would take the other worker's.
torch.set_num_threads(1)
pipe = pipeline("text-classification", model=os.environ["BENCH_MODEL"])
app = FastAPI()


class Texts(BaseModel):
    text: str | list[str]


class Answer(BaseModel):
    label: str
    score: float


@app.post("/classify")
def classify(body: Texts) -> list[Answer]:
    results: list[dict[str, Any]] = pipe(body.text)
    return [Answer(**result) for result in results]
