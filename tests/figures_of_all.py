"""Run as a worker of its own: makes every figure that a worker can have, and writes the page."""

from __future__ import annotations

import asyncio
import sys

from preprocess import first_call
from preprocess.generation.figures import TextFigures, tell_streams_limit
from preprocess.queue.admission import Admission
from preprocess.stats import STAGES, EndpointFigures
from tests.gateway.played_host import Processor, host_of
from transformer_serving.contract.worker.durations import OK
from transformer_serving.contract.worker.spans import SENT, _Losses
from transformer_serving.gateway.figures.metrics import Metrics, tell_syncs
from transformer_serving.gateway.figures.page import page
from transformer_serving.gateway.figures.traffic import Traffic
from transformer_serving.gateway.golden_rounds import GoldenResult
from transformer_serving.gateway.requested_endpoint import RequestedEndpoint
from transformer_serving.gateway.rollout.mirror import Mirror, Mirroring
from transformer_serving.gateway.short_way import ShortWay

NAME = "texts"


class Synced:
    """What of the host's processor is told of: it takes over a task's configuration."""

    def deserialize(self, task: object) -> bool:
        return False


class Task:
    _data = object()


def preprocess_figures() -> None:
    figures = EndpointFigures(NAME)
    figures.request(200, 1, 3, dict.fromkeys(STAGES, 0.01))
    figures.abandoned("deadline", 1)
    figures.call(1, 3, 13)
    Admission(1000, 2.0)
    first_call.note_call()
    text = TextFigures(NAME)
    text.first(0.1)
    text.gap(0.01, 1)
    text.seated(1)
    text.came(1)
    text.left(1)
    text.cut("disconnect")
    tell_streams_limit(64)
    _Losses().count(SENT, 1)


def gateway_figures() -> None:
    short_way = ShortWay(host_of(Processor({NAME: None})))
    traffic = Traffic(short_way)
    with traffic.visit(RequestedEndpoint(NAME, None), 0.0) as visit:
        visit.answered(OK, 200)
    mirror = Mirror("a1", NAME, "2", 0.25, 0.99)
    Mirroring(lambda: None, {})._leave_out(mirror)
    metrics = Metrics(generating=lambda: [NAME])
    metrics.asked("a-key")
    metrics.note_start(1795492800.0)
    metrics.refused("too_large", NAME)
    asyncio.run(
        metrics.goldens({NAME: GoldenResult(NAME, "ok", "", 0.0, True, None, "1", "rerank")})
    )
    tell_syncs(Synced)
    Synced().deserialize(Task())
    traffic.durations.tell()


if __name__ == "__main__":
    preprocess_figures()
    gateway_figures()
    sys.stdout.write(page().decode())
