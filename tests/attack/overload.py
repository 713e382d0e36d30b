"""More than the engine can do, and callers that do not wait for their answers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from benchmarks.studies.overload import TIMES, goodput_windows
from tests.attack.ground import ENDPOINT, Ground
from tests.attack.seen import Seen, counted
from tests.gateway.test_leaving import figure
from tests.stack.small_bundles import TEXT
from transformer_serving.desk.bench import load as generator
from transformer_serving.desk.bench.connection import Address
from transformer_serving.desk.bench.figures import figures

# Many texts in each, so that it is the engine that is too slow, and not who asks.
TEXTS = 60
_BODY = {"text": [f"{TEXT} " * 5] * TEXTS}
_MAY = {"200", "503", "504"}
_LEAVE_S, _GIVE_UP_S = 0.02, 1.0
_CALLERS = 64
_CONNECTIONS = 2048
_PATIENCE_S = 30.0


def _load(
    ground: Ground, kind: generator.Closed | generator.Open, timeout_ms: int | None = None
) -> generator.Run:
    body = {**_BODY, **({} if timeout_ms is None else {"timeout_ms": timeout_ms})}
    payload = generator.Payload("texts", json.dumps(body).encode(), TEXTS)
    return generator.run(Address.of(ground.stack.url(ENDPOINT)), [payload], kind)


def _capacity(ground: Ground) -> float:
    """Requests a second that 16 callers get, once all that was sent before is done with."""
    _load(ground, generator.Closed(16, 60.0, requests=64))
    found = figures(_load(ground, generator.Closed(16, 2.0 if ground.short else 5.0)))
    # A busy machine may answer none of them in time, and of nothing there are no multiples.
    return max(1.0, found.goodput)


def overloaded(timeout_ms: int | None) -> Callable[[Ground], Seen]:
    def run(ground: Ground) -> Seen:
        seconds = 6.0 if ground.short else 30.0
        capacity = _capacity(ground)
        kind = generator.Open(TIMES * capacity, seconds, _CONNECTIONS)
        done = _load(ground, kind, timeout_ms)
        found = figures(done)
        begun = min(exchange.due for exchange in done.exchanges)
        windows = goodput_windows(done, begun, seconds)
        others = set(found.statuses) - _MAY
        # The short form has no bound on speed: cores that others use may give it none for seconds.
        answered = min(windows) > 0 or (ground.short and "200" in found.statuses)
        holds = not others and answered and ground.well()
        p99 = found.latency.p99 if found.latency else 0.0
        return Seen(
            f"{TIMES:g} x {capacity:.0f} requests/s: {counted(found.statuses)}; "
            f"{'never none' if min(windows) > 0 else 'none'} in 5 s; the next caller is answered",
            holds,
            f"p99 of the accepted {p99 / 1e3:.1f} s, at least {min(windows):.1f}/s in 5 s",
        )

    return run


def half_leaves(ground: Ground) -> Seen:
    """Half of the callers leave after 20 ms and come again at once."""
    seconds = 4.0 if ground.short else 15.0
    server = ground.server()
    computed, gone = figure(server, "call_texts_sum"), _abandoned(ground)
    half = _CALLERS // 2
    with ThreadPoolExecutor(2) as pool:
        leavers = pool.submit(_load, ground, generator.Closed(half, seconds, leave_s=_LEAVE_S))
        stayed = figures(pool.submit(_load, ground, generator.Closed(half, seconds)).result())
        left = figures(leavers.result())
    asked = time.monotonic()
    status = ground.stack.post(ENDPOINT, _BODY)[0]
    waited = time.monotonic() - asked
    sent = TEXTS * (stayed.requests + left.requests)
    computed = figure(server, "call_texts_sum") - computed
    gone = _abandoned(ground) - gone
    holds = _empty(ground) and gone > 0 and computed < sent and set(stayed.statuses) <= _MAY
    return Seen(
        f"the others: {counted(stayed.statuses)}; {gone:.0f} requests taken out of the queue, "
        f"{computed:.0f} of {sent} texts computed; the next caller: {status}",
        holds and "200" in stayed.statuses and status in (200, 503),
        f"{stayed.texts:.0f} texts/s for those that stay, the next caller after {waited:.1f} s",
    )


def giving_up(times: float) -> Callable[[Ground], Seen]:
    """Callers that wait a second, and the one who comes when they are gone."""

    def run(ground: Ground) -> Seen:
        seconds = 4.0 if ground.short else 15.0
        gone, rate = _abandoned(ground), times * _capacity(ground)
        kind = generator.Open(rate, seconds, _CONNECTIONS, leave_s=_GIVE_UP_S)
        with ThreadPoolExecutor(1) as pool:
            began = time.monotonic()
            running = pool.submit(_load, ground, kind)
            time.sleep(max(0.0, began + seconds - time.monotonic()))
            refused, waited = _answered(ground)
            found = figures(running.result())
        gone = _abandoned(ground) - gone
        holds = waited < _PATIENCE_S and _empty(ground) and ground.well()
        return Seen(
            f"{counted(found.statuses)}, {gone:.0f} taken out of the queue; the next caller is "
            f"{'answered' if waited < _PATIENCE_S else 'not answered'}",
            holds,
            f"after {waited:.1f} s and {refused} refusals",
        )

    return run


def _answered(ground: Ground) -> tuple[int, float]:
    """One caller who comes again as Retry-After says, a second: its refusals, and the seconds until
    its answer."""
    asked, refused = time.monotonic(), 0
    while ground.stack.post(ENDPOINT, _BODY)[0] != 200:
        if time.monotonic() - asked > _PATIENCE_S:
            break
        refused += 1
        time.sleep(1.0)
    return refused, time.monotonic() - asked


def _abandoned(ground: Ground) -> float:
    return figure(ground.server(), "abandoned_requests_total", reason="disconnect")


def _empty(ground: Ground) -> bool:
    """Whether nothing waits any more, soon after."""
    server, end = ground.server(), time.monotonic() + 60
    while figure(server, "waiting_tokens"):
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True
