"""`tune`, whole: from an endpoint and its requests to the best setting that the time allows.

Tested by tests/stack/test_tune.py.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from transformer_serving.contract.gate.server_facts import read_gpus
from transformer_serving.desk.bench.load import Payload
from transformer_serving.desk.bench.measure import OPEN_SHARE
from transformer_serving.desk.bundle.folder import Bundle
from transformer_serving.desk.bundle.signing import SigningKey
from transformer_serving.desk.bundle.writer import check_target
from transformer_serving.desk.deploy.target import DeployTarget
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.interruption import interruptible
from transformer_serving.desk.local.record import make_private
from transformer_serving.desk.local.stack import stop
from transformer_serving.desk.step_report import StepReport
from transformer_serving.desk.tune import requests, sources
from transformer_serving.desk.tune.goal import Goal, Meter, OpenLoop
from transformer_serving.desk.tune.killed_run import (
    end_what_is_left,
    only_run,
    own_state,
    work_folder,
)
from transformer_serving.desk.tune.knobs import (
    KNOBS,
    Knob,
    Scope,
    Setting,
    check_values,
    setting_of,
    with_values,
)
from transformer_serving.desk.tune.lengths import read_lengths
from transformer_serving.desk.tune.output import check_environment_file, written
from transformer_serving.desk.tune.own_stack import OwnStack, own_stack
from transformer_serving.desk.tune.search import VERDICT_ROUNDS, Raced, Search, Verdict
from transformer_serving.desk.tune.traffic import refuse_traffic
from transformer_serving.engine.backends.model_settings import available_cores

# What the end takes beside the verdict's loads, in seconds, and the most of the whole that all of
# it may be.
_END_S = 50.0
_END_SHARE = 0.5
# Loads of one figure: where p99 is to be kept, those of a few counts of clients, each once or more.
_LOADS = {False: 1.0, True: 4.0}


@dataclass(frozen=True)
class TuneRequest:
    """`bundles` empty: what the endpoint serves. Of `file` and `lengths` one is given.

    `begin` and `compare` are values of knobs, as `knob=value,knob=value`, over what the bundle and
    the environment say; `compare` None: the result is held against the beginning alone. `key` signs
    what is written.
    """

    endpoint: str
    state: Path
    output: Path
    bundles: tuple[Path, ...] = ()
    file: Path | None = None
    lengths: str | None = None
    goal: Goal = Goal()
    begin: str = ""
    compare: str | None = None
    knobs: tuple[Knob, ...] = KNOBS
    clients: int = 64
    seconds: float = 1.0
    minutes: float = 10.0
    anyway: bool = False
    key: SigningKey | None = None


@dataclass(frozen=True)
class Tuned:
    """`bundle` is what was written to the output; `environment` is the gateway's, in the file
    beside it. Both are None while neither is written. Of `requests` that the endpoint answers,
    `measured` were in a load that was measured; `remarks` are of those that were given beside them.

    `open` is the result's at a share of its texts a second, for a goal of p99. `generator_cpu` is
    the most of one core that sending took in any load.
    """

    begun: Setting
    setting: Setting
    races: tuple[Raced, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    bundle: Bundle | None = None
    environment: Path | None = None
    seconds: float = 0.0
    measured: int = 0
    requests: int = 0
    remarks: tuple[str, ...] = ()
    open: OpenLoop | None = None
    generator_cpu: float = 0.0


@dataclass(frozen=True)
class _Plan:
    """What there is to choose among, where it begins, and what the result is held against."""

    scope: Scope
    start: Setting
    others: Mapping[str, Setting]
    meter: Meter


@dataclass(frozen=True)
class _Measuring:
    """The search's stage: the stack's addresses under the meter's load."""

    own: OwnStack
    meter: Meter

    def bring(self, settings: Mapping[str, Setting]) -> None:
        self.own.bring(settings)

    def warm_up(self, setting: Setting) -> None:
        self.meter.warm_up(self.own.address(setting))

    def measure(self, setting: Setting, number: int) -> float:
        return self.meter.measure(self.own.address(setting), number)

    def keep(self, settings: Iterable[Setting]) -> None:
        self.own.keep(settings)


def tune(
    request: TuneRequest,
    served: Callable[[], DeployTarget],
    report: StepReport,
    found: Callable[[Tuned], None],
) -> Tuned:
    """Search, and write the result. `served` is where the endpoint's bundle is had from; `found`
    is told the result before the end, which may fail, and what there is of one where the search
    fails or is ended.

    Raises Failure, and KeyboardInterrupt at a signal; in no case anything is left running.
    """
    begun = time.monotonic()
    check_target(request.output)
    check_environment_file(request.output)
    asked = _asked(request)
    # Before the refusals, which it would be the cause of.
    end_what_is_left(request.state)
    report("looking whether the served stack is idle")
    disturbed = (lambda: False) if request.anyway else refuse_traffic(request.state)
    # Before a folder is made for a stack that is not there.
    target = None if request.bundles else served()
    with interruptible(), _work_folder(request.state) as work:
        bundles = _bundles(request, target, work, report)
        plan = _plan(request, bundles, asked)
        with own_stack(own_state(request.state), bundles, plan.start, report) as own:
            own.bring({"the beginning": plan.start})
            report("asking each request once")
            asked_once = requests.answered(own.address(plan.start), plan.meter.payloads)
            plan.meter.payloads = asked_once.payloads
            over = begun + _search_s(request, 1 + len(plan.others))
            judged = begun + request.minutes * 60 - _END_S
            stage = _Measuring(own, plan.meter)
            search = Search(stage, plan.scope, over, disturbed, report, judged)
            tuned = Tuned(plan.start, plan.start, remarks=asked_once.remarks)
            try:
                best = search.run(request.knobs, plan.start)
                tuned = replace(tuned, verdicts=search.judge(best, plan.others))
                tuned = _with_open(tuned, own, search, plan.meter, best)
            finally:
                # Also of a search that fails or is ended.
                tuned = _with_search(tuned, search, plan.meter, begun)
                if tuned.races:
                    found(tuned)
            report("proving the tuned bundle")
            proven = own.prove(best, work / "tuned")
        bundle, environment = written(proven, best, request.output, request.key)
    spent = time.monotonic() - begun
    return replace(tuned, bundle=bundle, environment=environment, seconds=spent)


def _with_search(tuned: Tuned, search: Search, meter: Meter, begun: float) -> Tuned:
    """What is known before the end. `begun` is the whole's, on time.monotonic's clock."""
    return replace(
        tuned,
        setting=search.found or tuned.begun,
        races=tuple(search.races),
        seconds=time.monotonic() - begun,
        measured=meter.measured,
        requests=len(meter.payloads),
        generator_cpu=meter.generator_cpu,
    )


def _with_open(tuned: Tuned, own: OwnStack, search: Search, meter: Meter, best: Setting) -> Tuned:
    """Clients who wait for their answers never queue; others do, and at the same rate longer."""
    if meter.goal.p99_ms is None:
        return tuned
    judged = (one.result for one in tuned.verdicts if one.ratio is not None)
    try:
        texts = next(judged, 0.0) or search.alone(best)
        found = meter.open_loop(own.address(best), OPEN_SHARE * texts) if texts else None
    # It is told beside the result, which is there without it.
    except Failure as failure:
        said = f"no figures of callers who do not wait for their answers: {failure}"
        return replace(tuned, remarks=(*tuned.remarks, said))
    return replace(tuned, open=found)


def _search_s(request: TuneRequest, rivals: int) -> float:
    """Of the whole time, what the races may have."""
    whole = request.minutes * 60
    load = request.seconds * _LOADS[request.goal.p99_ms is not None]
    return whole - min(_END_S + VERDICT_ROUNDS * rivals * load, _END_SHARE * whole)


@contextmanager
def _work_folder(state: Path) -> Iterator[Path]:
    """A folder in the state's, of one run at a time; what an earlier one left there goes.

    After a Failure it stays, for its logs, until the next run.
    """
    make_private(state)
    with only_run(state) as ours:
        if not ours:
            raise Failure(f"another tune runs with {state}; wait for it", exit_code=2)
        work = work_folder(state)
        # Before its files go: a run that was killed may have left processes.
        stop(own_state(state), lambda _: None)
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(mode=0o700)
        try:
            yield work
        except KeyboardInterrupt:
            shutil.rmtree(work, ignore_errors=True)
            raise
        shutil.rmtree(work, ignore_errors=True)


def _bundles(
    request: TuneRequest, target: DeployTarget | None, work: Path, report: StepReport
) -> dict[str, Bundle]:
    folder = work / "sources"
    if target is None:
        return sources.by_precision(sources.copied(request.bundles, folder))
    report(f"fetching what {request.endpoint} serves")
    return sources.by_precision([sources.fetched(target, request.endpoint, folder)])


def _asked(request: TuneRequest) -> tuple[Payload, ...] | None:
    """The requests of a file; all that is said of them and of settings is looked at, as far as it
    can be before there is a bundle. Raises Failure (exit code 2)."""
    for values in (request.begin, request.compare or ""):
        check_values(values)
    if request.file is not None:
        return requests.of_file(request.file)
    read_lengths(request.lengths or "")
    return None


def _plan(
    request: TuneRequest, bundles: Mapping[str, Bundle], payloads: tuple[Payload, ...] | None
) -> _Plan:
    contents = {name: sources.content(bundle) for name, bundle in bundles.items()}
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    scope = Scope(contents, available_cores(), not hidden and bool(read_gpus(os.environ)))
    usual = setting_of(next(iter(bundles)), scope, os.environ)
    start = with_values(request.begin, usual, scope)
    others = {"the beginning": start}
    if request.compare is not None:
        others["what it is compared with"] = with_values(request.compare, usual, scope)
    if payloads is None:
        content = scope.content(start)
        golden = content.golden.request
        payloads = requests.of_lengths(request.lengths or "", content.endpoint.task, golden)
    meter = Meter(request.goal, payloads, request.clients, request.seconds)
    return _Plan(scope, start, others, meter)
