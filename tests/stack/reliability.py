"""`make reliability SEED=...`: every fault and pair of faults, hundreds of random changes, and many
endpoints; writes what was seen to docs/reliability.md.
"""

from __future__ import annotations

import argparse
import platform
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import psutil

from engine.controller import stuck_loads
from tests.stack.changes import Changed, random_changes
from tests.stack.conftest import ROOT, Stack, started
from tests.stack.desk import register
from tests.stack.editor import Editor, editor
from tests.stack.faults import BODY, PAIRS, SINGLE, Fault, Outcome, strike
from tests.stack.many import Grown, many_endpoints
from transformer_serving.local import watchdog
from transformer_serving.local.parts import PARTS

CLIENTS = 16
_STEPS = ("faults", "changes", "endpoints")


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10**6)
    folder = tempfile.mkdtemp(prefix="reliability-")
    _say(f"seed {seed}, in {folder}")
    with started(Path(folder) / "stack") as stack, editor(stack) as edit:
        bundles = register(stack, Path(folder), (1.0, -1.0, 2.0))
        if "faults" in options.only:
            edit.add("struck", bundles[0].bundle, bundles[0].model_id)
            stack.until(lambda: stack.seen("struck", BODY).status == 200, "it is served")
            faults, left = _struck(stack, seed, options.pairs), _left(stack)
            _cleared(stack, edit)
        if "changes" in options.only:
            _say(f"{options.changes} random changes")
            # They look at everything that Triton serves.
            changed = random_changes(
                stack, edit, bundles, seed, changes=options.changes, faults=options.changes // 15,
                exactly=True,
            )  # fmt: skip
            _say(f"{changed}")
            _cleared(stack, edit)
        if "endpoints" in options.only:
            _say(f"{options.endpoints} endpoints")
            grown = many_endpoints(
                stack, edit, bundles, seed, endpoints=options.endpoints, changes=20
            )
            _say(f"{grown}")
            grown.check()
    shutil.rmtree(folder)  # kept after a failure: the logs tell why
    if set(options.only) != set(_STEPS):
        return
    text = page(seed, options, faults, left, changed, grown)
    options.output.write_text(text, "utf-8")
    _say(f"wrote {options.output}")


def _cleared(stack: Stack, edit: Editor) -> None:
    edit.clear()
    stack.until(lambda: not stack.rows(), "everything is removed")


def _struck(stack: Stack, seed: int, pairs: int) -> list[Outcome]:
    dice = random.Random(seed)
    chosen = dice.sample(PAIRS, min(pairs, len(PAIRS)))
    strikes: list[tuple[Fault, ...]] = [(fault,) for fault in SINGLE]
    outcomes = []
    for faults in [*strikes, *chosen]:
        outcomes.append(strike(stack, "struck", faults, CLIENTS))
        _say(f"{outcomes[-1]}: {outcomes[-1].recovery_s:.1f} s, {outcomes[-1].seen()}")
    return outcomes


def _left(stack: Stack) -> dict[str, float]:
    """Seconds from SIGTERM until each part has left."""
    seconds = {}
    for name in [part.name for part in PARTS]:
        process = psutil.Process(stack.parts()[name]["pid"])
        family = [process, *process.children(recursive=True)]
        begun = time.monotonic()
        process.terminate()
        psutil.wait_procs(family, timeout=30)
        seconds[name] = time.monotonic() - begun
        stack.until(lambda name=name: stack.parts()[name]["health"] == "ok", f"{name} is back")  # type: ignore[misc]
    return seconds


def page(
    seed: int,
    options: argparse.Namespace,
    faults: list[Outcome],
    left: dict[str, float],
    changed: Changed,
    grown: Grown,
) -> str:
    return "\n".join(
        [
            _HEAD.format(
                stopped=watchdog.STOPPED_LOOKS,
                silent=watchdog.SILENT_PROBES,
                timeout=watchdog.PROBE_TIMEOUT_S,
                start=watchdog.START_S,
                notice=stuck_loads.NOTICE_S,
            ),
            *_circumstances(seed, options),
            f"## Faults under a load of {CLIENTS} clients\n",
            "| fault | answers that the clients got | longest wait | all well again after |",
            "|---|---|---:|---:|",
            *(
                f"| {outcome} | {outcome.seen()} | {outcome.longest_s:.1f} s "
                f"| {outcome.recovery_s:.1f} s |"
                for outcome in faults
            ),
            "",
            f"Slowest recovery: {max(outcome.recovery_s for outcome in faults):.1f} s.\n",
            "## SIGTERM\n",
            ", ".join(f"{name} left after {s:.1f} s" for name, s in left.items()) + ".\n",
            "## Random changes\n",
            f"{changed.changes} changes of the serving service, with "
            f"{sum(changed.faults.values())} faults between them "
            f"({', '.join(f'{n} x {fault}' for fault, n in changed.faults.most_common())}). "
            f"Triton then served exactly the {len(changed.served)} endpoints and versions of the "
            "control plane. A client of another endpoint got "
            f"{', '.join(f'{n} x {status}' for status, n in changed.answers.most_common())}.\n",
            "## Many endpoints\n",
            f"{options.endpoints} endpoints, all asked, before and after 20 changes:\n",
            f"- before: {grown.before}",
            f"- after: {grown.after}",
            "",
        ]
    )


_HEAD = """# Reliability

What the embedded stack does when its parts die, hang or lose each other. Everything below is made
by `make reliability`; a shorter run with a fixed seed is part of `make test-stack`.

Clients get the right answer, or 503 with `Retry-After`, or 504 when the request's own deadline
passed. One worker is the front door of the embedded stack: while it is being restarted, and only
then, a connection is refused or closed. No answer was wrong, and no request waited without end; the
run fails otherwise.

## Who restarts what

supervisord restarts a part that ends. The watchdog looks once a second for a part that hangs and
ends it, so that supervisord restarts it:

| state of the part | ended after |
|---|---|
| stopped (SIGSTOP), or one of its processes is | {stopped} looks |
| answered before and no longer does | {silent} probes without an answer, {timeout:.0f} s each |
| has not answered since its start | {start:.0f} s |

Any HTTP status is an answer, and a process that a debugger holds is left alone. The controller has
no port; it shows that it works by the time of its state file. What the watchdog did stands in
`transformer-serving logs watchdog`.

A Triton that is killed may leave engine processes that never end by themselves. They hold none of
its connections, so that its clients see its end, and they are ended before the next Triton starts.

An engine process may also die while it loads its model. tritonserver 2.51 does not notice that
within the process's first tenth of a second, and keeps the model "loading" without end. The
controller, which sees such a process dead for {notice:.0f} s beside a load that goes on, ends
Triton; the supervisor starts it again, and every endpoint comes back with its last good bundle.
That load is tried again after 2 s, then after growing pauses of up to an hour. A slow
load is waited for: its process lives. A process that dies later, while it serves, is found and
loaded again.
"""


def _circumstances(seed: int, options: argparse.Namespace) -> Iterator[str]:
    memory = psutil.virtual_memory().total / 2**30
    packages = ", ".join(f"{name} {version(name)}" for name in ("clearml", "clearml-serving"))
    yield "## This run\n"
    yield f"- {datetime.now(UTC):%Y-%m-%d}, `make reliability SEED={seed}`"
    yield (
        f"- {psutil.cpu_count()} cores, {memory:.0f} GiB, Linux {platform.release()}, "
        f"Python {platform.python_version()}; load average {psutil.getloadavg()[0]:.1f} at the end"
    )
    yield f"- tritonserver 2.51.0, {packages}"
    yield "- bundles of a few kilobytes, so the times are the stack's own\n"


def _say(line: str) -> None:
    sys.stdout.write(f"{datetime.now(UTC):%H:%M:%S} {line}\n")
    sys.stdout.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--seed", type=int, help="of pairs, changes and kills; printed if not given"
    )
    parser.add_argument("--pairs", type=int, default=len(PAIRS), help="pairs of faults")
    parser.add_argument("--changes", type=int, default=500, help="random changes of the service")
    parser.add_argument("--endpoints", type=int, default=50, help="endpoints served at one time")
    parser.add_argument(
        "--only", nargs="+", choices=_STEPS, default=_STEPS, help="these steps; no page is written"
    )
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "reliability.md")
    return parser


if __name__ == "__main__":
    main()
