"""The queue recipe: starlette takes a request, one worker takes it from a queue, batches, answers.

Written after the pipeline-behind-a-web-server pattern: one pipeline, one queue, a batch of what
comes within a millisecond. BENCH_MODEL names the model's folder.
"""

import asyncio
import os
from contextlib import asynccontextmanager
from typing import Any

import torch
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from transformers import pipeline

_WAIT_S = 0.001
_MOST = 64


async def answer(request: Request) -> JSONResponse:
    text = (await request.body()).decode()
    reply: asyncio.Queue[Any] = asyncio.Queue()
    await request.app.state.queue.put((text, reply))
    return JSONResponse(await reply.get())


async def work(queue: asyncio.Queue[Any]) -> None:
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    pipe = pipeline("text-classification", model=os.environ["BENCH_MODEL"])
    while True:
        batch = [await queue.get()]
        while len(batch) < _MOST:
            try:
                batch.append(await asyncio.wait_for(queue.get(), _WAIT_S))
            except asyncio.TimeoutError:
                break
        results = pipe([text for text, _ in batch], batch_size=len(batch))
        for (_, reply), result in zip(batch, results, strict=True):
            await reply.put(result)


@asynccontextmanager
async def lifespan(app: Starlette) -> Any:
    app.state.queue = asyncio.Queue()
    worker = asyncio.create_task(work(app.state.queue))
    yield
    worker.cancel()


app = Starlette(routes=[Route("/", answer, methods=["POST"])], lifespan=lifespan)
