"""How many threads Triton's own ONNX Runtime takes in a container with fewer cores than its host.

Our backends count the cores that they may use. The library in the image knows no quota: it starts a
thread for each core of the host, and they spend the quota on waiting for one another. Which machine
it is says the file that Triton reads, not the record: that may come to another machine.
"""

from __future__ import annotations

import os

from transformer_serving.engine.backends.model_settings import available_cores
from transformer_serving.engine.endpoint_config import backend_of
from transformer_serving.engine.model_config import from_text, instances_of, to_text

_BACKEND = "onnxruntime"
_THREADS = "intra_op_thread_count"


def with_threads(text: str) -> str:
    """The configuration with this container's share for each instance, unless it says one."""
    cores = available_cores()
    if _BACKEND not in text or cores >= (os.cpu_count() or 1):
        return text
    config = from_text(text)
    said = config.parameters[_THREADS].string_value if _THREADS in config.parameters else ""
    if backend_of(config) != _BACKEND or said not in ("", "0"):
        return text
    share = cores // max(1, instances_of(config))
    config.parameters[_THREADS].string_value = str(max(1, share))
    return to_text(config)
