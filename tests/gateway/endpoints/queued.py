"""An endpoint that shows the host's queue of statistics, which it would send to Kafka."""

import sys


class Preprocess:
    async def process(self, body, state, collect=None):
        host = sys.modules["clearml_serving.serving.main"].processor
        return {"queued": list(host._stats_queue._deque)}
