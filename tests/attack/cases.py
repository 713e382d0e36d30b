"""The table of attacks: what each tries, what came of it before, and what does it now."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.attack import (
    answers,
    bodies,
    bundles,
    control_plane,
    deploying,
    overload,
    prompts,
    triton,
    writers,
)
from tests.attack.ground import Ground
from tests.attack.raw_bodies import body_cases
from tests.attack.raw_heads import head_cases
from tests.attack.raw_http import raw_requests
from tests.attack.seen import Seen

# The commit and day of the column before.
BEFORE = "5425afd, 2026-11-21"
_NONE = "not tried"


@dataclass(frozen=True)
class Case:
    """`must` is what has to hold; `run` does it and says whether it did.

    `short` is False for what the short form leaves out, as its like is in it or in another test.
    """

    name: str
    tries: str
    before: str
    must: str
    run: Callable[[Ground], Seen]
    short: bool = True


def _requests(ground: Ground) -> Seen:
    return raw_requests(ground, [*head_cases(), *body_cases()])


CASES = (
    Case(
        "a page's load",
        "a web page's POST of a model with code, to every port",
        "200; its Python ran as the stack's user and read the credentials",
        "no port takes it",
        triton.web_page,
    ),
    Case(
        "another user",
        "user nobody reads /proc, folders and logs, and asks every interface of Triton",
        "/unload gave 6 s of 503; a 30 MB file override ended Triton",
        "nothing is read or answered",
        triton.another_user,
    ),
    Case(
        "chunks to the front door",
        "a good text in 600,000 chunks, to its own protocol and to Triton's",
        _NONE,
        "answered or refused; Triton gets none of them and goes on",
        triton.chunks_to_the_front_door,
    ),
    Case(
        "chunks to Triton",
        "the same to its inference, which ends a Triton before 25.07",
        _NONE,
        "what was served is served again, without anybody's help",
        triton.chunks_to_triton,
    ),
    Case(
        "raw requests",
        "hostile request lines, headers, framing, chunks, pipelines, JSON, encodings",
        "about 110: no 5xx, no desync",
        "only refusals of the caller's own, one answer each, the next one right",
        _requests,
    ),
    Case(
        "made from OpenAPI",
        "requests that schemathesis makes from /openapi.json",
        "1,248: no 5xx; 400 missing from the document",
        "no 500, and 400 is documented",
        answers.openapi,
    ),
    Case(
        "unknown endpoint",
        "a name of 60,000 letters",
        "{'detail': …}, up to 60 kB of the name repeated",
        "five keys, no repetition",
        answers.unknown_endpoint,
    ),
    Case(
        "Java's upgrade",
        "Upgrade: h2c beside a body, three on one connection",
        "400 'the body is empty', the connection unusable",
        "200 each",
        answers.java_upgrade,
    ),
    Case(
        "panicking tokenizer",
        "a text on which the tokenizer's pattern gives up",
        "500 in plain text",
        "a 500 of ours, and the next text is answered",
        answers.panicking_tokenizer,
    ),
    Case(
        "altered bundle",
        "code appended to preprocess.py, the manifest hashed anew, deployed",
        "deployed under the original's number; its code ran beside the keys",
        "refused, no code runs",
        bundles.altered_code,
    ),
    Case(
        "exchanged code",
        "preprocess.py exchanged in ClearML after the deploy",
        "nothing was signed",
        "refused where keys are trusted, no code runs",
        bundles.exchanged_code,
        short=False,
    ),
    Case("unsigned bundle", "deployed where keys are trusted", "nothing was signed", "refused",
         bundles.unsigned),
    Case("symbolic link", "to a file outside, in a bundle", "followed by show",
         "refused by every command", bundles.linked),
    Case(
        "archive with links",
        "a tar.gz in ClearML, as code and as model, with a link that leads to the root",
        _NONE,
        "refused, nothing is written outside",
        writers.climbing_archives,
    ),
    Case(
        "section that asks",
        "the task's endpoints with ${VARIABLE}, a file and an address inside",
        _NONE,
        "refused, nothing is read or asked; what is served goes on",
        writers.asking_sections,
    ),
    Case("pickled weights", "converted", _NONE, "refused, no code runs", bundles.pickled),
    Case(
        "bodies without credentials",
        "63 MB each, at once, to the control plane",
        "20: from 38 to 1,304 MB",
        "401 or closed, no more than one of them held",
        control_plane.no_credentials,
    ),
    Case(
        "half heads",
        "1,100 connections to the control plane that send half a head and no more",
        _NONE,
        "others are answered",
        control_plane.half_heads,
    ),
    Case(
        "backtracking filter",
        "a pattern for the control plane that searches without end",
        "hung for 31 s, until the watchdog ended it",
        "other calls go on, nobody is ended",
        control_plane.backtracking,
    ),
    Case(
        "5,000 digits",
        "as expiration_sec and in Range",
        "500",
        "400",
        control_plane.thousands_of_digits,
    ),
    Case(
        "damaged database",
        "zeroed pages, in a copy of the stack's data",
        "up: 'did not become healthy'; status: every endpoint ready; doctor: 0 failures",
        "up, status and doctor say what is lost",
        control_plane.damaged_pages,
    ),
    Case(
        "full disk",
        "no room for uploads",
        "deploy: 'general data error'",
        "deploy names the disk",
        control_plane.full_disk,
    ),
    Case(
        "heavy JSON",
        "gzip of 16 MB of small lists or objects, or of nothing; numbers, keys, commas",
        "another client's p50 from 12 to 4,114 ms; from 372 to 866 MB, objects 969 MB",
        "refused; no more memory than 1.2 times idle and the total of bodies",
        bodies.heavy("gzip", "20 at once", first="2 MB of 90,000 keys, 20 at once"),
    ),
    Case(
        "stalled bodies",
        "80 at once that never end",
        "from 511 to 2,317 MB",
        "refused; no more memory than 1.2 times idle and the total of bodies",
        bodies.heavy("stalled", first="80 stalled, in chunks"),
    ),
    Case(
        "prompts and parameters",
        "texts, sampling, stops and conversations that a language model's callers may send",
        _NONE,
        "refused or answered; the engine goes on, its text as before",
        prompts.hostile,
    ),
    Case(
        "streams that nobody reads",
        "asked for at once, then reset",
        _NONE,
        "the next caller is answered as before",
        prompts.unread,
    ),
    Case(
        "half of the callers leave",
        "32 of 64 callers after 20 ms, again and again",
        "computed all the same",
        "taken out of the queue; the others are answered",
        overload.half_leaves,
    ),
    Case(
        "callers that give up, 1.5 times",
        "after 1 s each, at 1.5 times the capacity for 15 s",
        "the next caller waited 23.1 s",
        "the next caller is answered, nothing waits",
        overload.giving_up(1.5),
        short=False,
    ),
    Case(
        "callers that give up, 4 times",
        "after 1 s each, at 4 times the capacity for 15 s",
        "the next caller waited 29.4 s",
        "the next caller is answered, nothing waits",
        overload.giving_up(4.0),
    ),
    Case(
        "4 times the capacity",
        "without a deadline",
        "1,217 of 3,760 got 504 after 30 s; accepted p50 19.1 s, p99 29.9 s",
        "200, 503, 504 only; answers all the time",
        overload.overloaded(None),
        short=False,
    ),
    Case(
        "4 times, with deadlines",
        "with timeout_ms 2000",
        "36 of 1,880 answered, none after 5 s, no 503",
        "200, 503, 504 only; answers all the time",
        overload.overloaded(2000),
    ),
    Case(
        "down during deploy",
        "the stack goes while deploy --timeout 10 uploads",
        "more than 100 s with --timeout 40; 42.5 with 25",
        "deploy ends and says why; the stack comes back",
        deploying.stopped_in_between,
    ),
)  # fmt: skip
