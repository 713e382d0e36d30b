"""Changes of a serving service by clearml-serving's own classes, in one process for many changes.

Its command line takes more than a second each, most of it to start.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.stack.conftest import Stack
    from transformer_serving.desk.bundle.folder import Bundle

_TENSORS = {
    "engine_type": "triton",
    "input_name": ["input_ids", "attention_mask"],
    "input_type": ["int32", "int32"],
    "input_size": [[-1], [-1]],
    "output_name": "output",
    "output_type": "float32",
    "output_size": [3],
}


class Editor:
    """Adds, replaces and removes endpoints; each call returns when the server has taken it."""

    def __init__(self, process: subprocess.Popen[str], stack: Stack) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._in: IO[str] = process.stdin
        self._out: IO[str] = process.stdout
        self._stack = stack

    def add(self, endpoint: str, bundle: Bundle, model_id: str) -> None:
        self.add_all([endpoint], bundle, model_id)

    def add_all(self, endpoints: Iterable[str], bundle: Bundle, model_id: str) -> None:
        """The same bundle under several names, in one change."""
        code = str(bundle.preprocess)
        self._ask("add", endpoints=list(endpoints), code=code, model=model_id)

    def remove_all(self, endpoints: Iterable[str]) -> None:
        self._ask("remove", endpoints=list(endpoints))

    def endpoints(self) -> dict[str, str]:
        """Model ids by endpoint, as the server has them now."""
        found: dict[str, str] = self._ask("list")
        return found

    def clear(self) -> None:
        """Remove every endpoint, auto-update endpoint, canary and metric."""
        self._ask("clear")

    def _ask(self, action: str, **values: Any) -> Any:
        self._in.write(json.dumps({"action": action, **values}) + "\n")
        self._in.flush()
        for line in self._out:
            # The host prints lines of its own.
            if line.startswith("{"):
                answer = json.loads(line)
                assert "error" not in answer, answer
                return answer["value"]
        raise AssertionError(f"the editor ended; the stack: {self._stack.status()}")


@contextmanager
def editor(stack: Stack) -> Iterator[Editor]:
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__)), stack.serving_id],
        env={
            **stack.environment(),
            "CLEARML_CONFIG_FILE": str(stack.state / "clearml" / "inference" / "clearml.conf"),
            "CLEARML_LOG_LEVEL": "CRITICAL",
            "PYTHONPATH": str(Path(__file__).parents[2]),
        },
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        yield Editor(process, stack)
    finally:
        process.kill()
        # Its pipes close too.
        process.communicate(timeout=20)


def _change(processor: Any, order: dict[str, Any]) -> Any:
    processor._task.reload()
    processor._last_update_hash = None
    processor.deserialize(skip_sync=True)
    if order["action"] == "list":
        return {url: endpoint.model_id for url, endpoint in processor._endpoints.items()}
    if order["action"] == "clear":
        for url in list(processor._endpoints):
            processor.remove_endpoint(url)
        for table in ("_model_monitoring", "_canary_endpoints", "_metric_logging"):
            getattr(processor, table).clear()
    for endpoint in order.get("endpoints", ()):
        if order["action"] == "remove":
            processor.remove_endpoint(endpoint)
        else:
            fields = {**_TENSORS, "serving_url": endpoint, "model_id": order["model"]}
            processor.add_endpoint(fields, preprocess_code=order["code"])
    processor.serialize()
    return None


def _main(serving_id: str) -> None:
    from transformer_serving.contract.worker.hidden_frameworks import hidden_frameworks

    with hidden_frameworks():
        from clearml_serving.serving.model_request_processor import ModelRequestProcessor

    processor = ModelRequestProcessor(task_id=serving_id)
    for line in sys.stdin:
        try:
            answer = {"value": _change(processor, json.loads(line))}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        sys.stdout.write(f"\n{json.dumps(answer)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _main(sys.argv[1])
