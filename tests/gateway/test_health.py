"""The health routes on the real app, and their rules on a host that the test plays."""

from __future__ import annotations

import asyncio
import http.client
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from starlette.responses import Response

from tests.gateway.conftest import Server
from tests.gateway.played_host import Engine, Ours, Processor, host_of
from transformer_serving.contract.endpoint import Recorded
from transformer_serving.contract.naming import VERSION_HEADER
from transformer_serving.gateway import golden_rounds, health as health_module
from transformer_serving.gateway.golden_rounds import GoldenResult, GoldenRounds
from transformer_serving.gateway.health import Health
from transformer_serving.gateway.host import building
from transformer_serving.gateway.short_way import ShortWay
from transformer_serving.gateway.shutdown import Shutdown

SECRET = "the caller's words"


def test_on_the_real_app(gateway: Server) -> None:
    assert gateway.ask("GET", "/health/live").json == {"live": True}
    ready = gateway.ask("GET", "/health/ready")
    assert (ready.status, ready.json) == (200, {"ready": True, "reason": None})
    rows = {
        row["endpoint"]: row for row in gateway.ask("GET", "/health/endpoints").json["endpoints"]
    }
    assert {name: row["state"] for name, row in rows.items()} == {
        "ours": "ok", "ours/2": "ok", "updated": "ok", "other": "not asked", "broken": "failed",
    }  # fmt: skip
    assert rows["broken"]["reason"].startswith("422")
    nothing = gateway.ask("GET", "/health/nothing")
    assert (nothing.status, nothing.json["code"]) == (404, "unknown_endpoint")
    for name, status in {"ours": 200, "ours/2": 200, "other": 200, "broken": 503}.items():
        reply = gateway.ask("GET", f"/health/endpoints/{name}")
        assert (reply.status, reply.json["endpoint"]) == (status, name)
        assert reply.json.keys() == rows[name].keys()
    unknown = gateway.ask("GET", "/health/endpoints/kettle/3")
    assert (unknown.status, unknown.json["code"]) == (404, "unknown_endpoint")
    assert b"kettle" not in unknown.raw


@pytest.mark.parametrize(
    "path", ["/health/ready", "/v2/health/ready", "/v1/models", "/tei/ours/ping", "/tei/no/health"]
)
def test_head_is_answered_as_get_without_a_body(gateway: Server, path: str) -> None:
    """On one connection: what came of a body would be taken for the next answer."""
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=30)
    told = []
    for method in ("HEAD", "GET"):
        connection.request(method, path)
        answer = connection.getresponse()
        told.append((answer.status, answer.getheader("content-length"), answer.read()))
    connection.close()
    head, got = told
    assert (head[:2], head[2]) == (got[:2], b"")
    assert got[1] == str(len(got[2]))


@pytest.fixture(autouse=True)
def engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every endpoint is built as one of ours."""

    def build(model_endpoint: Any, task: Any) -> Any:
        return Engine(task, model_endpoint.url, Ours())

    monkeypatch.setattr(building, "engine_class", lambda engine_type: build)
    monkeypatch.setattr(building, "_UPDATE_WAIT_S", 0.02)
    monkeypatch.setattr(golden_rounds, "_TIMEOUT_S", 0.2)


class Played:
    """Health and rounds over a played host; `told` is what the figures heard."""

    def __init__(self, processor: Processor | None) -> None:
        host = host_of(processor)
        self.told: list[Mapping[str, GoldenResult]] = []
        self.rounds = GoldenRounds(host, ShortWay(host), self._tell)
        self.shutdown = Shutdown(0)
        self.health = Health(host, self.rounds, self.shutdown)

    async def _tell(self, results: Mapping[str, GoldenResult]) -> None:
        self.told.append(results)

    async def get(self, name: str) -> tuple[int, Any]:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        await self.health.answer(f"/health/{name}", send)
        return sent[0]["status"], orjson.loads(sent[1]["body"])

    @asynccontextmanager
    async def running(self, rounds: int = 1) -> AsyncIterator[Played]:
        """From the start until so many rounds are done, and to the end."""
        self.rounds.start()
        try:
            async with asyncio.timeout(60):
                while not self.rounds.first_done or len(self.told) < rounds:
                    await asyncio.sleep(0.01)
            yield self
        finally:
            self.rounds.stop()


async def test_one_bad_endpoint_does_not_make_the_worker_unready() -> None:
    processor = Processor(
        {
            "good": Response(b"{}"),
            "bad": Response(b'{"code": "unavailable", "message": "no engine"}', 503),
            "plain": Response(b"no", 500),
            "raising": KeyError("x"),
            "panicking": Panic(),
            "silent": "never",
        }
    )
    played = Played(processor)
    status, body = await played.get("ready")
    assert (status, body["reason"]) == (503, "first golden requests under way")
    async with played.running():
        assert (await played.get("ready"))[0] == 200
        _, body = await played.get("endpoints")
    states = {row["endpoint"]: (row["state"], row["reason"]) for row in body["endpoints"]}
    assert states["good"] == ("ok", None)
    assert states["bad"] == ("failed", "503 unavailable: no engine")
    assert states["plain"] == ("failed", "answers 500")
    assert states["raising"][1].startswith("500 internal: ")
    assert states["panicking"][1].startswith("500 internal: ")
    assert states["silent"] == ("failed", "no answer within 0.2 s")
    assert not any(row["compared"] for row in body["endpoints"])
    told = played.told[0]
    assert told.keys() == processor.answers.keys()
    assert [name for name, result in told.items() if result.state == "ok"] == ["good"]
    assert processor._request_processing_state.value == 0


class Panic(BaseException):
    pass


def recording(processor: Processor, url: str, recorded: Any, *, version: int = 7) -> None:
    """An endpoint whose bundle says what its golden request answers."""
    preprocess = Ours()
    preprocess.endpoint = SimpleNamespace(  # type: ignore[attr-defined]
        golden={"text": url}, recorded=recorded, bundle_version=version
    )
    processor.built(url, preprocess)


def from_bundle(answer: Any, version: int = 7) -> Response:
    return Response(orjson.dumps(answer), headers={VERSION_HEADER: str(version)})


async def test_an_answer_is_held_against_the_recorded_one() -> None:
    right = {"label": SECRET, "score": 0.5}
    answers = {
        "right": from_bundle({**right, "score": 0.5004}),
        "wrong": from_bundle({"label": SECRET, "score": 0.9}),
        "text": from_bundle({"label": "other words", "score": 0.5}),
        "no json": Response(b"{", headers={VERSION_HEADER: "7"}),
        "older": from_bundle({"any": "thing"}),
        "updating/3": from_bundle({"label": "other words", "score": 0.1}, version=6),
        "refusing": from_bundle({"code": "text", "message": "no text"}, version=6),
        "broken": from_bundle({"code": "text", "message": "no text"}),
    }
    answers["refusing"].status_code = answers["broken"].status_code = 400
    processor = Processor(answers)
    for url in answers:
        recording(processor, url, None if url == "older" else Recorded(right, 0.001))
    async with Played(processor).running() as played:
        found = {url: await played.get(f"endpoints/{url}") for url in answers}
        assert (await played.get("ready"))[0] == 200
    rows = {url: (status, row["compared"], row["reason"]) for url, (status, row) in found.items()}
    other, refused = "another bundle answers: its engine is not loaded yet", "400 text: no text"
    differs = "the answer differs from the recorded one: its"
    assert rows == {
        "right": (200, True, None),
        "wrong": (503, True, f"{differs} numbers by up to 0.4 where 0.001 is allowed"),
        "text": (503, True, f"{differs} texts or its form"),
        "no json": (503, False, "its answer could not be judged; see the worker's log"),
        "older": (200, False, None),
        "updating/3": (200, False, other),
        "refusing": (503, False, f"{other}, and does not answer this one's request: {refused}"),
        "broken": (503, False, refused),
    }
    assert SECRET not in repr(rows)


async def test_in_a_rollout_each_bundle_is_asked_itself() -> None:
    """The endpoint's name is that of the route then, by which either may be drawn."""
    right, wrong = {"score": 0.5}, {"score": 0.9}
    processor = Processor({"a": from_bundle(right), "a/2": from_bundle(wrong, version=8)})
    processor._canary_route["a"] = {"endpoints": ["a", "a/2"], "weights": [0.0, 1.0]}
    recording(processor, "a", Recorded(right, 0.001))
    recording(processor, "a/2", Recorded(right, 0.001), version=8)
    async with Played(processor).running() as played:
        found = {name: await played.get(f"endpoints/{name}") for name in ("a", "a/2")}
    assert {name: (status, row["compared"]) for name, (status, row) in found.items()} == {
        "a": (200, True), "a/2": (503, True)
    }  # fmt: skip
    assert {name: golden.bundle for name, golden in played.told[0].items()} == {
        "a": "7", "a/2": "8"
    }  # fmt: skip
    assert processor._request_processing_state.value == 0


async def test_what_a_change_takes_away_is_built_again_and_asked_itself() -> None:
    """Not by its name, which a canary route has too."""
    processor = Processor({"good": Response(b"{}"), "elsewhere": Response(b"no", 500)})
    processor._canary_route["good"] = {"endpoints": ["elsewhere"]}
    way = ShortWay(host_of(processor))
    assert (await way.own_answer("good", {})).status_code == 200
    processor.changed()
    assert (await way.own_answer("good", {})).status_code == 200
    del processor.answers["good"]
    processor.changed()
    assert (await way.own_answer("good", {})).status_code == 404
    assert processor.asked == [("good", None, {})] * 2
    assert processor._request_processing_state.value == 0


async def test_the_route_of_one_endpoint() -> None:
    processor = Processor({"good": Response(b"{}"), "slow/2": "never"})
    played = Played(processor)
    status, row = await played.get("endpoints/good")
    assert (status, row["reason"]) == (503, "first golden requests under way")
    async with played.running():
        assert (await played.get("endpoints/good"))[0] == 200
        assert (await played.get("endpoints/slow/2"))[0] == 503
        status, body = await played.get("endpoints/unknown")
        assert (status, body["code"]) == (404, "unknown_endpoint")
        assert (await played.get("endpoints/"))[0] == 404
        processor.answers["new"] = Response(b"{}")
        processor.changed()
        status, row = await played.get("endpoints/new")
        assert (status, row["reason"]) == (503, "its first golden request is under way")
        played.shutdown.stopping = True
        status, row = await played.get("endpoints/good")
        assert (status, row["state"], row["reason"]) == (503, "ok", "shutting down")


async def test_a_result_of_long_ago_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Played(Processor({"good": Response(b"{}")})).running() as played:
        monkeypatch.setattr(health_module, "_STALE_S", -1.0)
        status, row = await played.get("endpoints/good")
        assert (status, row["reason"]) == (503, "its last golden request is too long ago")


async def test_rounds_follow_each_other_whatever_anybody_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One after the other: none begins while one is under way, and asking starts none."""
    processor = Processor({"slow": "never"})
    monkeypatch.setattr(golden_rounds, "EVERY_S", 0.01)
    async with Played(processor).running(rounds=3) as played:
        asked = len(processor.asked)
        for _ in range(20):
            await played.get("ready")
            await played.get("endpoints")
            await played.get("endpoints/slow")
        assert len(processor.asked) == asked
        # Each lasts as long as its one endpoint may, and there is no other one beside it.
        assert asked <= len(played.told) + 1
    # What it had begun is asked before it is ended.
    await asyncio.sleep(0.1)
    left = len(processor.asked)
    await asyncio.sleep(0.3)
    assert len(processor.asked) == left, "rounds end with the app"


async def test_a_new_endpoint_is_not_kept_waiting_for_the_next_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was told as not ready for up to EVERY_S after it had come."""
    processor = Processor({"good": Response(b"{}")})
    monkeypatch.setattr(golden_rounds, "EVERY_S", 3600.0)
    monkeypatch.setattr(golden_rounds, "_LOOK_S", 0.01)
    async with Played(processor).running() as played:
        processor.answers["new"] = Response(b"{}")
        processor.changed()
        assert (await played.get("endpoints/new"))[0] == 503
        async with asyncio.timeout(60):
            while (await played.get("endpoints/new"))[0] != 200:
                await asyncio.sleep(0.01)
        rounds = len(played.told)
        await asyncio.sleep(0.2)
        assert len(played.told) == rounds == 2


async def test_a_new_endpoint_whose_engine_is_being_loaded_is_asked_again_alone_and_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`deploy` waits for its health, and by rounds alone it waited for up to EVERY_S more."""
    loading = Response(b'{"code": "unavailable", "message": "no engine"}', 503)
    loading.headers[VERSION_HEADER] = "7"
    processor = Processor({"good": Response(b"{}"), "new": loading, "broken": Response(b"", 500)})
    monkeypatch.setattr(golden_rounds, "EVERY_S", 3600.0)
    monkeypatch.setattr(golden_rounds, "_LOOK_S", 0.01)
    async with Played(processor).running(rounds=3) as played:
        processor.answers["new"] = Response(b"{}")
        async with asyncio.timeout(60):
            while (await played.get("endpoints/new"))[0] != 200:
                await asyncio.sleep(0.01)
    asked = [url for url, *_ in processor.asked]
    assert asked.count("good") == asked.count("broken") == 1
    assert all(told.keys() == processor.answers.keys() for told in played.told)


async def test_where_the_host_exchanges_its_engine_objects_in_a_round_all_are_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It does so a moment after its endpoints have changed, which has begun the round."""
    processor = Processor({"good": Response(b"{}"), "new": Response(b"{}")})
    made, builds = building.engine_class("triton"), list[str]()

    def build(model_endpoint: Any, task: Any) -> Any:
        engine = made(model_endpoint=model_endpoint, task=task)
        builds.append(model_endpoint.url)
        if len(builds) == 2:
            asyncio.get_running_loop().call_soon(processor._engine_processor_lookup.clear)
        return engine

    monkeypatch.setattr(building, "engine_class", lambda engine_type: build)
    async with Played(processor).running() as played:
        assert {url: one.state for url, one in played.rounds.results.items()} == {
            "good": "ok", "new": "ok",
        }  # fmt: skip
    assert builds == ["good", "new", "good", "new"]


async def test_an_endpoint_that_is_not_new_waits_for_its_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone = Response(b'{"code": "unavailable", "message": "no engine"}', 503)
    gone.headers[VERSION_HEADER] = "7"
    monkeypatch.setattr(golden_rounds, "EVERY_S", 3600.0)
    monkeypatch.setattr(golden_rounds, "_LOOK_S", 0.01)
    monkeypatch.setattr(golden_rounds, "_NEW_S", 0.0)
    async with Played(Processor({"old": gone})).running() as played:
        await asyncio.sleep(0.2)
        assert len(played.told) == 1


@pytest.mark.parametrize("fault", [ValueError(SECRET), Panic()])
async def test_after_a_round_that_fails_the_next_one_comes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fault: BaseException
) -> None:
    processor = Processor({"good": Response(b"{}")})
    monkeypatch.setattr(golden_rounds, "EVERY_S", 0.01)
    get_endpoints, faults = processor.get_endpoints, [fault]

    def failing() -> Any:
        if faults:
            raise faults.pop()
        return get_endpoints()

    monkeypatch.setattr(processor, "get_endpoints", failing)
    async with Played(processor).running() as played:
        assert (await played.get("endpoints/good"))[0] == 200
    assert "a round of golden requests failed" in caplog.text
    assert SECRET not in caplog.text


async def test_the_golden_body_of_a_bundle_is_asked() -> None:
    processor = Processor({"questions": Response(b"{}")})
    golden = {"question": "who?", "context": "me"}
    preprocess = Ours()
    preprocess.endpoint = SimpleNamespace(golden=golden)  # type: ignore[attr-defined]
    processor.built("questions", preprocess)
    async with Played(processor).running():
        pass
    assert processor.asked == [("questions", None, golden)]
    assert processor.asked[0][2].is_golden


async def test_building_waits_for_a_change_of_the_configuration() -> None:
    processor = Processor({"good": Response(b"{}")})
    processor._update_lock_flag = True
    played = Played(processor)
    played.rounds.start()
    await asyncio.sleep(0.05)
    assert processor._request_processing_state.value == 0
    assert not processor._engine_processor_lookup
    processor._update_lock_flag = False
    async with played.running():
        pass
    assert len(processor.asked) == 1


async def test_not_ready_without_a_host_or_its_sync_or_when_stopping() -> None:
    assert (await Played(None).get("ready"))[1]["reason"] == "starting"
    assert (await Played(None).get("endpoints/any"))[0] == 503
    processor = Processor({})
    async with Played(processor).running() as played:
        assert played.health.not_ready() is None
    processor.alive = False
    assert played.health.not_ready() == "the configuration's sync thread has ended"
    processor.alive = True
    played.shutdown.stopping = True
    status, body = await played.get("ready")
    assert (status, body) == (503, {"ready": False, "reason": "shutting down"})
    assert (await played.get("live"))[0] == 200
