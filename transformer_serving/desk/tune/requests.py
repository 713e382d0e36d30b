"""What `tune` sends: the lines of a file, or texts of given lengths.

Tested by tests/tune/test_requests.py.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformer_serving.desk.bench import contact, load
from transformer_serving.desk.bench.connection import Address
from transformer_serving.desk.bench.measure import of_words, texts_of
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.tune.lengths import read_lengths, spread_evenly

_MOST_BYTES = 256 << 20
# Of a longer file so many lines, evenly spaced, stand for it.
MOST = 2000
_OF_LENGTHS = 200
_CLIENTS = 8
_PATIENCE_S = 120.0
# Of a body that is none, too large or not possible: what a log of real requests has some of.
_REFUSED = (400, 413, 422)
_FEW = 0.05


def of_file(path: Path) -> tuple[load.Payload, ...]:
    """A line is a body, as JSON, or else a text. Raises Failure (exit code 2) naming the line."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise Failure(f"{path} must have at most {_MOST_BYTES >> 20} MiB", exit_code=2)
        # Others that splitlines takes for an end of a line may stand in a text.
        lines = path.read_text("utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8"
        raise Failure(f"{path} cannot be read: {reason}", exit_code=2) from None
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not numbered:
        raise Failure(f"{path} has no request: one a line, a body as JSON or a text", exit_code=2)
    count = min(MOST, len(numbered))
    chosen = (numbered[step * len(numbered) // count] for step in range(count))
    return tuple(_payload(f"line {number}", _body(path, number, line)) for number, line in chosen)


def _body(path: Path, number: int, line: str) -> Any:
    if not line.lstrip().startswith("{"):
        return {"text": line}
    try:
        return json.loads(line)
    # A body nested without end is a RecursionError.
    except (ValueError, RecursionError):
        raise Failure(f"{path}, line {number}: is no JSON", exit_code=2) from None


def of_lengths(text: str, task: str, golden: Mapping[str, Any]) -> tuple[load.Payload, ...]:
    """The endpoint's golden body with texts of these words in it. Raises Failure (exit code 2)."""
    if not isinstance(golden.get("text"), str) or task == "fill-mask":
        raise Failure(
            "--lengths is for tasks that take any text; give this one's --requests", exit_code=2
        )
    return tuple(
        _payload(f"{words} words", {**golden, "text": of_words(words)})
        for words in spread_evenly(read_lengths(text), _OF_LENGTHS)
    )


def _payload(label: str, body: Any) -> load.Payload:
    return load.Payload(label, json.dumps(body).encode(), texts_of(body))


@dataclass(frozen=True)
class Answered:
    """`payloads` are what can be measured; `remarks` say what is not, and why."""

    payloads: tuple[load.Payload, ...]
    remarks: tuple[str, ...] = ()


def answered(address: Address, payloads: Sequence[load.Payload]) -> Answered:
    """Ask each once, in a random order, for as long as there is patience: those that were answered
    then stand for all. Of those that are refused for what they are, a few are left out.

    Raises Failure: with exit code 2, naming one, where others are not answered with 200.
    """
    clients = min(_CLIENTS, len(payloads))
    found = contact.run(
        address, payloads, load.Closed(clients, _PATIENCE_S, requests=len(payloads))
    )  # fmt: skip
    refused = [one for one in found.exchanges if one.status in _REFUSED]
    if not found.exchanges or len(refused) > _FEW * len(found.exchanges):
        refused = []
    wrong = [one for one in found.exchanges if one.status != 200 and one not in refused]
    if wrong:
        status, count = Counter(one.status or "no answer" for one in wrong).most_common(1)[0]
        first = next(one.label for one in wrong if (one.status or "no answer") == status)
        raise Failure(
            f"{count} of {len(payloads)} requests got {status}, such as {first}; nearly every "
            "request must be one that the endpoint answers with 200",
            exit_code=2,
        )
    good = {one.label for one in found.exchanges} - {one.label for one in refused}
    if not good:
        raise Failure(f"no request was answered within {_PATIENCE_S:.0f} s; give shorter ones")
    kept = tuple(one for one in payloads if one.label in good)
    return Answered(kept, _remarks(len(payloads), len(found.exchanges), refused))


def _remarks(count: int, asked: int, refused: Sequence[load.Exchange]) -> tuple[str, ...]:
    found = []
    if refused:
        one = refused[0]
        found.append(
            f"{len(refused)} of {asked} requests were refused and are left out, such as "
            f"{one.label} with {one.status}"
        )
    if asked < count:
        found.append(
            f"{asked} of {count} requests, chosen at random, stand for all: more were not "
            f"answered within {_PATIENCE_S:.0f} s"
        )
    return tuple(found)
