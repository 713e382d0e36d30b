"""A refused body is let go of at once, not by the next collection, which may be far away."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.loaded_file import loaded_file
from tests.stack.small_bundles import write_small


class Body(dict[str, Any]):
    """One that can be looked after."""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small(tmp_path_factory.mktemp("refused") / "bundle").preprocess


@pytest.fixture
def module(path: Path) -> ModuleType:
    return loaded_file(path, "refused")


@pytest.fixture
def no_collections() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"text": "a", "unknown": 1}, 400),
        ({"text": ["a"] * 101}, 413),
        ({"text": "rain " * 100}, 413),
        ({"text": "a", "timeout_ms": "b"}, 400),
    ],
)
async def test_a_refused_body_is_let_go_of(
    module: ModuleType, no_collections: None, fields: dict[str, Any], status: int
) -> None:
    ours = module.Preprocess()
    ours.model_endpoint = SimpleNamespace(serving_url="refused", version=None)

    async def host(body: Body) -> int:
        """As clearml-serving: each step's outcome stays in its own variable."""
        state: dict[str, Any] = {}
        request = ours.preprocess(body, state)
        outcome = await ours.process(request, state)
        return int(ours.postprocess(outcome, state).status_code)

    body = Body(fields)
    left = weakref.ref(body)
    asked = asyncio.create_task(host(body))
    del body
    assert await asked == status
    del asked
    await asyncio.sleep(0)
    assert left() is None
