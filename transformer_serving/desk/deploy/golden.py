"""Asking an endpoint its bundle's golden request and judging the answer."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from transformer_serving.contract.error_line import MOST, one_line
from transformer_serving.contract.errors import UNKNOWN_ENDPOINT
from transformer_serving.contract.golden import agrees, disagreement
from transformer_serving.contract.manifest import Golden
from transformer_serving.contract.naming import VERSION_HEADER
from transformer_serving.desk import http

_REQUEST_S = 20.0
_PAUSE_S = 0.2
# After an answer of 500 and more, which counts against the endpoint's error budget: ten of them in
# an hour may page. A gateway says beforehand that it would answer so; clearml-serving's own app
# does not, so there the pauses grow up to this.
_LONGEST_PAUSE_S = 15.0
_SERVE, _HEALTH = "/serve/", "/health/endpoints/"
# As a gateway's golden rounds say it (gateway/golden_rounds.py).
_NOT_YET = re.compile(r"another bundle answers|(?:answers )?(?:404|503)\b")
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

    Where a gateway says that the endpoint is not ready, it is not asked: its requests count as all
    others. Returns None when they did, 32 answers in a row; else why not, as last seen, or at once:
    Refused where `refused` has a reason or the gateway does not let in, Differs where an answer of
    that version is another.
    """
    deadline = time.monotonic() + timeout_s
    reason = unasked = "it was never asked"
    right, pause = 0, _PAUSE_S
    while time.monotonic() < deadline:
        patience = min(_REQUEST_S, max(0.1, deadline - time.monotonic()))
        early = None if right else _not_ready(url, patience, headers)
        reply = ask(url, golden.request, patience, headers) if early is None else None
        if reply is not None and (reply.status, reply.version) == (200, version):
            if not agrees(reply.body, golden.answer, golden.tolerance):
                return Differs(disagreement(reply.body, golden.answer, golden.tolerance))
            right += 1
            if right == _IN_A_ROW:
                return None
            reason = f"{right} of the {_IN_A_ROW} answers in a row that are wanted came in time"
            continue
        if reply is None:
            right, reason, pause, said = 0, early or "", _PAUSE_S, None
        elif reply.status == 0 and reason != unasked and time.monotonic() >= deadline:
            # The wait was cut short: what was seen before says more.
            return reason
        else:
            right, reason, said = 0, describe(reply, version), http.kept_out(reply.status)
            pause = _PAUSE_S if reply.status < 500 else min(2 * pause, _LONGEST_PAUSE_S)
        said = said or _refused_within(min(pause, deadline - time.monotonic()), refused)
        if said is not None:
            return Refused(said)
    return reason


def _refused_within(seconds: float, refused: Callable[[], str | None]) -> str | None:
    """Asks again and again, so that a long pause keeps no reason back."""
    until = time.monotonic() + seconds
    while (said := refused()) is None and time.monotonic() < until:
        time.sleep(_PAUSE_S)
    return said


def _not_ready(url: str, patience: float, headers: Mapping[str, str] | None) -> str | None:
    """Why a gateway behind the address would not answer the endpoint's request from its engine.

    None: it would, or nobody says so, as in clearml-serving's own app, behind an ingress that has
    /serve alone, and of an answer that is not the recorded one: that is seen by asking.
    """
    address = urlsplit(url)
    # The path alone, at the last of them: a host or a prefix may be called so, too.
    front, serve, endpoint = address.path.rpartition(_SERVE)
    if not serve:
        return None
    health = address._replace(path=f"{front}{_HEALTH}{endpoint}").geturl()
    try:
        answer = http.ask(health, headers=headers, timeout_s=patience)
        row = json.loads(answer.body)
    except (http.NoAnswer, ValueError):
        return None
    if not isinstance(row, dict):
        return None
    if answer.status == 404 and row.get("code") == UNKNOWN_ENDPOINT:
        return f"status 404: {row.get('message')}"
    if answer.status == 503 and "state" in row and _means_not_yet(row):
        return f"it is not ready: {row.get('reason')}"
    return None


def _means_not_yet(row: Mapping[str, Any]) -> bool:
    """Of an endpoint's health: nobody has asked it, or its code or its engine is still to come.

    Every other reason may be the worker's own, which waits for its golden answer for 10 s.
    """
    return row["state"] != "failed" or _NOT_YET.match(str(row.get("reason"))) is not None


def describe(reply: Reply, version: int) -> str:
    """Why a reply is not yet the wanted one, in a few words."""
    if reply.status == 200:
        return f"it still answers from bundle version {reply.version}, not {version}"
    body = reply.body if isinstance(reply.body, dict) else {}
    if reply.status == 0:
        return f"nothing answers at its address: {body.get('message')}"
    by = "" if reply.version in (None, version) else f" from bundle version {reply.version} still"
    return f"status {reply.status}{by}: {body.get('message') or body.get('detail') or 'no message'}"
