"""An --env-file as docker compose reads it: NAME=VALUE lines, comments, quotes.

Tested by tests/doctor/test_command.py.
"""

from __future__ import annotations

import re
from pathlib import Path

from transformer_serving.desk.failure import Failure

_LINE = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*)")
_COMMENT = re.compile(r"\s+#.*$")
_QUOTED = re.compile(r"""(["'])(.*?)\1\s*(?:#.*)?""")


def read_env_file(path: Path) -> dict[str, str]:
    """Raises Failure (exit code 2) naming the first line that is no NAME=VALUE; never its text."""
    try:
        # Others that splitlines takes for an end of a line may stand in a value.
        lines = path.read_text("utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8"
        raise Failure(f"--env-file {path}: {reason}", exit_code=2) from error
    values = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        found = _LINE.fullmatch(text)
        if found is None:
            raise Failure(
                f"--env-file {path}, line {number}: is not NAME=VALUE; correct it or put a '#' "
                "before it",
                exit_code=2,
            )
        values[found[1]] = _value(found[2])
    return values


def _value(text: str) -> str:
    quoted = _QUOTED.fullmatch(text)
    return quoted[2] if quoted else _COMMENT.sub("", text)
