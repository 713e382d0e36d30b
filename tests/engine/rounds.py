"""A controller whose rounds a test makes one by one: a Triton of this process, real files."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.engine.serving import ListedEndpoints
from tests.engine.text_models import expected
from tests.engine.triton_server import wait_until
from transformer_serving.engine.controller.control_plane.served import Served
from transformer_serving.engine.controller.figures import TritonFigures
from transformer_serving.engine.controller.files.local_copy import LocalCopy
from transformer_serving.engine.controller.files.repository import Repository
from transformer_serving.engine.controller.metrics import MetricsPage
from transformer_serving.engine.controller.proving.proofs import Proofs
from transformer_serving.engine.controller.proving.prover import Prover
from transformer_serving.engine.controller.service import ControllerSettings, Service
from transformer_serving.engine.controller.state import StateFile


class ToldTriton:
    """Has what was loaded into it; a test puts its own step before each of its answers."""

    def __init__(self) -> None:
        self.ready: dict[str, frozenset[int]] = {}
        self.loads: list[str] = []
        self.before: dict[str, Callable[[], None]] = {}

    def _step(self, name: str) -> None:
        self.before.get(name, lambda: None)()

    def version(self) -> str:
        self._step("version")
        return "2.51.0"

    def end_stuck_loads(self) -> list[str]:
        self._step("end_stuck_loads")
        return []

    def unload_dead(self, is_left: Callable[[str, int], bool]) -> list[str]:
        self._step("unload_dead")
        return []

    def loaded(self) -> dict[str, frozenset[int]]:
        ready = dict(self.ready)
        self._step("loaded")
        return ready

    def load(self, model: str, version: int) -> None:
        self.loads.append(model)
        self._step("load")
        self.ready[model] = frozenset({version})

    def unload(self, model: str) -> None:
        self.ready.pop(model, None)

    def unload_wholly(self, model: str) -> None:
        self._step("unload_wholly")
        self.unload(model)

    def infer(
        self, config: Any, version: int, tensors: Mapping[str, Any], wanted: Sequence[str]
    ) -> dict[str, Any]:
        """Right for what text_models writes."""
        self._step("infer")
        return {"output": expected(tensors["input_ids"], tensors["attention_mask"])}


@dataclasses.dataclass
class Rounds:
    """One controller; `restart` is another one over the same files."""

    folder: Path
    plane: ListedEndpoints = dataclasses.field(default_factory=ListedEndpoints)
    triton: ToldTriton = dataclasses.field(default_factory=ToldTriton)
    pages: list[MetricsPage] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        triton: Any = self.triton
        repository = Repository(self.folder / "models")
        self.pages.append(MetricsPage(None))
        self.service = Service(
            ControllerSettings(poll_s=0.0, grace_s=0.0),
            self.plane,
            triton,
            repository,
            StateFile(self.path),
            Prover(triton, repository, Proofs(self.folder / "proofs.json")),
            TritonFigures(None, lambda: None),
            self.pages[-1],
        )
        self.service.recover()

    @property
    def path(self) -> Path:
        return self.folder / "state.json"

    def page(self) -> str:
        return self.pages[-1].text()

    def state(self) -> dict[str, Any]:
        with contextlib.suppress(FileNotFoundError):
            return dict(json.loads(self.path.read_text()))
        return {"endpoints": []}

    def row(self, endpoint: str) -> dict[str, Any]:
        rows = {row["endpoint"]: row for row in self.state()["endpoints"]}
        return dict(rows.get(endpoint, {}))

    def until(self, condition: Callable[[], object], seconds: float = 30) -> None:
        """Rounds, until it holds."""

        def held() -> bool:
            self.service.round()
            return bool(condition())

        wait_until(held, seconds, lambda: json.dumps(self.state(), indent=1))

    @contextlib.contextmanager
    def downloads_held(self) -> Iterator[threading.Event]:
        """No model comes as long as the block runs; the event: one was asked for."""
        asked, free, model = threading.Event(), threading.Event(), self.plane.model

        @contextlib.contextmanager
        def wait(served: Served) -> Iterator[LocalCopy]:
            asked.set()
            assert free.wait(60)
            with model(served) as copy:
                yield copy

        self.plane.model = wait  # type: ignore[method-assign]
        try:
            yield asked
        finally:
            self.plane.model = model  # type: ignore[method-assign]
            free.set()

    @contextlib.contextmanager
    def held(self, name: str) -> Iterator[threading.Event]:
        """That answer of Triton is kept back as long as the block runs; the event: it was asked."""
        asked, free = threading.Event(), threading.Event()

        def wait() -> None:
            asked.set()
            assert free.wait(60)

        self.triton.before[name] = wait
        try:
            yield asked
        finally:
            del self.triton.before[name]
            free.set()
