"""Other processors, imitated on this one: conversion, parity and serving under each of their
instruction sets, as a table in docs/models.md.

    make check-processors
    python -m scripts.check_processors --json --levels AVX2 --max-length 16
    python -m scripts.check_processors --write --folder build/processors

MiniLM in every precision of both CPU engines. Each OpenVINO bundle is made under each level and
served under it by the real tritonserver; those made under the lowest and the highest are served
under all. Ends with 1 where an answer is out of its precision's tolerance. With --folder what a run
made stays there, and one that was cut short is taken up at the step it had come to: by the same
options, code, versions and processor alone, others are refused.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from benchmarks.servers.machine import commit, is_exact, versions
from scripts.generated_part import PAGE, described, load_average, write_part
from scripts.processor_levels import LEVELS, VARIABLE, imitable, processor_flags
from transformer_serving.contract.replacement import replace_file
from transformer_serving.desk.builders.table import ENGINES as ROWS
from transformer_serving.desk.parity.latency import facts

_STEP_S = 900
# Twice the size of MiniLM's attention heads, at which a fault was.
_MAX_LENGTH = 64
_ALL = "all that it has"
_STEPS = "scripts.processor_run"
STAMP = "stamp.json"
Rows = list[dict[str, Any]]
ENGINES = tuple(
    f"{engine}-{precision}"
    for engine in ("openvino", "onnxruntime")
    for precision in ROWS[engine].precisions
)


@dataclass(frozen=True)
class Row:
    """One engine made under one level: `made` is its distance there, as convert measures it,
    `served` by level that of the same bundle through Triton; None where a fault was found."""

    engine: str
    made_under: str
    made: float
    served: dict[str, float | None]
    faults: tuple[str, ...]


def stamp(levels: Sequence[str], engines: Sequence[str], max_length: int) -> dict[str, Any]:
    """All that a finished step depends on."""
    return {
        "levels": [*levels], "engines": [*engines], "max-length": max_length, "commit": commit(),
        "processor": facts()["processor"], "versions": versions(),
    }  # fmt: skip


def take(folder: Path, wanted: dict[str, Any]) -> None:
    """Have the folder for steps of this stamp. Raises SystemExit where it holds those of another,
    or of code that no commit names."""
    path = folder / STAMP
    if not any(folder.iterdir()):
        replace_file(path, json.dumps(wanted, indent=1) + "\n")
        return
    left: dict[str, Any] = json.loads(path.read_bytes()) if path.is_file() else {}
    others = [name for name, value in wanted.items() if left.get(name) != value]
    if not others and not is_exact(wanted["commit"]):
        others = ["changes of the code"]
    if others:
        raise SystemExit(
            f"error: {folder} holds the steps of a run with other {', '.join(others)}; name "
            "another folder, or remove it"
        )


def run(folder: Path, level: str, *arguments: str) -> Rows:
    """The step's rows; those that it left in the folder, if it has run."""
    left = folder / f"{arguments[0]} {level}.json"
    if left.is_file():
        found: Rows = json.loads(left.read_bytes())
        return found
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    if level != _ALL:
        environment[VARIABLE] = level
    done = subprocess.run(
        [sys.executable, "-P", "-m", _STEPS, *arguments],
        env={**environment, "PYTHONPATH": str(Path(__file__).parent.parent)},
        capture_output=True,
        text=True,
        timeout=_STEP_S,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"error: {arguments[0]} under {level} failed:\n{done.stderr[-2000:]}")
    rows: Rows = json.loads(done.stdout)
    replace_file(left, done.stdout)
    return rows


def check(
    folder: Path,
    levels: Sequence[str],
    max_length: int,
    progress: Progress,
    engines: Sequence[str] = ENGINES,
) -> list[Row]:
    task = progress.add_task("export", total=2 * len(levels) + 1)
    run(folder, _ALL, "prepare", str(folder), str(max_length))
    openvino = [engine for engine in engines if engine.startswith("openvino")]
    others = [engine for engine in engines if engine not in openvino]
    made: dict[tuple[str, str], dict[str, Any]] = {}
    for level in levels:
        progress.update(task, advance=1, description=f"made under {level}")
        built = [*openvino, *(others if level == levels[-1] else ())]
        for row in run(folder, level, "build", str(folder), str(folder / level), *built):
            made[level, row["engine"]] = row
    served: dict[tuple[str, str], dict[str, float | None]] = {key: {} for key in made}
    faults = {key: [row["fault"]] if row["fault"] else [] for key, row in made.items()}
    for level in levels:
        progress.update(task, advance=1, description=f"served under {level}")
        sources = [key for key in made if key[0] in (level, levels[0], levels[-1])]
        # What has no switch is served once.
        sources = [key for key in sources if key[1] in openvino or level == levels[-1]]
        places = [str(folder / source / engine) for source, engine in sources]
        for key, row in zip(sources, run(folder, level, "serve", *places), strict=True):
            served[key][level] = row["difference"]
            faults[key] += [row["fault"]] if row["fault"] else []
    return [
        Row(engine, level, row["difference"], served[level, engine], tuple(faults[level, engine]))
        for (level, engine), row in made.items()
    ]


def table(rows: Sequence[Row], levels: Sequence[str]) -> list[str]:
    """In Markdown, by lines: a row for each engine and level that it is served under."""
    lines = [
        f"| engine | instruction set | made there | made there, served | made under {levels[0]} | "
        f"made under {levels[-1]} |",
        "|---|---|---:|---:|---:|---:|",
    ]
    found = {(row.engine, row.made_under): row for row in rows}
    for engine in dict.fromkeys(row.engine for row in rows):
        for level in levels:
            own = found.get((engine, level))
            if own is None:
                continue
            others = [found.get((engine, source)) for source in (levels[0], levels[-1])]
            cells = [
                f"{own.made:.1e}",
                _cell(own, level),
                *(_cell(row, level) if row and row is not own else "" for row in others),
            ]
            name = level if engine.startswith("openvino") else "the processor's own"
            lines.append(f"| {engine.replace('-', ' ')} | {name} | {' | '.join(cells)} |")
    return lines


def _cell(row: Row, level: str) -> str:
    if level not in row.served:
        return ""
    difference = row.served[level]
    return "refused" if difference is None else f"{difference:.1e}"


def document(rows: Sequence[Row], levels: Sequence[str], load: float) -> str:
    left = [level.name for level in LEVELS if level not in imitable(processor_flags())]
    absent = f" Not imitable there: {', '.join(left)}." if left else ""
    return "\n".join((described(facts(), load) + absent, "", *table(rows, levels)))


def main() -> int:
    options = _options()
    names = [level.name for level in imitable(processor_flags())]
    levels = [name for name in (options.levels or names) if name in names] + [_ALL]
    for name in options.levels or ():
        if name not in names:
            sys.exit(f"error: this processor cannot imitate '{name}'; it can: {', '.join(names)}")
    load = load_average()
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with (
        _folder(options.folder) as folder,
        Progress(*columns, console=Console(stderr=True)) as progress,
    ):
        take(folder, stamp(levels, options.engines, options.max_length))
        rows = check(folder, levels, options.max_length, progress, options.engines)
    if options.json:
        sys.stdout.write(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    else:
        sys.stdout.write("\n".join(table(rows, levels)) + "\n")
    if options.write:
        page = PAGE.with_name("models.md")
        write_part("check-processors", document(rows, levels, load), page)
    faults = [
        f"{row.engine}, made under {row.made_under}: {fault}"
        for row in rows
        for fault in row.faults
    ]
    for fault in faults:
        sys.stderr.write(f"error: {fault}\n")
    return 1 if faults else 0


@contextmanager
def _folder(named: Path | None) -> Iterator[Path]:
    if named is not None:
        named.mkdir(parents=True, exist_ok=True)
        yield named.absolute()
        return
    with tempfile.TemporaryDirectory() as scratch:
        yield Path(scratch)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument("--levels", nargs="+", help="only these instruction sets, and the whole")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=ENGINES, metavar="ENGINE")
    parser.add_argument("--max-length", type=int, default=_MAX_LENGTH, help="tokens of a text")
    parser.add_argument("--folder", type=Path, help="keep the steps' work here, and take it up")
    parser.add_argument("--write", action="store_true", help="put the table into docs/models.md")
    options = parser.parse_args()
    whole = not options.levels and set(options.engines) == set(ENGINES)
    if options.write and not (whole and options.max_length == _MAX_LENGTH):
        parser.error(
            "--write is of a whole run, the table has every row: leave out --levels, --engines and "
            "--max-length"
        )
    return options


if __name__ == "__main__":
    sys.exit(main())
