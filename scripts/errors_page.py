"""Write docs/errors.md from the tables that the code itself answers by."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from preprocess.triton.errors import RULES, Rule  # noqa: E402
from scripts.generated_part import take_no_options  # noqa: E402
from transformer_serving.contract.errors import KINDS, ErrorKind  # noqa: E402
from transformer_serving.contract.settings.preprocess import SETTINGS  # noqa: E402
from transformer_serving.gateway.settings import (  # noqa: E402
    BODY_MEMORY_BYTES,
    BODY_SECONDS,
    BODY_STALL_SECONDS,
    MAX_BODY_BYTES,
    MAX_BODY_ELEMENTS,
)

PAGE = ROOT / "docs" / "errors.md"

_HEAD = """# Errors

Made by `make docs` from `transformer_serving/contract/errors.py`,
`preprocess/triton/errors.py` and the tables of settings, `transformer_serving/gateway/settings.py`
and `transformer_serving/contract/settings/preprocess.py`, with the sentences of
`scripts/errors_page.py`; change those.

Every error of ours has the same JSON body:

```json
{"code": "too_large", "message": "field 'text' holds too many texts; send them in several requests",
 "field": "text", "limit": 1024, "got": 1025}
```

`field`, `limit` and `got` are null where they do not apply. No error repeats anything of the
request but a whole number that its parameter or `timeout_ms` does not take, as `got`: one out of
its bounds, say.
Every answer of the gateway, errors included, has `x-request-id` and `server-timing`. What is no
HTTP, or a head that is too large or too slow, is refused before it: 400, 408 or 431 without them.

"""

_AFTER_KINDS = """
Retry-After of `overloaded` is at least that: the whole seconds in which what waits now will be
done, at the engine's measured rate. `left` is seen by nobody: it stands in the figures. While text
is generated nobody knows when a sequence will end: where too many run or wait, or the engine's
cache is full, Retry-After is always 1 s.

Of a request in the queue whose deadline has passed, or whose caller left, nothing is computed that
no call holds yet. A request with `timeout_ms` that could not be answered by then is 503 at once, or
504 when its turn comes and it cannot be any more; one for generated text is 504 when its time is
over. Where no text is generated the engine has 300 s for one call, whatever time the request has:
then it is 504, too.
"""

_TEXT = """
## While text is generated

Before the first token an error has its status, of a stream too. After it the stream's last event
is the error, `event: error` with the five keys, or as the protocol tells it, and nothing marks an
end. A caller who reads so slowly that five seconds after the deadline the event is still not
written has its connection cut, without the body's end; what the engine held for it is free from
the deadline on.
What bounds a request, each a variable of the inference container:

"""
_OF_TEXT = (
    "TRANSFORMER_SERVING_MAX_STREAMS",
    "TRANSFORMER_SERVING_GENERATION_TIMEOUT_S",
    "TRANSFORMER_SERVING_FIRST_TOKEN_S",
    "TRANSFORMER_SERVING_TOKEN_GAP_S",
)
_BODIES = """
## What bounds a body

The gateway's own bounds, each a variable of the inference container. Nesting ends at 1,024: 400.
An element is a comma, `[` or `{` outside of strings.

"""
_BODY_SETTINGS = (
    MAX_BODY_BYTES,
    MAX_BODY_ELEMENTS,
    BODY_MEMORY_BYTES,
    BODY_SECONDS,
    BODY_STALL_SECONDS,
)

_STOCK = """
## Without the gateway

The stock `uvicorn clearml_serving.serving.main:app` answers the same codes, but for what
clearml-serving itself decides before our code sees the request: a malformed body is 400 or 422 with
a body of FastAPI's, bytes of a body have no limit, and an unknown endpoint is 404 with
`{"detail": …}` that repeats its name. It has no keys, so nothing is 401 or 403. It also tells
nobody that a caller has left: such a request stays in the queue until it is answered or its
deadline passes, unless the server itself cancels it. Behind the gateway two are still
clearml-serving's own, as `{"detail": …}`: 405 to a method that an endpoint does not take, such as
`GET /serve/NAME`, and the errors of endpoints whose code is not of this kit, but for a call of
Triton that found no model or came too late: that is `unavailable` or `deadline`.

"""

_ENGINE = """## What Triton answers, and what becomes of it

The first row that matches counts. A status that is a number is HTTP's, a name is gRPC's.

"""

_AFTER = """
`unavailable` sets a Triton aside where there are several, and the call is tried on another one: a
call that may have begun, once; one that has not, on each. A call that several requests share and
that fails with `engine_failed` is split until only the text that caused it is left, which alone
gets the error.
"""


def page() -> str:
    return "".join(
        (
            _HEAD,
            *_kinds(),
            _AFTER_KINDS,
            _BODIES,
            *_settings(_BODY_SETTINGS),
            _TEXT,
            *_settings(row for row in SETTINGS if row.name in _OF_TEXT),
            _STOCK,
            _ENGINE,
            *_rules(),
            _AFTER,
        )
    )


def _kinds() -> Iterator[str]:
    yield "| status | code | meaning | Retry-After |\n|---|---|---|---|\n"
    for kind in sorted(KINDS.values(), key=lambda kind: kind.status):
        yield _kind(kind)


def _settings(rows: Iterable[Any]) -> Iterator[str]:
    yield "| variable | default | is |\n|---|---|---|\n"
    for row in rows:
        yield f"| `{row.name}` | {row.default} | {row.help} |\n"


def _kind(kind: ErrorKind) -> str:
    wait = "" if kind.retry_after_s is None else f"{kind.retry_after_s} s"
    return f"| {kind.status} | `{kind.code}` | {kind.meaning} | {wait} |\n"


def _rules() -> Iterator[str]:
    yield "| Triton's status | its text has | code | message |\n|---|---|---|---|\n"
    for rule in RULES:
        yield _rule(rule)


def _rule(rule: Rule) -> str:
    statuses = ", ".join(rule.statuses) or "any"
    text = f'"{rule.text}"' if rule.text else "anything"
    return f"| {statuses} | {text} | `{rule.code}` | {rule.message} |\n"


def main() -> None:
    take_no_options(__doc__)
    temporary = PAGE.with_suffix(".new")
    temporary.write_text(page(), "utf-8")
    temporary.replace(PAGE)


if __name__ == "__main__":
    main()
