"""Rows for clearml-serving's statistics service that nobody sends; the host's own code."""

from __future__ import annotations

import logging
import sys
from types import ModuleType
from typing import Any

import pytest
from clearml_serving.serving.model_request_processor import FastSimpleQueue, ModelRequestProcessor

from transformer_serving.gateway.host import statistics
from transformer_serving.gateway.host.statistics import bound_statistics

MOST = 10


class Processor(ModelRequestProcessor):  # type: ignore[misc]
    """As much of it as statistics need."""

    def __init__(self, broker: str | None) -> None:
        self._kafka_stats_url = broker
        self._stats_queue = FastSimpleQueue()
        self._metric_logging: dict[str, Any] = {}
        self._metric_log_freq = 1.0

    @property
    def rows(self) -> list[str]:
        return [row["_url"] for row in self._stats_queue._deque]

    async def ask(self, times: int, first: int = 0) -> None:
        for at in range(first, first + times):
            await self._process_request(Engine(), str(at), {})


class Engine:
    is_preprocess_async = is_process_async = is_postprocess_async = False

    def preprocess(self, body: Any, state: Any, collect: Any) -> Any:
        return body

    process = postprocess = preprocess


@pytest.fixture
def bounded(monkeypatch: pytest.MonkeyPatch) -> type[Processor]:
    monkeypatch.setattr(statistics, "MOST_ROWS", MOST)

    class Bounded(Processor):
        pass

    bound_statistics(Bounded)
    return Bounded


async def test_a_sender_that_ended_is_told_of_and_rows_do_not_grow(
    bounded: type[Processor], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Here without kafka-python."""
    monkeypatch.setitem(sys.modules, "kafka", None)
    processor = bounded("127.0.0.1:9")
    await processor.ask(2)
    with caplog.at_level(logging.WARNING):
        processor._stats_send_loop()
        assert "to Kafka no more: ModuleNotFoundError" in caplog.text
        assert processor.rows == ["0", "1"]
        caplog.clear()
        await processor.ask(MOST + 10, first=2)
    assert processor.rows == [str(at) for at in range(12, 12 + MOST)]
    assert processor._stats_queue._deque.dropped == 12
    told = [record.getMessage().partition(": ")[2] for record in caplog.records]
    assert told == ["1 rows are dropped", "10 rows are dropped"]


async def test_rows_do_not_grow_where_kafka_is_named_later(
    bounded: type[Processor], caplog: pytest.LogCaptureFixture
) -> None:
    processor = bounded(None)
    processor._stats_send_loop()
    assert caplog.text == ""
    processor._kafka_stats_url = "127.0.0.1:9"
    await processor.ask(2 * MOST)
    assert len(processor.rows) == MOST


async def test_what_is_kept_is_sent(
    bounded: type[Processor], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Any] = []

    class Producer:
        def __init__(self, **_: Any) -> None: ...

        def send(self, topic: str, value: Any) -> Any:
            sent.extend(value)
            # Else the host waits for more rows.
            raise SystemExit

    kafka, errors = ModuleType("kafka"), ModuleType("kafka.errors")
    kafka.KafkaProducer = Producer  # type: ignore[attr-defined]
    kafka.errors = errors  # type: ignore[attr-defined]
    errors.MessageSizeTooLargeError = OverflowError  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "kafka", kafka)
    monkeypatch.setitem(sys.modules, "kafka.errors", errors)
    processor = bounded("127.0.0.1:9")
    await processor.ask(3)
    with pytest.raises(SystemExit):
        processor._stats_send_loop()
    assert [row["_url"] for row in sent] == ["0", "1", "2"]
