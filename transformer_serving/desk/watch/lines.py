"""A look as lines: for people where there is no terminal, and as JSON.

Tested by tests/watch/test_screen.py and tests/stack/test_watch.py.
"""

from __future__ import annotations

import json

from transformer_serving.contract.error_line import printable
from transformer_serving.desk.watch.look import Look
from transformer_serving.desk.watch.numbers import milliseconds, short
from transformer_serving.desk.watch.screen import endpoint_cells, endpoints, notes, waiting
from transformer_serving.desk.watch.traffic import EndpointTraffic, Traffic


def plain_lines(look: Look, traffic: Traffic | None) -> list[str]:
    """Each begins with the time; none has more than one thing in it."""
    told = [look.word]
    if traffic is not None:
        told = [f"up, {waiting(traffic)}"]
        if traffic.seconds:
            told += [
                _line(name, traffic.endpoints.get(name)) for name, _ in endpoints(look, traffic)
            ]
    return [f"{look.time} {printable(line)}" for line in [*told, *notes(look, traffic)]]


def _line(name: str, row: EndpointTraffic | None) -> str:
    requests, p50, p99, refused, errors = endpoint_cells(row, known=True)
    line = f"{name}: {requests} req/s, p50 {p50} ms, p99 {p99} ms, {refused} 4xx/s, {errors} 5xx/s"
    if row is None or row.text is None:
        return line
    text = row.text
    first, late = map(milliseconds, (text.first_token_p50_s, text.first_token_p99_s))
    return (
        f"{line}, {short(text.tokens_per_s)} tok/s, first token p50 {first} ms, p99 {late} ms, "
        f"{text.running} running"
    )


def json_line(look: Look, traffic: Traffic | None) -> str:
    """The status as `status --json` has it, with the time, the figures and why there are none."""
    figures = None if traffic is None else traffic.as_json()
    return json.dumps(
        {"time": look.time, **(look.status or {}), "figures": figures, "fault": look.fault}
    )
