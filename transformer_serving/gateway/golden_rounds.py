"""Golden requests to every endpoint that is ours, in rounds that nobody has to ask for.

A round comes at the latest after EVERY_S, and within a second where there is a new endpoint or code
has come that one waited for. An endpoint whose engine is loaded for the first time is asked alone
in between, as long as it is new: `deploy` waits for it.

Tested by tests/gateway/test_health.py and tests/gateway/test_wrong_engine.py.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import orjson
from starlette.responses import Response

from transformer_serving.contract.golden import agrees, disagreement
from transformer_serving.contract.naming import VERSION_HEADER
from transformer_serving.contract.panics import ENDS
from transformer_serving.contract.worker.log_lines import trace_of
from transformer_serving.contract.worker.request_context import GoldenBody
from transformer_serving.gateway.host.building import is_built, preprocess_of, serves_responses
from transformer_serving.gateway.host.code_files import PATIENCE_S
from transformer_serving.gateway.short_way import ShortWay

log = logging.getLogger("transformer_serving.gateway")
# For endpoints that bring no golden body of their own.
_SHORT_TEXT = {"text": "ready"}
_TIMEOUT_S = 10.0
EVERY_S = 15.0
_OTHER = "another bundle answers: its engine is not loaded yet"
# New endpoints are looked for this often: one is not ready until it was asked.
_LOOK_S = 1.0
# So long an endpoint is new.
_NEW_S = 60.0


@dataclass(frozen=True)
class GoldenResult:
    """An endpoint's last golden request: 'ok', 'failed' with a reason, or 'not asked'.

    `compared` says whether its answer was held against the recorded one; `at` is on
    time.monotonic's clock. `bundle` is the version that answered, empty where nobody did.
    """

    endpoint: str
    state: str
    time: str
    at: float
    compared: bool
    reason: str | None
    bundle: str = ""
    task: str = ""

    @property
    def age_s(self) -> float:
        return round(time.monotonic() - self.at, 1)

    def row(self) -> dict[str, Any]:
        """As /health/endpoints shows it."""
        return {
            "endpoint": self.endpoint,
            "state": self.state,
            "time": self.time,
            "age_s": self.age_s,
            "compared": self.compared,
            "reason": self.reason,
        }


class GoldenRounds:
    """One round after the other from the app's start to its end; `results` are the last one's.

    `tell` hears of every round, by endpoint; of those that were asked only.
    """

    def __init__(
        self, host: Any, short_way: ShortWay,
        tell: Callable[[Mapping[str, GoldenResult]], Awaitable[None]],
    ) -> None:  # fmt: skip
        self._host = host
        self._short_way = short_way
        self._tell = tell
        self._task: asyncio.Task[None] | None = None
        self._first_seen: dict[str, float] = {}
        self.results: dict[str, GoldenResult] = {}
        self.first_done = False

    def start(self) -> None:
        """Begin in the running loop."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while True:
            due = time.monotonic() + EVERY_S
            try:
                await self._round(self._urls())
                self.first_done = True
                await self._until(due)
            except ENDS:
                raise
            except BaseException as error:
                log.error("a round of golden requests failed: %s", trace_of(error))
                self.first_done = True
                await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def _until(self, due: float) -> None:
        """Wait for that time, on time.monotonic's clock, or until there is more to ask."""
        while (rest := due - time.monotonic()) > 0:
            await asyncio.sleep(min(rest, _LOOK_S))
            urls = self._urls()
            if any(url not in self.results or self._short_way.is_due(url) for url in urls):
                return
            if late := [url for url in urls if self._is_awaited(url)]:
                await self._round(late)

    def _urls(self) -> list[str]:
        """All endpoints, of which each is remembered from when it was first there."""
        urls = list(self._host.processor.get_endpoints())
        now = time.monotonic()
        self._first_seen = {url: self._first_seen.get(url, now) for url in urls}
        # Replaced as a whole, so that removed endpoints leave.
        self.results = {url: one for url, one in self.results.items() if url in self._first_seen}
        return urls

    def _is_awaited(self, url: str) -> bool:
        """Whether it is new, and its code says that it cannot answer yet."""
        result = self.results[url]
        is_new = time.monotonic() - self._first_seen[url] < _NEW_S
        return is_new and result.state == "failed" and bool(result.bundle) and not result.compared

    async def _round(self, urls: Sequence[str]) -> None:
        # All at once: none waits for the file of another. A worker that starts had better have all.
        await self._short_way.fetch(urls, PATIENCE_S if self.first_done else _TIMEOUT_S)
        results = {url: await self._built(url) for url in urls}
        ready = [url for url, failed in results.items() if failed is None]
        for golden in await asyncio.gather(*map(self._ask, ready)):
            results[golden.endpoint] = golden
        asked_now = {url: golden for url, golden in results.items() if golden is not None}
        self.results = {**self.results, **asked_now}
        asked = [golden for golden in self.results.values() if golden.state != "not asked"]
        await self._tell({golden.endpoint: golden for golden in asked})

    async def _built(self, url: str) -> GoldenResult | None:
        """None when the endpoint is ready to be asked, else why not."""
        failure = await self._short_way.build(url)
        # Building blocks the loop: requests get their turn between two endpoints.
        await asyncio.sleep(0)
        return None if failure is None else _result(url, "failed", _status(failure))

    async def _ask(self, url: str) -> GoldenResult:
        """The endpoint's golden request, judged; raises nothing that would cost others theirs."""
        # The host lets go of all it has built a moment after a change, which may begin a round.
        if not is_built(self._host.processor, url) and (failed := await self._built(url)):
            return failed
        if not serves_responses(self._host.processor, url):
            return _result(url, "not asked", "not known to run this project's preprocess code")
        endpoint = getattr(preprocess_of(self._host.processor, url), "endpoint", None)
        body = GoldenBody(getattr(endpoint, "golden", None) or _SHORT_TEXT)
        try:
            # Not by its name: in a rollout that is a canary route too, which may lead elsewhere.
            async with asyncio.timeout(_TIMEOUT_S):
                answer = await self._short_way.own_answer(url, body)
            task = str(getattr(endpoint, "task", ""))
            bundle = answer.headers.get(VERSION_HEADER, "")
            return replace(_judged(url, endpoint, answer), bundle=bundle, task=task)
        except TimeoutError:
            return _result(url, "failed", f"no answer within {_TIMEOUT_S:g} s")
        except ENDS:
            raise
        except BaseException as error:
            log.error("a golden answer could not be judged: %s", trace_of(error))
            return _result(url, "failed", "its answer could not be judged; see the worker's log")


def _judged(url: str, endpoint: Any, answer: Response) -> GoldenResult:
    """By the recorded answer, where the bundle has one and gave this answer itself."""
    by = answer.headers.get(VERSION_HEADER)
    is_other = by is not None and by != str(getattr(endpoint, "bundle_version", by))
    if answer.status_code != 200:
        # Of the one before, a refusal says nothing of this one.
        other = f"{_OTHER}, and does not answer this one's request: " if is_other else ""
        return _result(url, "failed", other + _status(answer))
    recorded = getattr(endpoint, "recorded", None)
    if recorded is None:
        return _result(url, "ok", None)
    if is_other or by is None:
        return _result(url, "ok", _OTHER)
    body = orjson.loads(answer.body)
    if agrees(body, recorded.answer, recorded.tolerance):
        return _result(url, "ok", None, compared=True)
    why = disagreement(body, recorded.answer, recorded.tolerance)
    return _result(url, "failed", why, compared=True)


def _result(url: str, state: str, reason: str | None, *, compared: bool = False) -> GoldenResult:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return GoldenResult(url, state, now, time.monotonic(), compared, reason)


def _status(answer: Response) -> str:
    """Status and, where the answer is one of our errors, its code and message."""
    try:
        body = orjson.loads(answer.body)
        return f"{answer.status_code} {body['code']}: {body['message']}"
    except (ValueError, KeyError, TypeError):
        return f"answers {answer.status_code}"
