"""What may make it faster, one row each, measured against the default in turns: `make tune`.

Row and default are up at the same time and measured one after the other in every round; a row is
called better or worse only where the bounds of the ratio leave no doubt.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.report import documents, tables as markdown
from benchmarks.runs.loads import BATCH, SEED, SINGLE
from benchmarks.runs.results import write_json
from benchmarks.runs.rounds import minutes, reason
from benchmarks.runs.runners import Plan
from benchmarks.runs.session import Session, session
from benchmarks.servers import machine, tritons
from benchmarks.servers.peers import PEERS, Peer
from benchmarks.servers.process import Unusable
from benchmarks.servers.site import BUILD, OURS, Site, deploy
from benchmarks.servers.table import Running, gateway, gateway_by_uvicorn
from benchmarks.studies.experiments import EXPERIMENTS, Experiment
from preprocess.settings import SETTINGS
from transformer_serving.desk.bench import bounds
from transformer_serving.desk.convert import ConvertRequest, convert
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.step_report import StepReport

_LOADS = (SEED, SINGLE, BATCH)
_DEFAULT, _DEFAULT_NULL = PEERS["gateway"], PEERS["null-gateway"]
# Of a row: a gateway, often a Triton, now and then a bundle.
_START_S = 15.0


def tune(plan: Plan, report: StepReport, only: Sequence[str], path: Path) -> None:
    """Measure the rows and store them. A row that cannot run is stored with its error."""
    names = [row.name for row in EXPERIMENTS]
    if unknown := set(only) - set(names):
        raise Failure(f"no row '{min(unknown)}'; there are {', '.join(names)}", exit_code=2)
    chosen = [row for row in EXPERIMENTS if not only or row.name in only]
    report(f"{len(chosen)} rows, about {minutes(len(chosen) * _row_s(plan))} after the start")
    rows = _stored_rows(path) if only else {}
    peers = [_DEFAULT, *([_DEFAULT_NULL] if any(row.null for row in chosen) else [])]
    with session(peers, plan, report, BUILD / "tune") as opened:
        for number, row in enumerate(chosen):
            left = minutes((len(chosen) - number) * _row_s(plan))
            report(f"{number + 1} of {len(chosen)}, {row.name}: {row.title}; about {left} left")
            found = measured_row(row, opened, report)
            rows[row.name] = {"name": row.name, "title": row.title, **found}
            report(f"  {_line(found)}")
            # After each row: what is measured is not lost with the rest.
            ordered = [rows[one.name] for one in EXPERIMENTS if one.name in rows]
            values = {
                "date": machine.today(), "commit": machine.commit(), "machine": opened.around,
                "versions": machine.versions(), "plan": asdict(plan), "rows": ordered,
            }  # fmt: skip
            write_json(path, values)


def _row_s(plan: Plan) -> float:
    """About how long a row takes: starting, warming up, and both sides under every load."""
    return _START_S + len(_LOADS) * 2 * (plan.rounds * plan.seconds + plan.warm_up_s)


def _stored_rows(path: Path) -> dict[str, dict[str, Any]]:
    """The rows of an earlier run: `--only` renews some of them."""
    if not path.is_file():
        return {}
    return {row["name"]: row for row in json.loads(path.read_text("utf-8"))["rows"]}


def measured_row(row: Experiment, opened: Session, report: StepReport) -> dict[str, Any]:
    try:
        if row.needs and row.needs not in {setting.name for setting in SETTINGS}:
            raise Unusable(f"this version has no setting {row.needs}")
        with _running(row, opened, report) as (server, path):
            return _compared(row, server, path, opened)
    except Exception as error:
        # Whatever one row does, the others are measured.
        return {"error": reason(error)}


@contextlib.contextmanager
def _running(row: Experiment, opened: Session, report: StepReport) -> Iterator[tuple[Running, str]]:
    """The row's server, and the endpoint to ask there."""
    site = opened.site
    variables = dict(row.environment)
    bundle = _bundle(row, site, report)
    endpoint = f"ours_{row.name}".replace("-", "_") if bundle else OURS
    if bundle:
        deploy(site, bundle, endpoint)
    with contextlib.ExitStack() as stack:
        # A new endpoint's model is in no other Triton without an engine.
        if row.change or row.socket or (row.null and bundle):
            work = site.work / row.name
            tritons.copy_repository(site.repository, work, row.change)
            triton = tritons.start_triton(
                f"Triton for {row.name}", work, null=row.null, socket=row.socket
            )
            stack.callback(triton.child.stop)
            variables |= triton.variables()
        elif row.null and site.null is not None:
            variables |= site.null.variables()
        start = (
            gateway_by_uvicorn(row.uvicorn, environment=variables)
            if row.uvicorn
            else gateway(row.workers, environment=variables, first=endpoint, name=row.name)
        )
        server = start(site, report)
        stack.callback(server.stop)
        yield server, f"/serve/{endpoint}"


def _bundle(row: Experiment, site: Site, report: StepReport) -> Path | None:
    """The row's own bundle, where its buckets or precision are other ones."""
    folder = site.work / "bundles" / row.name
    if row.buckets or row.precision:
        request = ConvertRequest(
            str(site.models.hugging_face), precision=row.precision or None,
            buckets=row.buckets,
        )  # fmt: skip
        convert(request, folder, lambda step, detail: report(f"  {step}"))
        return folder
    return None


def _compared(row: Experiment, server: Running, path: str, opened: Session) -> dict[str, Any]:
    runner = opened.runner
    name = f"tune-{row.name}"
    runner.servers[name] = server
    default = _DEFAULT_NULL if row.null else _DEFAULT
    peer = Peer(name, row.title, default.engine, "ours", name, path)
    found: dict[str, Any] = {}
    for load in _LOADS:
        pairs = []
        for number in range(runner.plan.rounds):
            # Who goes first changes with every round.
            order = (default, peer) if number % 2 else (peer, default)
            figures = {one.name: runner.measure(one, load) for one in order}
            pairs.append((figures[name], figures[default.name]))
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
    plan = values["plan"]
    note = (
        f"Times of the default's texts a second, bounds in brackets. {markdown.origin(values)}; "
        f"{plan['rounds']} rounds of {plan['seconds']:g} s."
    )
    return f"{note}\n\n{markdown.table(head, rows)}"


def _times(spread: Mapping[str, Any]) -> str:
    return f"{spread['median']:.2f} ({spread['lower']:.2f} to {spread['upper']:.2f})"


def write_table(path: Path) -> None:
    """The table into docs/performance.md, from the stored rows."""
    values = json.loads(path.read_text("utf-8"))
    markdown.write_section(documents.PERFORMANCE, "tuning", table(values))
