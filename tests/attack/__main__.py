"""`make attack`: everything that an attack on a stack found, tried again on one of its own.

    make attack
    python -m tests.attack --short --only pages --json

Ends with 1 where a case does not hold. Statuses, counts and memory decide; times are only told.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Sequence
from types import FrameType

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from scripts.generated_part import PAGE, load_average, write_part
from tests.attack.cases import CASES, Case
from tests.attack.ground import Ground, opened
from tests.attack.report import Row, document, table
from tests.attack.seen import Seen


def tried(ground: Ground, case: Case) -> Row:
    """A case whose own steps fail does not hold; the others are tried all the same."""
    begun = time.monotonic()
    try:
        seen = case.run(ground)
    except Exception as error:
        seen = Seen(f"{type(error).__name__}: {error}"[:500], False)
    return Row(case, seen, time.monotonic() - begun)


def attack(cases: Sequence[Case], *, short: bool, progress: Progress) -> list[Row]:
    task = progress.add_task("the stack starts", total=len(cases))
    rows: list[Row] = []
    with opened(short=short) as ground:
        for case in cases:
            progress.update(task, description=case.name)
            rows.append(tried(ground, case))
            if rows[-1].broken:
                progress.console.print(f"{case.name}: {rows[-1].seen}", markup=False)
            progress.update(task, advance=1)
        progress.update(task, description="the stack stops")
    return rows


def chosen(word: str = "", *, short: bool) -> list[Case]:
    return [case for case in CASES if word in case.name and (case.short or not short)]


def main() -> int:
    options = _options()
    signal.signal(signal.SIGTERM, _terminated)
    cases = chosen(options.only or "", short=options.short and not options.only)
    if not cases:
        names = ", ".join(case.name for case in CASES)
        sys.exit(f"error: no case has '{options.only}' in its name; there are: {names}")
    load = load_average()
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        rows = attack(cases, short=options.short, progress=progress)
    if options.json:
        found = {"load_before": round(load, 2), "rows": [row.as_json() for row in rows]}
        sys.stdout.write(json.dumps(found, indent=1) + "\n")
    else:
        Console().print(table(rows))
    if options.write:
        write_part("attack", document(rows, load), PAGE.with_name("security.md"))
    broken = [row.case.name for row in rows if row.broken]
    if broken:
        sys.stderr.write(f"error: does not hold: {', '.join(broken)}\n")
    return 1 if broken else 0


def _terminated(number: int, _: FrameType | None) -> None:
    """As Ctrl-C, so that the stack is stopped and removed."""
    sys.exit(128 + number)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--short", action="store_true", help="seconds a case, as make test-stack")
    parser.add_argument("--only", metavar="WORD", help="only cases with this in their name")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument("--write", action="store_true", help="put the table into docs/security.md")
    options = parser.parse_args()
    if options.write and (options.short or options.only):
        parser.error("--write needs the whole attack: leave --short and --only out")
    return options


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("stopped; its stack is gone")
