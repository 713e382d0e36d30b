"""An --env-file as docker compose reads it: NAME=VALUE lines, comments, quotes, $NAME.

Tested by tests/doctor/test_env_file.py and tests/compose/test_config.py.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from transformer_serving.desk.failure import Failure

_BLANK = r"\t\v\f\r \x85\xa0"
_BETWEEN = re.compile(rf"(?:[{_BLANK}\n]|#[^\n]*)*")
# A colon is taken as well, and a name alone has the shell's value.
_NAMED = re.compile(
    rf"(?:export[{_BLANK}]+)?([\w.\-\[\]]+)[{_BLANK}]*(?:(?P<is_given>[=:])[{_BLANK}]*|\n|\Z)"
)
# To the end of the line, or to that of the quote, on whichever line.
_VALUE = re.compile(r"""(?s:(?P<quote>['"])(?P<text>(?:\\.|(?!(?P=quote))[^\\])*)(?P=quote))""")
_PLAIN = re.compile(r"[^\n]*")
_ESCAPED_QUOTE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED = re.compile(r'\\(?:([abfnrtv"\\$])|0(\d{0,3}))')
_CHARACTER = re.compile("[0-3][0-7]{2}")
# What stands for a $ is written as in the rest of the value.
_ESCAPES = dict(zip("abfnrtv", "\a\b\f\n\r\t\v", strict=True)) | {'"': '"', "\\": "\\", "$": "$$"}
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
# A lone $ is itself.
_REFERENCE = re.compile(rf"\$(?:(?P<dollar>\$)|(?P<name>{_NAME})|\{{)")
_IN_BRACES = re.compile(rf"({_NAME})(?:(:?)([-+?])(.*))?", re.DOTALL)
_AS_IT_STANDS = "write $$ for it, or put the value between single quotes"


@dataclass(frozen=True)
class _Statement:
    """One line's; `text` None: a name alone."""

    line: int
    name: str
    text: str | None
    quote: str | None = None

    def value(self, known: Mapping[str, str]) -> str | None:
        """None for a name alone that the shell does not have. Raises ValueError."""
        if self.text is None:
            return known.get(self.name)
        if self.quote is None:
            return _expanded(self.text.partition(" #")[0].rstrip(), known)
        inside = _ESCAPED_QUOTE.sub(lambda one: one[one[1] == self.quote], self.text)
        return inside if self.quote == "'" else _expanded(_ESCAPED.sub(_unescaped, inside), known)


def read_env_file(
    path: Path,
    environment: Mapping[str, str] = os.environ,
    names: Collection[str] | None = None,
) -> dict[str, str]:
    """`environment` is the shell's, of which a $NAME is taken before it is of a line above.

    Raises Failure (exit code 2) naming the first line that compose refuses, or of which it would
    leave something out; never its text. Where `names` are given, a value of another name that
    cannot be read is no failure: it is not in the answer.
    """
    try:
        # Of a byte that is no UTF-8 containers get the same character.
        text = path.read_bytes().decode("utf-8-sig", "replace").replace("\r\n", "\n")
    except OSError as error:
        raise Failure(f"--env-file {path}: {error.strerror}", exit_code=2) from error
    values: dict[str, str] = {}
    for statement in _statements(path, text):
        try:
            value = statement.value({**values, **environment})
        except ValueError as error:
            if names is None or statement.name in names:
                raise _refused(path, statement.line, str(error)) from None
            value = None
        if value is not None:
            values[statement.name] = value
    return values


def _statements(path: Path, text: str) -> Iterator[_Statement]:
    """Raises Failure where compose reads none."""
    at = 0
    while (at := _after(_BETWEEN, text, at)) < len(text):
        line = text.count("\n", 0, at) + 1
        named = _NAMED.match(text, at)
        if named is None:
            raise _refused(path, line, "is not NAME=VALUE; correct it or put a '#' before it")
        at = named.end()
        if not named["is_given"]:
            yield _Statement(line, named[1], None)
        elif text[at : at + 1] in ("'", '"'):
            quoted = _VALUE.match(text, at)
            if quoted is None:
                raise _refused(path, line, "its quote does not end")
            at = quoted.end()
            yield _Statement(line, named[1], quoted["text"], quoted["quote"])
        else:
            start, at = at, _after(_PLAIN, text, at)
            yield _Statement(line, named[1], text[start:at])


def _after(pattern: re.Pattern[str], text: str, at: int) -> int:
    """Where ends what stands there, which may be nothing."""
    found = pattern.match(text, at)
    return found.end() if found else at


def _refused(path: Path, line: int, said: str) -> Failure:
    return Failure(f"--env-file {path}, line {line}: {said}", exit_code=2)


def _unescaped(found: re.Match[str]) -> str:
    if found[1]:
        return _ESCAPES[found[1]]
    # Of what is no character in octal, compose takes the 0 away.
    return chr(int(found[2], 8)) if _CHARACTER.fullmatch(found[2]) else f"\\{found[2]}"


def _expanded(text: str, known: Mapping[str, str]) -> str:
    """With what stands in the place of each $. Raises ValueError."""
    made, at = "", 0
    while found := _REFERENCE.search(text, at):
        made += text[at : found.start()]
        at = found.end()
        if found["dollar"]:
            made += "$"
        elif found["name"]:
            made += _of(found["name"], known)
        else:
            end = _closing(text, at)
            made += _in_braces(text[at:end], known)
            at = end + 1
    return made + text[at:]


def _closing(text: str, start: int) -> int:
    """Where the brace that opened before `start` closes. Raises ValueError."""
    depth = 1
    for at in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return at
    raise ValueError(f"'${{' is not closed; if the '$' is the value's own, {_AS_IT_STANDS}")


def _in_braces(inside: str, known: Mapping[str, str]) -> str:
    """Raises ValueError."""
    found = _IN_BRACES.fullmatch(inside)
    if found is None:
        raise ValueError(
            f"'${{' is followed by no name; if the '$' is the value's own, {_AS_IT_STANDS}"
        )
    name, is_or_empty, operator, text = found.groups()
    is_set = bool(known.get(name)) if is_or_empty else name in known
    if operator == "-" and not is_set:
        return _expanded(text, known)
    if operator == "+":
        return _expanded(text, known) if is_set else ""
    if operator == "?" and not is_set:
        raise ValueError(
            "a variable that it asks for with '?' is not set: set it in this shell as in the one "
            "where compose is started"
        )
    return _of(name, known)


def _of(name: str, known: Mapping[str, str]) -> str:
    """Raises ValueError where there is none, in whose place compose puts nothing."""
    if name not in known:
        raise ValueError(
            "docker compose takes what follows a '$' there for the name of a variable, and none of "
            "that name is set, so that it leaves it out: set it in this shell as in the one where "
            f"compose is started; if the '$' is the value's own, {_AS_IT_STANDS}"
        )
    return known[name]
