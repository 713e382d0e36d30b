"""`logs`: the end of the parts' logs, or all that they have of one request.

Tested by tests/stack/test_commands.py and tests/stack/test_watch.py.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from transformer_serving.contract.error_line import printable
from transformer_serving.desk.cli.options import json_option, state_option
from transformer_serving.desk.failure import Failure


@click.command()
@click.argument("part", required=False)
@click.option("-f", "--follow", is_flag=True, help="Go on printing what is added.")
@click.option("-n", "--lines", type=int, metavar="N", help="Lines from the end.  [default: 50]")
@click.option("--request", metavar="ID",
              help="Every line of the request with this x-request-id, of rotated logs too; exit "
              "code 1 where there is none.")  # fmt: skip
@state_option
@json_option
def logs(
    part: str | None,
    follow: bool,
    lines: int | None,
    request: str | None,
    state: str | None,
    as_json: bool,
) -> None:
    """Print the end of the logs of one PART, or of all; or what they have of one request."""
    from transformer_serving.desk.local.parts import BY_NAME
    from transformer_serving.desk.local.record import require_record, state_directory

    folder = state_directory(state)
    require_record(folder)
    names = [*BY_NAME, "supervisor"]
    if part is not None and part not in names:
        raise Failure(f"there is no part '{part}'; the parts are {', '.join(names)}", exit_code=2)
    names = [part] if part else names
    if request is None and as_json:
        raise Failure("--json is for --request; the logs are printed as they are", exit_code=2)
    if request is None:
        _print_ends(folder / "logs", names, lines=50 if lines is None else lines, follow=follow)
    elif follow or lines is not None:
        raise Failure("--request prints all its lines: leave --follow and --lines out", exit_code=2)
    else:
        _print_request(folder / "logs", names, request, as_json=as_json)


def _print_ends(logs: Path, names: Sequence[str], *, lines: int, follow: bool) -> None:
    files = [logs / f"{name}.log" for name in names]
    present = [str(file) for file in files if file.exists()]
    if not present:
        raise _no_log(logs, names)
    headed = ["-v"] if len(present) > 1 else []
    older = [row for file in present for row in _rotated(Path(file), lines)]
    command = ["tail", "-n", str(lines), *(["-F"] if follow else []), *present]
    try:
        for file, missing in older:
            subprocess.run(["tail", *headed, "-n", str(missing), file], check=False)
        code = subprocess.run(command, check=False).returncode
    except KeyboardInterrupt:
        return
    if code:
        # tail has said why; one that a signal ended leaves as a shell would.
        sys.exit(code if code > 0 else 128 - code)


def _rotated(file: Path, lines: int) -> list[tuple[str, int]]:
    """The files before it, oldest first, and how many lines of each make up those that it has too
    few of."""
    found: list[tuple[str, int]] = []
    left, number = lines - _count(file), 1
    while left > 0 and (older := file.with_name(f"{file.name}.{number}")).exists():
        found.insert(0, (str(older), left))
        left, number = left - _count(older), number + 1
    return found


def _count(file: Path) -> int:
    try:
        with file.open("rb") as stream:
            return sum(1 for _ in stream)
    except OSError:
        # tail says why.
        return 0


def _no_log(logs: Path, names: Sequence[str]) -> Failure:
    others = sorted(file.stem for file in logs.glob("*.log"))
    if not others:
        return Failure(f"no logs in {logs} yet")
    has = "has one" if len(others) == 1 else "have one"
    return Failure(f"{', '.join(names)} has no log in {logs}; {', '.join(others)} {has}")


def _print_request(logs: Path, names: Sequence[str], request: str, *, as_json: bool) -> None:
    from transformer_serving.desk.local.request_search import check_id, find

    check_id(request)
    found, files = find(logs, names, request)
    if as_json:
        values = {
            "request_id": request,
            "searched": [str(path) for path in files],
            "lines": [line.as_json() for line in found],
        }
        click.echo(json.dumps(values, indent=2))
    else:
        for line in found:
            # Triton's and the engines' lines may hold what a terminal would obey.
            click.echo(f"{line.file}:{line.number}: {printable(line.text)}")
    if not found:
        looked = ", ".join(path.name for path in files) or "no file"
        raise Failure(
            f"no line has that request id; looked in {logs} at {looked}. Only answers of 500 and "
            "above and streams that broke are logged, of each code one a second, unless the stack "
            "was started with TRANSFORMER_SERVING_LOG_REQUESTS=1"
        )


COMMANDS = (logs,)
