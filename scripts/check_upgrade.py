"""An embedded stack with its data goes from another commit of this kit to this one, and back.

    make check-upgrade FROM=v0.1.0

The other commit is checked out below build/ and runs in this environment. Its own `up --demo` fills
the stack; then this kit takes it over, deploys, rolls back and hands it back. After each step both
endpoints must answer as they did, from the bundle that is said to be there.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from scripts.generated_part import described, load_average, write_part
from transformer_serving.contract.manifest import Manifest, read_manifest
from transformer_serving.desk.deploy.golden import wait_for_golden
from transformer_serving.desk.parity.latency import facts

ROOT = Path(__file__).parent.parent
_STEP_S = 900
_RIGHT_S = 120.0


@dataclass(frozen=True)
class Kit:
    """A commit of this project, run as a user runs it."""

    name: str
    folder: Path
    state: Path

    def run(self, *arguments: str) -> str:
        """Its command line. Raises SystemExit with what it said."""
        # The command line has moved since the first commits that one may come from.
        rooms = self.folder / "transformer_serving" / "desk"
        module = "transformer_serving.desk.cli" if rooms.is_dir() else "transformer_serving.cli"
        code = f"from {module} import main; main()"
        environment = {
            **os.environ,
            "PYTHONPATH": str(self.folder),
            "TRANSFORMER_SERVING_STATE": str(self.state),
        }
        try:
            done = subprocess.run(
                [sys.executable, "-P", "-c", code, *arguments],
                cwd=self.folder, env=environment, capture_output=True, text=True, timeout=_STEP_S,
                check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise SystemExit(
                f"error: {self.name}: {arguments[0]} took more than {_STEP_S} s: what else runs "
                "on this machine?"
            ) from None
        if done.returncode:
            raise SystemExit(f"error: {self.name}: {arguments[0]}:\n{done.stdout}{done.stderr}")
        return done.stdout

    def demo(self) -> dict[str, Manifest]:
        """What its demo serves, by endpoint."""
        files = (self.folder / "build" / "demo").glob("*/model/manifest.json")
        found = {path.parent.parent.name: read_manifest(path.read_bytes()) for path in files}
        if not found:
            raise SystemExit(f"error: {self.name} has no demo in {self.folder}/build/demo")
        return found


def wait_until_right(base: int, serving: Mapping[str, Manifest]) -> float:
    """Seconds until every endpoint gave the golden answer of the bundle that it should serve.

    Raises SystemExit where one does not.
    """
    begun = time.perf_counter()
    for name, manifest in serving.items():
        url = f"http://127.0.0.1:{base}/serve/{name}"
        why = wait_for_golden(url, manifest.golden, manifest.bundle_version, _RIGHT_S)
        if why is not None:
            raise SystemExit(f"error: {name}: {why}")
    return time.perf_counter() - begun


class Way:
    """The steps of one check, each noted as a row when its endpoints answered right."""

    def __init__(self, base: int, console: Console) -> None:
        self.rows: list[dict[str, Any]] = []
        self._base, self._console = base, console

    def step(
        self,
        kit: Kit,
        command: Sequence[Sequence[str]],
        serving: Callable[[], Mapping[str, Manifest]],
    ) -> None:
        begun = time.perf_counter()
        for arguments in command:
            kit.run(*arguments)
        took_s = time.perf_counter() - begun
        right_s = wait_until_right(self._base, serving())
        shown = ", then ".join(" ".join(arguments) for arguments in command)
        row = {"kit": kit.name, "commands": shown, "seconds": round(took_s, 1)}
        self.rows.append({**row, "seconds_until_right": round(right_s, 1)})
        self._console.print(self.rows[-1], soft_wrap=True)


def check_upgrade(old: Kit, new: Kit, base: int, way: Way) -> None:
    """There with the data of the other kit, and back with that of this one."""
    way.step(old, [["up", "--demo", "--port-base", str(base)]], old.demo)
    old.run("down")
    way.step(new, [["up"]], old.demo)
    way.step(new, [["up", "--demo"]], new.demo)
    changed = [name for name, manifest in new.demo().items()
               if manifest.bundle_version != old.demo()[name].bundle_version]  # fmt: skip
    if changed:
        way.step(new, [["rollback", name] for name in changed], old.demo)
        way.step(new, [["up", "--demo"]], new.demo)
    new.run("down")
    way.step(old, [["up"]], new.demo)
    old.run("down")
    way.step(new, [["up"]], new.demo)
    new.run("down")


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """In Markdown, by lines."""
    head = ["| kit | commands | seconds | until both answer right |", "|---|---|---:|---:|"]
    return head + [
        f"| {row['kit']} | {row['commands']} | {row['seconds']} | {row['seconds_until_right']} |"
        for row in rows
    ]


def checked_out(reference: str) -> Path:
    """A work tree of that commit below build/, made anew."""
    folder = ROOT / "build" / "upgrade" / reference.replace("/", "-")
    if folder.exists():
        _git("worktree", "remove", "--force", str(folder))
    folder.parent.mkdir(parents=True, exist_ok=True)
    _git("worktree", "prune")
    _git("worktree", "add", "--detach", str(folder), reference)
    return folder


def _git(*arguments: str) -> None:
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"error: git {arguments[0]}: {done.stderr.strip()}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("reference", help="the other kit: a tag or commit of this repository")
    parser.add_argument("--port-base", type=int, default=18080)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true", help="the table into docs/reliability.md")
    options = parser.parse_args()
    folder = checked_out(options.reference)
    console, load = Console(stderr=options.json), load_average()
    with tempfile.TemporaryDirectory(prefix="upgrade-") as name:
        state = Path(name) / "state"
        old, new = Kit(options.reference, folder, state), Kit("this kit", ROOT, state)
        way = Way(options.port_base, console)
        try:
            check_upgrade(old, new, options.port_base, way)
        finally:
            new.run("down")
            _git("worktree", "remove", "--force", str(folder))
    if options.write:
        content = "\n".join([described(facts(), load), "", *table(way.rows)])
        write_part("check-upgrade", content, ROOT / "docs" / "reliability.md")
    if options.json:
        sys.stdout.write(json.dumps(way.rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
