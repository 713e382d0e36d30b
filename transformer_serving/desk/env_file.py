"""An --env-file as docker compose reads it: NAME=VALUE lines, comments, quotes, $NAME.

Tested by tests/doctor/test_env_file.py, and beside compose itself by tests/compose/test_config.py.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from transformer_serving.desk.failure import Failure

_LINE = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*)")
_COMMENT = re.compile(r"\s+#.*$")
# What follows the closing quote counts for nothing.
_LITERAL = re.compile(r"'((?:\\'|[^'])*)'")
_QUOTED = re.compile(r'"((?:\\.|[^"\\])*)"')
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "$": "$", "\\": "\\"}
_ESCAPE = r'\\([nrt"$\\])'
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
# $$, $NAME, ${NAME}, ${NAME-TEXT}, ${NAME:-TEXT}, and whatever else ${ begins. A lone $ is itself.
_REFERENCE = rf"\$(?:(\$)|({_NAME})|\{{({_NAME})(?:(:?-)([^${{}}]*))?\}}|(\{{))"
_PLAIN = re.compile(_REFERENCE)
_IN_QUOTES = re.compile(f"{_REFERENCE}|{_ESCAPE}")
_AS_IT_STANDS = "write $$ for each '$', or put the value between single quotes"


def read_env_file(path: Path, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """`environment` is the shell's, of which a $NAME is taken before it is of a line above.

    Raises Failure (exit code 2) naming the first line that is no NAME=VALUE or that compose would
    make something else of; never its text.
    """
    try:
        # Others that splitlines takes for an end of a line may stand in a value.
        lines = path.read_text("utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8"
        raise Failure(f"--env-file {path}: {reason}", exit_code=2) from error
    values: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        try:
            name, value = _named(text, {**values, **environment})
        except ValueError as error:
            raise Failure(f"--env-file {path}, line {number}: {error}", exit_code=2) from None
        values[name] = value
    return values


def _named(text: str, known: Mapping[str, str]) -> tuple[str, str]:
    """A line's name and value. Raises ValueError."""
    found = _LINE.fullmatch(text)
    if found is None:
        raise ValueError("is not NAME=VALUE; correct it or put a '#' before it")
    name, value = found[1], found[2]
    if literal := _LITERAL.match(value):
        return name, literal[1].replace("\\'", "'")
    if quoted := _QUOTED.match(value):
        return name, _IN_QUOTES.sub(lambda one: _put(one, known), quoted[1])
    if value[:1] in ("'", '"'):
        raise ValueError("its quote does not end on the line")
    return name, _PLAIN.sub(lambda one: _put(one, known), _COMMENT.sub("", value))


def _put(found: re.Match[str], known: Mapping[str, str]) -> str:
    """What stands in the place of a $ or of a backslash. Raises ValueError."""
    dollar, bare, braced, otherwise, default, other, *escaped = found.groups()
    if escaped and escaped[0]:
        return _ESCAPES[escaped[0]]
    if dollar:
        return "$"
    if other:
        raise ValueError(f"is of a form that is not read here after a '$': {_AS_IT_STANDS}")
    value = known.get(bare or braced)
    if otherwise and (value is None or (not value and otherwise == ":-")):
        return str(default)
    if value is None:
        raise ValueError(
            "docker compose takes what follows a '$' there for the name of a variable, and none of "
            f"that name is set, so that it leaves it out: {_AS_IT_STANDS}"
        )
    return value
