"""The health routes on the real app, and their rules on a host that the test plays."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.responses import Response

from gateway import building, health as health_module
from gateway.health import Health
from gateway.short_way import ShortWay
from gateway.shutdown import Shutdown
from tests.gateway.conftest import Server
from tests.gateway.played_host import Ours, Processor, host_of


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
    assert gateway.ask("GET", "/health/nothing").status == 404
    assert gateway.ask("HEAD", "/health/ready").status == 200


@pytest.fixture(autouse=True)
def engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every endpoint is built as one of ours."""

    def build(model_endpoint: Any, task: Any) -> Any:
        return SimpleNamespace(_preprocess=Ours())

    monkeypatch.setattr(building, "engine_class", lambda engine_type: build)
    monkeypatch.setattr(building, "_UPDATE_WAIT_S", 0.02)
    monkeypatch.setattr(health_module, "_GOLDEN_TIMEOUT_S", 0.2)


def health_of(processor: Processor | None) -> tuple[Health, Shutdown]:
    host, shutdown = host_of(processor), Shutdown(0)
    return Health(host, ShortWay(host), shutdown), shutdown


async def get(health: Health, name: str) -> tuple[int, Any]:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    await health.answer(f"/health/{name}", send)
    return sent[0]["status"], health_module.orjson.loads(sent[1]["body"])


async def first_round(health: Health) -> None:
    health.start_round()
    while health.not_ready() == "first golden requests under way":
        await asyncio.sleep(0.01)


async def test_one_bad_endpoint_does_not_make_the_worker_unready() -> None:
    processor = Processor(
        {
            "good": Response(b"{}"),
            "bad": Response(b'{"code": "unavailable", "message": "no engine"}', 503),
            "plain": Response(b"no", 500),
            "raising": KeyError("x"),
            "silent": "never",
        }
    )
    health, _ = health_of(processor)
    status, body = await get(health, "ready")
    assert (status, body["reason"]) == (503, "first golden requests under way")
    await first_round(health)
    assert (await get(health, "ready"))[0] == 200
    _, body = await get(health, "endpoints")
    states = {row["endpoint"]: (row["state"], row["reason"]) for row in body["endpoints"]}
    assert states["good"] == ("ok", None)
    assert states["bad"] == ("failed", "503 unavailable: no engine")
    assert states["plain"] == ("failed", "answers 500")
    assert states["raising"][1].startswith("500 internal: ")
    assert states["silent"] == ("failed", "no answer within 0.2 s")
    assert processor._request_processing_state.value == 0


async def test_rounds_are_rate_limited() -> None:
    processor = Processor({"good": Response(b"{}")})
    health, _ = health_of(processor)
    await first_round(health)
    for _ in range(20):
        await get(health, "ready")
        await get(health, "endpoints")
        await asyncio.sleep(0)
    assert len(processor.asked) == 1
    health._last_round -= 16
    await get(health, "ready")
    await get(health, "ready")
    await asyncio.sleep(0.05)
    assert processor.asked == [("good", None, {"text": "ready"})] * 2


async def test_the_golden_body_of_a_bundle_is_asked() -> None:
    processor = Processor({"questions": Response(b"{}")})
    health, _ = health_of(processor)
    golden = {"question": "who?", "context": "me"}
    preprocess = Ours()
    preprocess.endpoint = SimpleNamespace(golden=golden)  # type: ignore[attr-defined]
    processor.built("questions", preprocess)
    await first_round(health)
    assert processor.asked == [("questions", None, golden)]
    assert processor.asked[0][2].is_golden


async def test_building_waits_for_a_change_of_the_configuration() -> None:
    processor = Processor({"good": Response(b"{}")})
    processor._update_lock_flag = True
    health, _ = health_of(processor)
    health.start_round()
    await asyncio.sleep(0.05)
    assert processor._request_processing_state.value == 0
    assert not processor._engine_processor_lookup
    processor._update_lock_flag = False
    await first_round(health)
    assert len(processor.asked) == 1


async def test_not_ready_without_a_host_or_its_sync_or_when_stopping() -> None:
    assert (await get(health_of(None)[0], "ready"))[1]["reason"] == "starting"
    processor = Processor({})
    health, shutdown = health_of(processor)
    await first_round(health)
    assert health.not_ready() is None
    processor.alive = False
    assert health.not_ready() == "the configuration's sync thread has ended"
    processor.alive = True
    shutdown.stopping = True
    status, body = await get(health, "ready")
    assert (status, body) == (503, {"ready": False, "reason": "shutting down"})
    assert (await get(health, "live"))[0] == 200
