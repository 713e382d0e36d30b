"""An endpoint that shows the host's queue of statistics, which it would send to Kafka."""

import sys
from typing import Any


class Preprocess:
    async def process(self, body: Any, state: dict[str, Any], collect: Any = None) -> Any:
        host = sys.modules["clearml_serving.serving.main"].processor
        return {"queued": list(host._stats_queue._deque)}
