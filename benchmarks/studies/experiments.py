"""The table of what may make it faster, one row each; `benchmarks.studies.tuning` measures it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.servers import tritons
from transformer_serving.desk.builders.table import ENGINES


@dataclass(frozen=True)
class Experiment:
    """One row: what is other than the default.

    `environment` and `workers` change the gateway, `uvicorn` starts it by uvicorn's own options,
    `change` edits the model's configuration in a Triton of its own, `socket` reaches that by a unix
    socket, `buckets` and `precision` convert again. `null` measures before the engine that answers
    zeros. `needs` is a setting without which the row means nothing.
    """

    name: str
    title: str
    environment: Mapping[str, str] = field(default_factory=dict)
    workers: int = 1
    uvicorn: tuple[str, ...] = ()
    change: tritons.Change | None = None
    socket: bool = False
    buckets: tuple[int, ...] = ()
    precision: str = ""
    null: bool = False
    needs: str = ""


def _parameter(name: str, value: str) -> tritons.Change:
    def change(config: Any) -> None:
        config.parameters[name].string_value = value

    return change


def _instances(count: int) -> tritons.Change:
    def change(config: Any) -> None:
        config.instance_group[0].count = count

    return change


def _delay(microseconds: int) -> tritons.Change:
    def change(config: Any) -> None:
        config.dynamic_batching.max_queue_delay_microseconds = microseconds

    return change


def _calls(count: int) -> Experiment:
    return Experiment(
        f"calls-{count}", f"{count} engine calls in flight instead of 2",
        {"TRANSFORMER_SERVING_CALLS_IN_FLIGHT": str(count)},
    )  # fmt: skip


EXPERIMENTS = (
    Experiment("default", "the default against itself: what a difference of nothing looks like"),
    _calls(1),
    _calls(3),
    _calls(4),
    Experiment("calls-1-null", "no engine: 1 call in flight instead of 2",
               {"TRANSFORMER_SERVING_CALLS_IN_FLIGHT": "1"}, null=True),
    Experiment("workers-2", "2 gateway workers", workers=2),
    Experiment("workers-3", "3 gateway workers", workers=3),
    Experiment("workers-2-null", "no engine: 2 gateway workers", workers=2, null=True),
    Experiment("workers-2-threads-1", "2 gateway workers, 1 OpenVINO thread", workers=2,
               change=_parameter("intra_op_thread_count", "1")),
    Experiment("workers-2-streams-2", "2 gateway workers, 2 OpenVINO streams", workers=2,
               change=_parameter("num_streams", "2")),
    Experiment("grpc", "gRPC to Triton instead of HTTP",
               {"TRANSFORMER_SERVING_TRANSPORT": "grpc"}, needs="TRANSFORMER_SERVING_TRANSPORT"),
    Experiment("socket", "HTTP to Triton over a unix socket", socket=True),
    Experiment("asyncio", "asyncio's own event loop instead of uvloop",
               uvicorn=("--loop=asyncio",)),
    Experiment("h11", "h11 instead of httptools", uvicorn=("--http=h11",)),
    Experiment("tokenizers", "the tokenizer's own threads on",
               {"TOKENIZERS_PARALLELISM": "true"}),
    Experiment("streams-2", "2 OpenVINO streams in one instance",
               change=_parameter("num_streams", "2")),
    Experiment("threads-1", "1 OpenVINO thread instead of all cores",
               change=_parameter("intra_op_thread_count", "1")),
    Experiment("instances-2", "2 instances of the engine, half the threads each",
               change=_instances(2)),
    Experiment("instances-2-calls-3", "2 such instances, 3 engine calls in flight",
               {"TRANSFORMER_SERVING_CALLS_IN_FLIGHT": "3"}, change=_instances(2)),
    Experiment("delay-500", "Triton waits 500 us for more requests", change=_delay(500)),
    Experiment("fp32", "OpenVINO in fp32", change=_parameter("precision", "fp32")),
    Experiment("int8", "OpenVINO in int8", precision="int8"),
    Experiment("buckets-doubling", "TensorRT's length buckets: 16, 32, 64 and so on",
               buckets=ENGINES["tensorrt"].lengths),
    Experiment("buckets-exact", "every text of up to 64 tokens at its own length",
               buckets=(*range(1, 65),
                        *(size for size in ENGINES["openvino"].lengths if size > 64))),
)  # fmt: skip
