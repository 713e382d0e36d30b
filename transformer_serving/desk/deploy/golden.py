"""Asking an endpoint its bundle's golden request and judging the answer."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from transformer_serving.contract.error_line import MOST, one_line
from transformer_serving.contract.golden import agrees, disagreement
from transformer_serving.contract.manifest import Golden
from transformer_serving.contract.naming import VERSION_HEADER
from transformer_serving.desk import http

_REQUEST_S = 20.0
_PAUSE_S = 0.2
# Behind one address may stand several containers and workers, and each finds a new bundle by a poll
# of its own. Every request is a new connection, so this many answers one after the other are those
# of all of them: the most that docker/balancer takes, in turn.
_IN_A_ROW = 32


@dataclass(frozen=True)
class Reply:
    """An endpoint's answer: status 0 when nothing answered, `version` from the bundle header."""

    status: int
    body: Any
    version: int | None


def ask(
    url: str,
    request: dict[str, Any],
    timeout_s: float = _REQUEST_S,
    headers: Mapping[str, str] | None = None,
) -> Reply:
    """POST one body as JSON."""
    sent = json.dumps(request).encode()
    every = {"Content-Type": "application/json", **(headers or {})}
    try:
        answer = http.ask(url, sent, every, timeout_s=timeout_s)
    except http.NoAnswer as error:
        return Reply(0, {"message": one_line(error.cause, MOST)}, None)
    try:
        body = json.loads(answer.body)
    except ValueError:
        body = {"message": answer.body[:200].decode("utf-8", "replace")}
    version = answer.headers.get(VERSION_HEADER)
    return Reply(answer.status, body, int(version) if version else None)


class Refused(str):
    """Why the bundle will not be served, however long one waits."""


class Differs(str):
    """How an answer of exactly the wanted bundle differs from the recorded one."""


def wait_for_golden(
    url: str,
    golden: Golden,
    version: int,
    timeout_s: float,
    refused: Callable[[], str | None] = lambda: None,
    headers: Mapping[str, str] | None = None,
) -> str | None:
    """Ask until every process behind the address gives the golden answer from exactly `version`.

    Returns None when they did, 32 answers in a row; else why not, as last seen, or at once: Refused
    where `refused` has a reason or the gateway does not let in, Differs where an answer of that
    version is another.
    """
    deadline = time.monotonic() + timeout_s
    reason = unasked = "it was never asked"
    right = 0
    while time.monotonic() < deadline:
        patience = min(_REQUEST_S, max(0.1, deadline - time.monotonic()))
        reply = ask(url, golden.request, patience, headers)
        if reply.status == 200 and reply.version == version:
            if not agrees(reply.body, golden.answer, golden.tolerance):
                return Differs(disagreement(reply.body, golden.answer, golden.tolerance))
            right += 1
            if right == _IN_A_ROW:
                return None
            reason = f"{right} of the {_IN_A_ROW} answers in a row that are wanted came in time"
            continue
        if reply.status == 0 and reason != unasked and time.monotonic() >= deadline:
            # The wait was cut short: what was seen before says more.
            return reason
        right, reason = 0, describe(reply, version)
        said = http.kept_out(reply.status) or refused()
        if said is not None:
            return Refused(said)
        time.sleep(_PAUSE_S)
    return reason


def describe(reply: Reply, version: int) -> str:
    """Why a reply is not yet the wanted one, in a few words."""
    if reply.status == 200:
        return f"it still answers from bundle version {reply.version}, not {version}"
    body = reply.body if isinstance(reply.body, dict) else {}
    if reply.status == 0:
        return f"nothing answers at its address: {body.get('message')}"
    by = "" if reply.version in (None, version) else f" from bundle version {reply.version} still"
    return f"status {reply.status}{by}: {body.get('message') or body.get('detail') or 'no message'}"
