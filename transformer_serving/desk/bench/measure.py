"""What `bench` measures: closed loops at rising concurrency, then an open loop.

Tested by tests/bench/test_load.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformer_serving.desk.bench import contact, load
from transformer_serving.desk.bench.connection import Address
from transformer_serving.desk.bench.figures import LoadFigures, figures, shown
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.http import kept_out, key_header

TEXT = "This is a ClearML example to show how Triton binaries are deployed."
CONCURRENCY = (1, 8, 32, 128)
# The share of the best closed loop at which the open loop runs when no rate is given.
OPEN_SHARE = 0.7
_WARM_UP_S = 1.0
# Of what is refused for its body.
_OTHER_BODY = (400, 422)
# Fields of bodies that may be a list of texts: of ours, and of the other protocols.
_TEXTS = ("text", "texts", "sentences", "documents", "input", "inputs", "instances")
_WORDS = TEXT.rstrip(".").split()


@dataclass(frozen=True)
class Bench:
    """What to send and for how long; `rate` None measures at 70 % of the best closed loop."""

    address: Address
    payloads: tuple[load.Payload, ...]
    concurrency: tuple[int, ...] = CONCURRENCY
    rate: float | None = None
    seconds: float = 5.0


@dataclass(frozen=True)
class Measured:
    """One load with its figures; `clients` for a closed loop, `rate` a second for an open one."""

    load: str
    clients: int | None
    rate: float | None
    figures: LoadFigures


def address(url: str, headers: Sequence[str], key: str | None = None) -> Address:
    """Raises Failure for a URL, header or key that is none."""
    pairs = [header.partition(":") for header in headers]
    if any(not name.strip() or not colon for name, colon, _ in pairs):
        raise Failure("--header must be like 'Authorization: Bearer KEY'", exit_code=2)
    given = {name.strip(): value.strip() for name, _, value in pairs}
    return Address.of(url, {**key_header(key), **given})


def payloads(
    body: Path | None, text: str | None, texts: int, words: Sequence[int], *, stream: bool = False
) -> tuple[load.Payload, ...]:
    """What to send: a file's content as it is, or texts. Raises Failure for both at once.

    A stream has one text.
    """
    if body is not None and (text is not None or words or texts != 1):
        raise Failure("--body goes without --text, --texts and --words", exit_code=2)
    if words and text is not None:
        raise Failure("--words goes without --text", exit_code=2)
    if stream and (texts != 1 or len(words) > 1):
        raise Failure(
            "--stream sends one text; leave out --texts, and give --words once", exit_code=2
        )
    if stream and body is None:
        said = of_words(words[0]) if words else TEXT if text is None else text
        return (load.Payload("stream", json.dumps({"text": said, "stream": True}).encode()),)
    if body is not None:
        return (_of_file(body),)
    if words:
        return tuple(_payload(f"{count} words", of_words(count), texts) for count in words)
    return (_payload("text", TEXT if text is None else text, texts),)


def of_words(count: int) -> str:
    """A text of that many words."""
    return " ".join(_WORDS[index % len(_WORDS)] for index in range(count)) + "."


def texts_of(body: Any) -> int:
    """How many texts a body holds, of any protocol; 1 where no list of them says so."""
    if not isinstance(body, dict):
        return 1
    # As the Inference API has sentence-similarity.
    fields = body["inputs"] if isinstance(body.get("inputs"), dict) else body
    content = next((fields[name] for name in _TEXTS if isinstance(fields.get(name), list)), None)
    if content is None:
        return 1
    first = content[0] if content else None
    if isinstance(first, dict) and isinstance(first.get("data"), list):
        # V2's tensors, each with an element a text.
        return len(first["data"])
    # One text may be the list of its tokens' ids.
    return 1 if isinstance(first, int) else len(content)


def _of_file(path: Path) -> load.Payload:
    """The content as it is. Raises Failure (exit code 2) where it cannot be read."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise Failure(f"{path} cannot be read: {error.strerror}", exit_code=2) from None
    try:
        texts = texts_of(json.loads(content))
    # It need not be JSON, and JSON nested without end is a RecursionError.
    except (ValueError, RecursionError):
        texts = 1
    return load.Payload(path.name, content, texts)


def _payload(label: str, text: str, texts: int) -> load.Payload:
    content = text if texts == 1 else [text] * texts
    return load.Payload(label, json.dumps({"text": content}).encode(), texts)


def measure(bench: Bench, say: Callable[[str], None] = lambda _: None) -> Iterator[Measured]:
    """Run every load, each when it is asked for: what was measured outlives what fails later.

    Raises Failure when the endpoint does not answer a first request with 200, or is gone later.
    """
    say("asking once")
    _require_answer(bench)
    say("warming up")
    widest = max(bench.concurrency)
    warm_up = load.Closed(widest, min(_WARM_UP_S, bench.seconds))
    contact.run(bench.address, bench.payloads, warm_up)
    best = 0.0
    for clients in bench.concurrency:
        say(f"{clients} clients")
        found = contact.run(bench.address, bench.payloads, load.Closed(clients, bench.seconds))
        row = Measured(f"{clients} clients", clients, None, figures(found))
        best = max(best, row.figures.goodput)
        yield row
    rate = bench.rate or OPEN_SHARE * best
    if rate > 0:
        say(f"open loop, {shown(rate)} a second")
        found = contact.run(bench.address, bench.payloads, load.Open(rate, bench.seconds))
        yield Measured(f"open loop, {shown(rate)}/s", None, rate, figures(found))


def _require_answer(bench: Bench) -> None:
    once = load.Closed(clients=1, seconds=60.0, requests=1)
    found = contact.run(bench.address, bench.payloads[:1], once)
    status = found.exchanges[0].status if found.exchanges else load.NO_ANSWER
    if reason := kept_out(status):
        raise Failure(f"the first request got status {status}: {reason}", exit_code=2)
    if status == 200:
        return
    if not status:
        raise Failure(
            "the first request got no answer; the endpoint must answer before it is timed"
        )
    reason = contact.said_of(bench.address, bench.payloads[0])
    next_step = (
        "send a body of this endpoint's with --body FILE (docs/api.md has one of each task)"
        if status in _OTHER_BODY
        else "the endpoint must answer before it is timed"
    )
    raise Failure(
        f"the first request got status {status}{': ' if reason else ''}{reason}; {next_step}"
    )
