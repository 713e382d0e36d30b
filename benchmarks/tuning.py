"""What may make it faster, one row each, measured against the default in turns: `make tune`.

Row and default are up at the same time and measured one after the other in every round; a row is
called better or worse only where the bounds of the ratio leave no doubt.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import bounds, documents, machine, report as markdown, tritons
from benchmarks.loads import BATCH, SEED, SINGLE
from benchmarks.peers import PEERS, Peer
from benchmarks.process import Unusable
from benchmarks.runners import Plan
from benchmarks.servers import Running, gateway, gateway_by_uvicorn
from benchmarks.session import Session, session
from benchmarks.site import BUILD, OURS, Report, deploy
from preprocess.settings import SETTINGS
from transformer_serving.convert import ConvertRequest, convert
from transformer_serving.failure import Failure

_LOADS = (SEED, SINGLE, BATCH)
_DEFAULT = PEERS["gateway"]


@dataclass(frozen=True)
class Experiment:
    """One row: what is other than the default.

    `environment` and `workers` change the gateway, `uvicorn` starts it by uvicorn's own options,
    `change` edits the model's configuration in a Triton of its own, `socket` reaches that by a unix
    socket, `buckets` converts again. `needs` is a setting without which the row means nothing.
    """

    name: str
    title: str
    environment: Mapping[str, str] = field(default_factory=dict)
    workers: int = 1
    uvicorn: tuple[str, ...] = ()
    change: tritons.Change | None = None
    socket: bool = False
    buckets: tuple[int, ...] = ()
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
    Experiment("workers-2", "2 gateway workers", workers=2),
    Experiment("workers-3", "3 gateway workers", workers=3),
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
    Experiment("delay-500", "Triton waits 500 us for more requests", change=_delay(500)),
    Experiment("fp32", "OpenVINO in fp32", change=_parameter("precision", "fp32")),
    Experiment("buckets-fine", "more length buckets",
               buckets=(8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384)),
    Experiment("buckets-coarse", "fewer length buckets", buckets=(32, 128)),
)  # fmt: skip


def tune(plan: Plan, report: Report, only: Sequence[str], path: Path) -> None:
    """Measure the rows and store them. A row that cannot run is stored with its error."""
    names = [row.name for row in EXPERIMENTS]
    if unknown := set(only) - set(names):
        raise Failure(f"no row '{min(unknown)}'; there are {', '.join(names)}", exit_code=2)
    rows = []
    with session([_DEFAULT], plan, report, BUILD / "tune") as opened:
        for row in EXPERIMENTS:
            if only and row.name not in only:
                continue
            report(f"{row.name}: {row.title}")
            found = measured_row(row, opened, report)
            rows.append({"name": row.name, "title": row.title, **found})
            report(f"  {_line(found)}")
        values = {
            "date": machine.today(), "commit": machine.commit(), "machine": opened.around,
            "versions": machine.versions(), "plan": asdict(plan), "rows": rows,
        }  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(values, indent=1) + "\n", "utf-8")
    temporary.replace(path)


def measured_row(row: Experiment, opened: Session, report: Report) -> dict[str, Any]:
    try:
        if row.needs and row.needs not in {setting.name for setting in SETTINGS}:
            raise Unusable(f"this version has no setting {row.needs}")
        with _running(row, opened, report) as (server, path):
            return _compared(row, server, path, opened)
    except (Unusable, Failure) as error:
        return {"error": str(error)}


@contextlib.contextmanager
def _running(row: Experiment, opened: Session, report: Report) -> Iterator[tuple[Running, str]]:
    """The row's server, and the endpoint to ask there."""
    site = opened.site
    variables = dict(row.environment)
    endpoint = OURS
    with contextlib.ExitStack() as stack:
        if row.change or row.socket:
            work = site.work / row.name
            tritons.copy_repository(site.repository, work, row.change)
            triton = tritons.start_triton(f"Triton for {row.name}", work, socket=row.socket)
            stack.callback(triton.child.stop)
            variables |= triton.variables()
        if row.buckets:
            endpoint = f"ours_{row.name}".replace("-", "_")
            folder = site.work / "bundles" / row.name
            request = ConvertRequest(str(site.models.hugging_face), buckets=row.buckets)
            convert(request, folder, lambda step, detail: report(f"  {step}"))
            deploy(site, folder, endpoint)
        start = (
            gateway_by_uvicorn(row.uvicorn, environment=variables)
            if row.uvicorn
            else gateway(row.workers, environment=variables, first=endpoint, name=row.name)
        )
        server = start(site, report)
        stack.callback(server.stop)
        yield server, f"/serve/{endpoint}"


def _compared(row: Experiment, server: Running, path: str, opened: Session) -> dict[str, Any]:
    runner = opened.runner
    name = f"tune-{row.name}"
    runner.bases[name] = server.base
    peer = Peer(name, row.title, _DEFAULT.engine, "ours", name, path)
    found: dict[str, Any] = {}
    for load in _LOADS:
        pairs = []
        for number in range(runner.plan.rounds):
            # Who goes first changes with every round.
            order = (_DEFAULT, peer) if number % 2 else (peer, _DEFAULT)
            figures = {one.name: runner.measure(one, load) for one in order}
            pairs.append((figures[name], figures[_DEFAULT.name]))
        key = "p50" if load is SINGLE else "texts"
        found[load.name] = {
            "figure": bounds.spread([mine[key] for mine, _ in pairs]).median,
            "default": bounds.spread([theirs[key] for _, theirs in pairs]).median,
            **asdict(bounds.spread([mine["texts"] / theirs["texts"] for mine, theirs in pairs])),
        }
    return found


def _line(found: Mapping[str, Any]) -> str:
    if "error" in found:
        return f"not measured: {found['error']}"
    return ", ".join(
        f"{load.name} {found[load.name]['median']:.2f} times the default "
        f"({found[load.name]['lower']:.2f} to {found[load.name]['upper']:.2f})"
        for load in _LOADS
    )


def verdict(spread: Mapping[str, Any]) -> str:
    """What the bounds of the ratio to the default say."""
    if spread["lower"] > 1:
        return "better"
    return "worse" if spread["upper"] < 1 else "no sure difference"


def table(values: Mapping[str, Any]) -> str:
    """The rows as Markdown, for docs/performance.md."""
    head = ("changed", "one text, `ab -c 128`", "", "one at a time", "32 a request", "")
    rows = []
    for row in values["rows"]:
        if "error" in row:
            rows.append((row["title"], f"not measured: {row['error']}", "", "", "", ""))
            continue
        seed, single, batch = (row[load.name] for load in _LOADS)
        rows.append(
            (
                row["title"],
                _times(seed), verdict(seed),
                f"{single['figure']:.2f} ms, default {single['default']:.2f}",
                _times(batch), verdict(batch),
            )
        )  # fmt: skip
    about = values["machine"]
    plan = values["plan"]
    note = (
        f"Times of the default's texts a second, bounds in brackets. {values['date']}, commit "
        f"{values['commit']}; {about['cpu']}, {about['cores']} cores, load {about['load_before']} "
        f"before; {plan['rounds']} rounds of {plan['seconds']:g} s."
    )
    return f"{note}\n\n{markdown.table(head, rows)}"


def _times(spread: Mapping[str, Any]) -> str:
    return f"{spread['median']:.2f} ({spread['lower']:.2f} to {spread['upper']:.2f})"


def write_table(path: Path) -> None:
    """The table into docs/performance.md, from the stored rows."""
    values = json.loads(path.read_text("utf-8"))
    markdown.write_section(documents.PERFORMANCE, "tuning", table(values))
