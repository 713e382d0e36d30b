"""The lines of one request in the logs of a stack's parts, rotated ones included.

Tested by tests/local/test_request_search.py and tests/stack/test_watch.py.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from transformer_serving.desk.failure import Failure

# What the gateway takes over from a caller; in the place of any other it makes an id of its own.
_SANE = re.compile(r"[\x20-\x7e]{1,128}")
# Beside one of these an id is a part of a longer one.
_OF_A_WORD = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")


@dataclass(frozen=True)
class FoundLine:
    """`number` counts the file's lines from 1; `entry` is the line's object, and None where it is
    text.
    """

    part: str
    file: str
    number: int
    text: str
    entry: dict[str, Any] | None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class _LogFile(NamedTuple):
    part: str
    path: Path
    stream: BinaryIO


def check_id(request: str) -> None:
    """Raises Failure (exit code 2) for an id that no request has."""
    if not _SANE.fullmatch(request):
        raise Failure(
            "an id has 1 to 128 printable ASCII characters; in the place of another one the "
            "gateway makes its own, which is in the answer's x-request-id",
            exit_code=2,
        )


def find(logs: Path, parts: Iterable[str], request: str) -> tuple[list[FoundLine], list[Path]]:
    """Its lines by part and age, oldest first, and the files that were read.

    The id is compared and never read as a pattern: in a JSON line with the field `request_id`, in
    one of text with what stands there as a word of its own.
    """
    with ExitStack() as closing:
        files = [file for part in parts for file in _opened(logs, part, closing)]
        found = [line for file in files for line in _lines_of(file, request)]
    return found, [file.path for file in files]


def _opened(logs: Path, part: str, closing: ExitStack) -> list[_LogFile]:
    """Oldest first: NAME.log.2, NAME.log.1, NAME.log.

    The newest is opened first: one that is renamed meanwhile is met again under its next name
    instead of missed.
    """
    rotated = len(list(logs.glob(f"{part}.log.*")))
    seen: set[tuple[int, int]] = set()
    files: list[_LogFile] = []
    # One more, where a rotation begins just now.
    for number in range(rotated + 2):
        path = logs / (f"{part}.log.{number}" if number else f"{part}.log")
        try:
            stream = closing.enter_context(path.open("rb"))
        except FileNotFoundError:
            continue
        status = os.fstat(stream.fileno())
        if (status.st_dev, status.st_ino) not in seen:
            seen.add((status.st_dev, status.st_ino))
            files.append(_LogFile(part, path, stream))
    return files[::-1]


def _lines_of(file: _LogFile, request: str) -> Iterator[FoundLine]:
    plain = request.encode()
    # JSON may write it otherwise, with \" for a quote.
    written = json.dumps(request)[1:-1].encode()
    for number, raw in enumerate(file.stream, start=1):
        if plain not in raw and written not in raw:
            continue
        entry = _entry(raw)
        if entry is None:
            if not _has_word(raw, plain):
                continue
        elif entry.get("request_id") != request:
            continue
        text = raw.decode("utf-8", "replace").rstrip("\r\n")
        yield FoundLine(file.part, file.path.name, number, text, entry)


def _entry(raw: bytes) -> dict[str, Any] | None:
    if not raw.startswith(b"{"):
        return None
    try:
        entry = json.loads(raw)
    except (ValueError, RecursionError):
        # The end of a file that is being written, or what an endpoint's own code printed.
        return None
    return entry if isinstance(entry, dict) else None


def _has_word(raw: bytes, word: bytes) -> bool:
    at = raw.find(word)
    while at >= 0:
        end = at + len(word)
        if not (raw[max(0, at - 1) : at] and raw[at - 1] in _OF_A_WORD) and not (
            raw[end : end + 1] and raw[end] in _OF_A_WORD
        ):
            return True
        at = raw.find(word, at + 1)
    return False
