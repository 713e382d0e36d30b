"""`make reliability SEED=...`: every fault and pair of faults, hundreds of random changes, many
endpoints, and every fault once more with a model of the real size, which `make reliability-demo`
does alone; writes what was seen into their parts of docs/reliability.md.
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

from scripts.generated_part import write_part
from tests.stack.changes import Changed, random_changes
from tests.stack.conftest import ROOT, Stack, started
from tests.stack.desk import register
from tests.stack.editor import Editor, editor
from tests.stack.faults import BODY, PAIRS, SINGLE, Fault, Outcome, strike
from tests.stack.many import Grown, many_endpoints
from transformer_serving.desk.parity.latency import facts

CLIENTS = 16
# Of many endpoints. The host loads every endpoint's file again at each, so what a load leaves
# behind shows: 300 kB of 50 endpoints at each of these are 600 MB, where the worker may grow by 32.
ENDPOINT_CHANGES = 40
PAGE = ROOT / "docs" / "reliability.md"
_SMALL = ("faults", "changes", "endpoints")
_STEPS = (*_SMALL, "demo")
DEMO = "transformer_model"


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
                stack, edit, bundles, seed, endpoints=options.endpoints, changes=ENDPOINT_CHANGES
            )
            _say(f"{grown}")
            grown.check()
    if set(options.only) >= set(_SMALL):
        text = part(seed, options, faults, left, changed, grown)
        write_part("reliability", text, PAGE)
    if "demo" in options.only:
        write_part("reliability-demo", demo_part(_demo(Path(folder))), PAGE)
    shutil.rmtree(folder)  # kept after a failure: the logs tell why


def _cleared(stack: Stack, edit: Editor) -> None:
    edit.clear()
    stack.until(lambda: not stack.rows(), "everything is removed")


def _struck(stack: Stack, seed: int, pairs: int) -> list[Outcome]:
    dice = random.Random(seed)
    chosen = dice.sample(PAIRS, min(pairs, len(PAIRS)))
    strikes: list[tuple[Fault, ...]] = [(fault,) for fault in SINGLE]
    return _strikes(stack, "struck", [*strikes, *chosen])


def _strikes(stack: Stack, endpoint: str, chosen: Sequence[Sequence[Fault]]) -> list[Outcome]:
    outcomes = []
    for faults in chosen:
        outcomes.append(strike(stack, endpoint, faults, CLIENTS, pause_s=0.0))
        _say(f"{outcomes[-1]}: {outcomes[-1].recovery_s:.1f} s, {outcomes[-1].seen()}")
    return outcomes


def _demo(folder: Path) -> list[Outcome]:
    """Every fault alone, with the model whose engine takes its time to load."""
    _say("the demo model")
    with started(folder / "demo", "--demo") as stack:
        stack.until(lambda: stack.seen(DEMO, BODY).status == 200, "it is served")
        return _strikes(stack, DEMO, [(fault,) for fault in SINGLE])


def _left(stack: Stack) -> dict[str, float]:
    """Seconds from SIGTERM until each part has left."""
    seconds = {}
    for name in list(stack.parts()):
        process = psutil.Process(stack.parts()[name]["pid"])
        family = [process, *process.children(recursive=True)]
        begun = time.monotonic()
        process.terminate()
        psutil.wait_procs(family, timeout=30)
        seconds[name] = time.monotonic() - begun
        stack.until(lambda name=name: stack.parts()[name]["health"] == "ok", f"{name} is back")  # type: ignore[misc]
    return seconds


def part(
    seed: int,
    options: argparse.Namespace,
    faults: list[Outcome],
    left: dict[str, float],
    changed: Changed,
    grown: Grown,
) -> str:
    return "\n".join(
        [
            "## The last run\n",
            *_circumstances(f"make reliability SEED={seed}"),
            "- bundles of a few kilobytes, so that the times are the stack's own\n",
            f"### Faults under a load of {CLIENTS} clients\n",
            *_table(faults),
            "### SIGTERM\n",
            ", ".join(f"{name} left after {s:.1f} s" for name, s in left.items()) + ".\n",
            "### Random changes\n",
            f"{changed.changes} changes of the serving service, with "
            f"{sum(changed.faults.values())} faults between them "
            f"({', '.join(f'{n} x {fault}' for fault, n in changed.faults.most_common())}). "
            f"Triton then served exactly the {len(changed.served)} endpoints and versions of the "
            "control plane. A client of another endpoint got "
            f"{', '.join(f'{n} x {status}' for status, n in changed.answers.most_common())}.\n",
            "### Many endpoints\n",
            f"{options.endpoints} endpoints, all asked, before and after {ENDPOINT_CHANGES} "
            "changes:\n",
            f"- before: {grown.before}",
            f"- after: {grown.after}",
        ]
    )


def _table(outcomes: Sequence[Outcome]) -> list[str]:
    return [
        "| fault | answers that the clients got | longest wait | all well again after |",
        "|---|---|---:|---:|",
        *(
            f"| {outcome} | {outcome.seen()} | {outcome.longest_s:.1f} s "
            f"| {outcome.recovery_s:.1f} s |"
            for outcome in outcomes
        ),
        "",
        f"Slowest recovery: {max(outcome.recovery_s for outcome in outcomes):.1f} s.\n",
    ]


def demo_part(outcomes: list[Outcome]) -> str:
    return "\n".join(
        [
            "### The same faults with the demo model, 90 MB\n",
            *_circumstances("make reliability-demo"),
            "",
            *_table(outcomes),
        ]
    )


def _circumstances(command: str) -> Iterator[str]:
    memory = psutil.virtual_memory().total / 2**30
    packages = ", ".join(f"{name} {version(name)}" for name in ("clearml", "clearml-serving"))
    yield f"- {datetime.now(UTC):%Y-%m-%d}, `{command}`"
    yield (
        f"- {facts()['processor']}, {psutil.cpu_count()} cores, {memory:.0f} GiB, "
        f"Linux {platform.release()}, "
        f"Python {platform.python_version()}; load average {psutil.getloadavg()[0]:.1f} at the end"
    )
    yield f"- tritonserver 2.51.0, {packages}"


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
        "--only",
        nargs="+",
        choices=_STEPS,
        default=_STEPS,
        help="these steps; all but demo together are one part of the page",
    )
    return parser


if __name__ == "__main__":
    main()
