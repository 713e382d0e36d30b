"""The rows that clearml-serving keeps for its statistics service are bounded, and a sender that has
ended is told of.

clearml-serving 1.3.5 queues a row for each request where Kafka is named, as a service that was made
with --kafka-metric-server does by itself. One thread sends them. It ends where kafka-python is not
installed, or where Kafka was named after the worker's start, and waits where no broker answers; the
queue then grew without end, by 230 bytes a request.

Tested by tests/gateway/test_statistics.py.
"""

from __future__ import annotations

import logging
from collections import deque
from functools import wraps
from typing import Any

log = logging.getLogger("transformer_serving.gateway")
# The sender may sleep for ten seconds while rows come.
MOST_ROWS = 100_000


class Rows(deque[Any]):
    """As many as MOST_ROWS, the newest; how many older ones went is told at the first, the tenth
    and so on.
    """

    def __init__(self, rows: deque[Any]) -> None:
        super().__init__(rows, MOST_ROWS)
        self.dropped = 0
        self._told_at = 1

    def append(self, row: Any) -> None:
        if len(self) == self.maxlen:
            self.dropped += 1
            if self.dropped == self._told_at:
                self._told_at *= 10
                log.warning(
                    "clearml-serving's statistics do not come to Kafka: %d rows are dropped",
                    self.dropped,
                )
        super().append(row)


def bound_statistics(processor_class: Any) -> None:
    """The sender's thread begins by exchanging what the queue keeps its rows in."""
    send = processor_class._stats_send_loop

    @wraps(send)
    def stats_send_loop(self: Any) -> None:
        self._stats_queue._deque = Rows(self._stats_queue._deque)
        named = self._kafka_stats_url
        why = "its queue failed"
        try:
            send(self)
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
        if named:
            log.error(
                "clearml-serving sends this worker's statistics to Kafka no more: %s; it needs "
                "kafka-python and lz4, or a service that does not name Kafka",
                why,
            )

    processor_class._stats_send_loop = stats_send_loop
